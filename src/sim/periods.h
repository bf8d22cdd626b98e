// Steps whose micro-batches repeat each other in time. A step is linear in the max-plus algebra: each op starts at the
// latest of some ends and takes its time. So once blocks of instances come back later by one and the same time, all
// further blocks do (Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity", 1992, section 3.7).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "program/ir/repeats.h"
#include "program/ir/stages.h"
#include "program/ir/timeline.h"

namespace molen::sim {

// The blocks of all stages: block k of one stage belongs to block k of any other.
struct Blocks {
  std::vector<program::Repeats> of_stage;  // as many blocks in each
  std::size_t count() const { return of_stage.front().blocks; }
};

// Returns the blocks that the schedules of all stages have in common, or nothing where there are none.
std::optional<Blocks> blocks_of(const std::vector<program::Program>& stages);

// The fewest blocks by which `period_of` can tell that blocks come back after `every` blocks.
std::size_t fewest_blocks(std::size_t every);

// A proof that a step with more blocks takes `seconds` longer for each `every` blocks, and the ops of `every` blocks of
// each stage without which the step would be as much shorter.
struct Period {
  double seconds = 0.0;
  std::vector<program::Stages::OpRange> ops;
};

// Returns the period of blocks that come back after `every` blocks, or nothing where the timelines do not prove one.
// `blocks` are those of the stages, and the timelines those of ops that do not slow each other down.
//
// The proof looks at the last blocks. In them, each op is later than the same op of `every` blocks before by one and
// the same time, but for rounding. From there to the end of the step, each op starts when an op of these blocks or of
// later ones ends, and meets only such ops. So the times of a step with more blocks follow: the blocks between come
// back at equal intervals, and the end of the step moves by as much. Max-plus maps do not expand errors, so rounding
// adds up at most.
std::optional<Period> period_of(const program::Stages& stages, const Blocks& blocks, std::size_t every,
                                const std::vector<program::Timeline>& timelines, bool one_at_a_time);

}  // namespace molen::sim
