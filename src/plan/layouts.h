// The layouts that a number of ranks can run, by name: what `molen verify` goes through.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace molen::plan {

struct Layout {
  std::string name;      // "FULL_SHARD", "HYBRID_SHARD 2 x 4, optimizer over all, recompute, micro 1"
  std::string strategy;  // its first word
  program::Setting setting;
  std::vector<std::string> choices;  // one for each thing that layouts differ in: sharding, tensor ranks, stages, ...
};

// The sharding strategies by the names of parallel.sharding, and "ZERO1" for parallel.zero = 1.
const std::vector<std::string>& strategies();

// Every layout over exactly `ranks` ranks that starts from `base` (model sizes, batch, types): each strategy, for the
// hybrid ones every division into groups of more than one rank; each times the tensor degrees that fit the model, with
// and without sequence parallelism, and the numbers of pipeline stages that it has layers for, with every schedule
// that is built; each without recompute, with full recompute, and with some parts of every second
// layer recomputed, with everything on the device and with what base.offload puts on the host where that can be
// honoured, in micro-batches of base.micro_batch sequences and in one of all that a rank has (or of one sequence, where
// that is the same); `one_sequence`: of one, too, which needs least memory. `wanted`: strategies to keep, all where
// empty. Throws UsageError for an unknown one, and where none fits.
std::vector<Layout> layouts_of(const arch::Architecture& arch, const program::Setting& base, int ranks,
                               const std::vector<std::string>& wanted, bool one_sequence = false);

// The layout that a setting is, and what it has chosen.
Layout layout_of(const program::Setting& setting);
std::vector<std::string> choices_of(const program::Setting& setting);

// Whether each group of ranks along some axes lies within a node of so many, which follow each other.
bool share_node(const program::Setting& setting, mesh::Axes axes, int local_ranks);

// Those whose tensor ranks, which talk most, share nodes of so many ranks.
std::vector<Layout> within_nodes(std::vector<Layout> layouts, int local_ranks);

// Few of them, in their order, such that any two choices that stand together in some layout stand together in one of
// these (pairwise covering; greedily, so not always as few as there could be).
std::vector<Layout> covering_pairs(const std::vector<Layout>& layouts);

}  // namespace molen::plan
