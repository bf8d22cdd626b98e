// Checks the stages of a pipeline together: each message that is sent is received, and no stage waits forever.
#include <fmt/format.h>

#include <algorithm>

#include "program/ir/stages.h"
#include "program/verify/inferred.h"
#include "program/verify/verify.h"

namespace molen::program {
namespace {

// An op that communicates with other stages.
struct Meeting {
  const Expanded* op = nullptr;
  std::vector<int> stages;  // all stages that take part
};

// Returns whether two ops can run as partners.
bool meet(const Expanded& a, const Expanded& b) {
  if (a.micro_batch != b.micro_batch || a.step->moved != b.step->moved) return false;
  const auto pair = [](const Op& x, const Op& y) {
    const auto* send = std::get_if<Send>(&x);
    const auto* receive = std::get_if<Receive>(&y);
    return send && receive && send->payload == receive->payload && send->layer == receive->layer;
  };
  const bool message = std::holds_alternative<Send>(a.step->op) || std::holds_alternative<Receive>(a.step->op);
  return message ? pair(a.step->op, b.step->op) || pair(b.step->op, a.step->op) : a.step->op == b.step->op;
}

class World {
 public:
  explicit World(const std::vector<Program>& stages) : stages_(stages), next_(stages.size(), 0) {
    for (const Program& p : stages) ops_.push_back(expand(p));
    for (std::size_t s = 0; s < stages.size(); ++s) {
      meetings_.emplace_back();
      for (const Expanded& e : ops_[s])
        if (auto with = stages_of(stages[s], e.step->op); !with.empty()) meetings_[s].push_back({&e, std::move(with)});
    }
  }

  std::vector<Finding> run() {
    // A meeting that is possible stays possible, so meetings may be tried in any order.
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t s = 0; s < stages_.size(); ++s)
        while (next_[s] < meetings_[s].size() && try_meeting(s)) moved = true;
    }
    std::vector<Finding> findings;
    for (std::size_t s = 0; s < stages_.size(); ++s)
      if (next_[s] < meetings_[s].size()) findings.push_back({text(s)});
    return findings;
  }

 private:
  const Meeting* waiting(int stage) const {
    const auto s = static_cast<std::size_t>(stage);
    return next_[s] < meetings_[s].size() ? &meetings_[s][next_[s]] : nullptr;
  }

  bool try_meeting(std::size_t s) {
    const Meeting& mine = meetings_[s][next_[s]];
    for (const int other : mine.stages) {
      if (static_cast<std::size_t>(other) == s) continue;
      const Meeting* theirs = waiting(other);
      if (!theirs || theirs->stages != mine.stages || !meet(*mine.op, *theirs->op)) return false;
    }
    for (const int stage : mine.stages) ++next_[static_cast<std::size_t>(stage)];
    return true;
  }

  std::string text(std::size_t s) const {
    const Meeting& m = meetings_[s][next_[s]];
    std::string with;
    for (const int other : m.stages)
      if (static_cast<std::size_t>(other) != s) with += fmt::format("{}{}", with.empty() ? "" : ", ", other);
    const Program& p = stages_[s];
    return fmt::format("stage {}: {} waits for stage {}, which never reaches the matching op", s, text_of(p, *m.op),
                       with);
  }

  const std::vector<Program>& stages_;
  std::vector<std::vector<Expanded>> ops_;
  std::vector<std::vector<Meeting>> meetings_;
  std::vector<std::size_t> next_;
};

}  // namespace

std::vector<Finding> verify_world(const std::vector<Program>& stages) {
  std::vector<Finding> findings;
  const auto ranks = [](const Program& p) { return p.grid.sizes[mesh::Axis::kPp]; };
  for (std::size_t s = 0; s < stages.size(); ++s)
    if (ranks(stages[s]) != static_cast<int>(stages.size()) || stage_shown(stages[s]) != static_cast<int>(s))
      findings.push_back({fmt::format("program {} of {} is of stage {} of {}", s, stages.size(), stage_shown(stages[s]),
                                      ranks(stages[s]))});
  const auto layout = [](const Program& p) {
    Traits shared = inferred_traits(p);
    shared.tile = 0;                     // set only on the stage with the head
    shared.offload.activations = false;  // activations of the last layer stay on the device
    return shared;
  };
  const Traits first = stages.empty() ? Traits{} : layout(stages.front());
  for (const Program& p : stages)
    if (!(p.arch == stages.front().arch) || !(layout(p) == first))
      findings.push_back({fmt::format("stage {} is of another model or layout", stage_shown(p))});
  if (!findings.empty()) return findings;
  return World(stages).run();
}

}  // namespace molen::program
