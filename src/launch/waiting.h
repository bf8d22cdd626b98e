// Finds how long a rank waited for others in each of its ops that communicate.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "program/ir/program.h"
#include "program/ir/stages.h"
#include "program/ir/timeline.h"

namespace molen::launch {

// By stage, for each op of the stage that communicates, in the order of its program: the shortest seconds on any rank
// of the stage that takes part in it.
using ShortestDurations = std::vector<std::vector<double>>;

// Reduces the durations of each op over the ranks of a stage that run it together, so that no rank holds those of all
// ranks: without a pipeline, a rank has as many numbers as ops. Of a pipeline, the stages of rank 0's group along it
// then exchange theirs; all other ranks of a pipeline get nothing. Collective over `world`, which moves host memory.
ShortestDurations shortest_durations(const program::Grid& grid, const std::vector<program::Expanded>& ops,
                                     const program::Timeline& timeline, comm::Communicator& world);

// Sets, for each op of a rank's timeline that communicates, how long the rank waited in it for others
// (OpTime::waited_s). That is its duration here minus its shortest duration on any rank that takes part, because the
// last rank to arrive waits for nobody. The ranks' clocks need not agree. `durations` has all stages.
void set_waiting(const program::Stages& stages, int rank, const ShortestDurations& durations,
                 program::Timeline& timeline);

}  // namespace molen::launch
