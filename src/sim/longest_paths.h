// The times of ops that all run at full speed: one walk over the ops of all stages.
#pragma once

#include <optional>
#include <vector>

#include "program/ir/stages.h"
#include "program/ir/timeline.h"

namespace molen::sim {

// Returns the timeline of each stage from the work of each op, in seconds. No op slows another one down, so an op
// starts as soon as its stream is free, the ops that it waits for have ended, and, where communicators take turns
// (`one_at_a_time`), the op that communicates before it has ended. The time is linear in ops and edges. Returns nothing
// when the list orders of the stages do not allow one walk; `simulate` then follows the streams instead.
std::optional<std::vector<program::Timeline>> longest_paths(const program::Stages& stages,
                                                            const std::vector<std::vector<double>>& work,
                                                            bool one_at_a_time);

}  // namespace molen::sim
