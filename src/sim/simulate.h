// The simulator: the other consumer of a step program. Ops start as exec starts them (list order on their stream, after
// what they wait for) and take what the cost model says, the longer the more threads share the cores meanwhile.
#pragma once

#include <optional>
#include <string>

#include "program/timeline.h"
#include "sim/costs.h"

namespace molen::sim {

// Why programs of a setting cannot be simulated yet, and the key that asks for it.
struct Unsimulated {
  std::string key, why;
};
std::optional<Unsimulated> unsimulated(const program::Setting& setting);

// Timeline of one rank, whose peers run the same program at the same pace. Throws UsageError for what is unsimulated
// and for an op whose kind was not measured, Error for ops that wait for each other.
program::Timeline simulate(const program::Program& program, const std::vector<program::Expanded>& ops,
                           const Costs& costs);

// The same with the work of each op given: seconds on cores of its own, finite and not negative.
program::Timeline simulate(const std::vector<program::Expanded>& ops, std::vector<double> work, const Sharing& sharing);

}  // namespace molen::sim
