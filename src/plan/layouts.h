// The named layouts that a number of ranks can run; `molen verify` checks all of them.
#pragma once

#include <string>
#include <vector>

#include "program/ir/program.h"

namespace molen::plan {

struct Layout {
  std::string name;      // "FULL_SHARD", "HYBRID_SHARD 2 x 4, optimizer over all, recompute, micro 1"
  std::string strategy;  // the first word of the name
  program::Setting setting;
  std::vector<std::string> choices;  // one choice for each dimension of layouts: sharding, tensor ranks, stages, ...
};

// Returns the sharding strategies: the names of parallel.sharding, and "ZERO1" for parallel.zero = 1.
const std::vector<std::string>& strategies();

// Returns every layout over exactly `ranks` ranks that starts from `base` (model sizes, batch, types). The layouts are
// all combinations of:
//   - each strategy; for the hybrid ones, every division into groups of more than one rank
//   - the tensor degrees that fit the model, with and without sequence parallelism
//   - the numbers of context ranks that divide the sequences, with keys gathered and in a ring
//   - the numbers of expert ranks that divide the experts of a sparse model
//   - the numbers of pipeline stages that the model has layers for, with every schedule that is built
//   - no recompute, full recompute, and some parts recomputed in every second layer
//   - everything on the device, and base.offload if it can be honoured
//   - micro-batches of base.micro_batch sequences, and one of all sequences of a rank (or of one sequence, when the two
//     are the same); with `one_sequence` also micro-batches of one sequence, which need the least memory
// `wanted` lists the strategies to keep; empty keeps all. Throws UsageError for an unknown strategy, and when none
// fits.
std::vector<Layout> layouts_of(const arch::Architecture& arch, const program::Setting& base, int ranks,
                               const std::vector<std::string>& wanted, bool one_sequence = false);

// Returns the layout of a setting, and the choices that the setting makes.
Layout layout_of(const program::Setting& setting);
std::vector<std::string> choices_of(const program::Setting& setting);

// Returns whether each group of ranks along some axes lies within one node; a node has `local_ranks` consecutive ranks.
bool share_node(const program::Setting& setting, mesh::Axes axes, int local_ranks);

// Returns the layouts whose tensor ranks share a node of `local_ranks` ranks. Tensor ranks communicate most.
std::vector<Layout> within_nodes(std::vector<Layout> layouts, int local_ranks);

// Returns a small selection in the given order: any two choices that occur together in some layout occur together in a
// selected one (pairwise covering; greedy, so the selection is not always the smallest).
std::vector<Layout> covering_pairs(const std::vector<Layout>& layouts);

}  // namespace molen::plan
