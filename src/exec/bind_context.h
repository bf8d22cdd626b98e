// Kernels of context ranks: each rank has some positions of every sequence (arch/context_parallel.h).
#pragma once

#include <vector>

#include "base/position_run.h"
#include "exec/operands.h"

namespace molen::exec {

// Returns the positions that a rank has of each sequence of `sequence` tokens. The result is empty when the rank has
// all positions.
std::vector<PositionRun> positions_of(const program::Grid& grid, std::int64_t sequence,
                                      const mesh::PerAxis& coordinates);

// Loads whole sequences and keeps the ids and labels at the rank's positions.
Kernel bind_load_part(const BindContext& context, const program::Step& step);
// bind_gather_keys gathers every rank's keys and values on all ranks; bind_scatter_keys sums their gradients and
// returns each sum to the rank that owns the keys.
Kernel bind_gather_keys(const BindContext& context, const program::Step& step, comm::Communicator* group);
Kernel bind_scatter_keys(const BindContext& context, const program::Step& step, comm::Communicator* group);
// Sends keys and values, or their gradients, to the next rank of the ring.
Kernel bind_ring_exchange(const BindContext& context, const program::Step& step, comm::Communicator* ring);

}  // namespace molen::exec
