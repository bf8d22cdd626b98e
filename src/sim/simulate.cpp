#include "sim/simulate.h"

#include <algorithm>
#include <array>
#include <map>

namespace molen::sim {

program::Timeline simulate(const program::Program& program, const std::vector<program::Expanded>& ops,
                           const CostModel& costs) {
  program::Timeline timeline;
  timeline.ops.resize(ops.size());
  std::array<double, program::kNumStreams> free{};
  std::map<const program::Step*, double> cost;  // instances of a body share their steps
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const program::Step& step = *ops[i].step;
    auto [found, fresh] = cost.try_emplace(&step, 0.0);
    if (fresh) found->second = costs.seconds(program, step);
    double start = free[static_cast<std::size_t>(step.stream)];
    for (const int a : ops[i].after) start = std::max(start, timeline.ops[static_cast<std::size_t>(a)].end_s);
    timeline.ops[i] = {start, start + found->second};
    free[static_cast<std::size_t>(step.stream)] = timeline.ops[i].end_s;
  }
  timeline.total_s = *std::max_element(free.begin(), free.end());
  return timeline;
}

}  // namespace molen::sim
