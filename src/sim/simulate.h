// The simulator, which takes a step program as exec does. An op starts when exec would start it: in list order on its
// stream, after the ops that it waits for. It takes the time that the cost model gives, and longer when more threads
// share the cores meanwhile.
#pragma once

#include <optional>
#include <string>

#include "program/ir/timeline.h"
#include "sim/costs.h"

namespace molen::sim {

// The reason why programs of a setting cannot be simulated yet, and the configuration key that asks for such a setting.
struct Unsimulated {
  std::string key, why;
};
std::optional<Unsimulated> unsimulated(const program::Setting& setting);

// Returns the timeline of one rank, whose peers run the same program at the same pace. Throws UsageError for an
// unsimulated setting and for an op whose kind was not measured, and Error for ops that wait for each other.
program::Timeline simulate(const program::Program& program, const std::vector<program::Expanded>& ops,
                           const Costs& costs);

// Does the same from the work of each op: its seconds on cores of its own, finite and not negative.
program::Timeline simulate(const std::vector<program::Expanded>& ops, std::vector<double> work, const Sharing& sharing);

}  // namespace molen::sim
