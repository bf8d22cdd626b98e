// Finds how long a rank waited for others in each of its ops that communicate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

// How long this rank of a pipeline waited for other stages, step by step, by the rule of set_waiting. It needs the
// program of this stage alone, and each step costs one gather of as many numbers as the stages have messages.
class StageWaiting {
 public:
  // `ops` is the expansion of `program`. `world` has the ranks of its mesh and moves host memory. Collective over
  // `world`. Throws Error, on all ranks, when the stages differ in the number of ops that they run together.
  StageWaiting(const program::Program& program, const std::vector<program::Expanded>& ops, comm::Communicator& world);
  // Sets OpTime::waited_s of the messages between stages and of the collectives between stages, and of no other op.
  // Collective over the ranks that differ from this one in their stage only.
  void set(program::Timeline& timeline) const;

 private:
  struct Exchange {
    std::size_t op = 0;                // of this rank
    std::vector<std::size_t> members;  // its places in the gathered seconds, on all stages that take part
  };
  std::unique_ptr<comm::Communicator> pipeline_;
  std::vector<std::int64_t> counts_;  // by stage: the number of its exchanges
  std::vector<Exchange> exchanges_;
};

}  // namespace molen::launch
