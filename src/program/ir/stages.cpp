#include "program/ir/stages.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace molen::program {

int stage_shown(const Program& p) {
  return p.chunks.empty() ? 0 : p.chunks.front().global_stage;
}

std::vector<int> stages_of(const Program& p, const Op& op) {
  const int mine = stage_shown(p), last = p.grid.sizes[mesh::Axis::kPp] - 1;
  const auto over = [&](Axis axis) {
    std::vector<int> stages;
    if (axis == Axis::kEmbedding) stages = {0, last};
    if (axis == Axis::kPp)
      for (int s = 0; s <= last; ++s) stages.push_back(s);
    return stages;
  };
  return std::visit(
      [&](const auto& o) -> std::vector<int> {
        using O = std::decay_t<decltype(o)>;
        if constexpr (std::is_same_v<O, Send> || std::is_same_v<O, Receive>)
          return {std::min(mine, o.peer), std::max(mine, o.peer)};
        else if constexpr (requires { o.axis; })
          return over(o.axis);
        else
          return {};
      },
      op);
}

Stages::Stages(std::vector<Program> programs) : programs_(std::make_shared<std::vector<Program>>(std::move(programs))) {
  for (const Program& p : *programs_) {
    ops_.push_back(expand(p));
    meeting_of_.emplace_back(ops_.back().size(), -1);
  }
  if (size() > 1) find_meetings();
}

std::vector<Program> Stages::take_programs() && {
  MOLEN_CHECK(programs_.use_count() == 1, "other stages point into these programs");
  return std::move(*programs_);
}

Stages Stages::with_ops(std::vector<std::vector<Expanded>> ops) const {
  MOLEN_CHECK(ops.size() == size(), "ops of {} stages for {}", ops.size(), size());
  Stages others;
  others.programs_ = programs_;
  for (const auto& of_stage : ops) others.meeting_of_.emplace_back(of_stage.size(), -1);
  others.ops_ = std::move(ops);
  return others;
}

namespace {

// The ops that the same stages run together.
struct Common {
  std::vector<int> stages;
  std::vector<int> meetings;          // in their order
  std::vector<std::size_t> of_stage;  // how many of them each stage has been seen to join
};

// Returns, for each body and op of a program, the number of the stages that run it together; -1: none do.
std::vector<std::vector<int>> groups_in(const Program& p, std::size_t stages, std::vector<Common>& groups) {
  std::vector<std::vector<int>> of_step;
  for (const Body& body : p.bodies) {
    of_step.emplace_back();
    for (const Step& step : body.steps) {
      std::vector<int> with = stages_of(p, step.op);
      auto found = groups.end();
      if (!with.empty()) {
        found = std::find_if(groups.begin(), groups.end(), [&](const Common& c) { return c.stages == with; });
        if (found == groups.end())
          found = groups.insert(found, {std::move(with), {}, std::vector<std::size_t>(stages, 0)});
      }
      of_step.back().push_back(found == groups.end() ? -1 : static_cast<int>(found - groups.begin()));
    }
  }
  return of_step;
}

}  // namespace

// The stages of a group run their common ops in one order, so the n-th such op of one stage meets the n-th of another.
void Stages::find_meetings() {
  std::vector<Common> groups;
  for (std::size_t s = 0; s < size(); ++s) {
    const auto of_step = groups_in((*programs_)[s], size(), groups);
    for (std::size_t i = 0; i < ops_[s].size(); ++i) {
      const Expanded& op = ops_[s][i];
      const int group = of_step[static_cast<std::size_t>(op.body)][static_cast<std::size_t>(op.op)];
      if (group < 0) continue;
      Common& common = groups[static_cast<std::size_t>(group)];
      const std::size_t n = common.of_stage[s]++;
      if (n == common.meetings.size()) {
        common.meetings.push_back(static_cast<int>(meetings_.size()));
        meetings_.emplace_back();
      }
      meeting_of_[s][i] = common.meetings[n];
      meetings_[static_cast<std::size_t>(common.meetings[n])].push_back({static_cast<int>(s), i});
    }
  }
  for (const Common& common : groups)
    for (const int s : common.stages)
      MOLEN_CHECK(common.of_stage.at(static_cast<std::size_t>(s)) == common.meetings.size(),
                  "stage {} has {} of the {} ops that it runs together with other stages", s,
                  common.of_stage[static_cast<std::size_t>(s)], common.meetings.size());
}

}  // namespace molen::program
