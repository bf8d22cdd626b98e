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
};

// The sharding strategies by the names of parallel.sharding, and "ZERO1" for parallel.zero = 1.
const std::vector<std::string>& strategies();

// Every layout over exactly `ranks` ranks that starts from `base` (model sizes, batch, types): each strategy, for the
// hybrid ones every division into groups of more than one rank; each times the tensor degrees that fit the model, with
// and without sequence parallelism; each without recompute, with full recompute, and with some parts of every second
// layer recomputed, in micro-batches of base.micro_batch sequences and of one. `wanted`: strategies to keep, all where
// empty. Throws UsageError for an unknown one, and where none fits.
std::vector<Layout> layouts_of(const arch::Architecture& arch, const program::Setting& base, int ranks,
                               const std::vector<std::string>& wanted);

}  // namespace molen::plan
