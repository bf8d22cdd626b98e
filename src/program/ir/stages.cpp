#include "program/ir/stages.h"

#include <algorithm>
#include <map>
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

Stages::Stages(std::vector<Program> programs) : programs_(std::move(programs)) {
  for (const Program& p : programs_) {
    ops_.push_back(expand(p));
    meeting_of_.emplace_back(ops_.back().size(), -1);
  }
  if (programs_.size() > 1) find_meetings();
}

// The stages of a group run their common ops in one order, so the n-th such op of one stage meets the n-th of another.
void Stages::find_meetings() {
  struct Common {
    std::vector<int> meetings;          // in their order
    std::vector<std::size_t> of_stage;  // how many of them each stage has been seen to join
  };
  std::map<std::vector<int>, Common> groups;
  for (std::size_t s = 0; s < programs_.size(); ++s)
    for (std::size_t i = 0; i < ops_[s].size(); ++i) {
      const std::vector<int> with = stages_of(programs_[s], ops_[s][i].step->op);
      if (with.empty()) continue;
      Common& common = groups[with];
      common.of_stage.resize(programs_.size(), 0);
      const std::size_t n = common.of_stage[s]++;
      if (n == common.meetings.size()) {
        common.meetings.push_back(static_cast<int>(meetings_.size()));
        meetings_.emplace_back();
      }
      meeting_of_[s][i] = common.meetings[n];
      meetings_[static_cast<std::size_t>(common.meetings[n])].push_back({static_cast<int>(s), i});
    }
  for (const auto& [with, common] : groups)
    for (const int s : with)
      MOLEN_CHECK(common.of_stage.at(static_cast<std::size_t>(s)) == common.meetings.size(),
                  "stage {} has {} of the {} ops that it runs together with other stages", s,
                  common.of_stage[static_cast<std::size_t>(s)], common.meetings.size());
}

}  // namespace molen::program
