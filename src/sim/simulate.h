// The simulator: the other consumer of a step program. Ops start as exec starts them (list order on their stream, after
// what they wait for) and take what the cost model says.
#pragma once

#include "program/timeline.h"
#include "sim/cost_model.h"

namespace molen::sim {

// Timeline of one rank, whose peers run the same program at the same pace.
program::Timeline simulate(const program::Program& program, const std::vector<program::Expanded>& ops,
                           const CostModel& costs);

}  // namespace molen::sim
