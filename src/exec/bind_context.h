// What context ranks do otherwise: each has some positions of every sequence (arch/context_parallel.h).
#pragma once

#include <vector>

#include "base/position_run.h"
#include "exec/operands.h"

namespace molen::exec {

// The positions of each sequence that a rank has; empty where it has all.
std::vector<PositionRun> positions_of(const program::Setting& setting, const mesh::PerAxis& coordinates);

// Of whole sequences, the ids and labels at the rank's positions.
Kernel bind_load_part(const BindContext& context, const program::Step& step);
// Keys and values of every rank on each, and the sums of their gradients back to whose they are.
Kernel bind_gather_keys(const BindContext& context, const program::Step& step, comm::Communicator* group);
Kernel bind_scatter_keys(const BindContext& context, const program::Step& step, comm::Communicator* group);
// Keys and values, or their gradients, to the next rank of the ring.
Kernel bind_shift(const BindContext& context, const program::Step& step, comm::Communicator* ring);
// Attention over all ranks' keys and values, at once or a step of the ring.
Kernel bind_gathered_attention(const Operands& operands, const Common& common, const program::Compute& op,
                               const program::Setting& setting);
Kernel bind_ring_attention(const Operands& operands, const Common& common, const program::Compute& op,
                           const program::Setting& setting, const mesh::PerAxis& coordinates);

}  // namespace molen::exec
