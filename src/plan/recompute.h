// Chooses what backward computes again so that a step fits a memory budget: the cheapest of a ladder of choices, by the
// memory plan of each.
#pragma once

#include <vector>

#include "arch/architecture.h"
#include "program/build/recompute.h"
#include "program/ir/program.h"
#include "program/schedule/schedule.h"

namespace molen::plan {

struct RecomputeChoice {
  program::Recompute recompute;
  Flops again;    // that one step computes again: of a rank, or of one rank of each pipeline stage together
  Bytes moved;    // memory traffic of the recomputation
  Bytes peak{0};  // of the memory plan of the stage that needs most; 0 until it is planned
};

// Returns the ladder, cheapest first (FLOPs of a step, then bytes): nothing; the activation; attention; both; the
// activation with the product before it (norm_up), with and without attention; the same with the product before
// attention (norm_qkv), with attention (all but out_projection) and without; everything in every k-th layer, for each k
// that gives another number of layers; everything. Models with norms of queries and keys have more rungs, with these
// norms beside the others. `setting` gives all but the recompute; `file` is the pipeline's
// schedule when the setting says kFile.
std::vector<RecomputeChoice> recompute_ladder(const arch::Architecture& arch, const program::Setting& setting,
                                              const program::Schedule* file = nullptr);

// Returns the first rung whose planned peak is at most `budget`. Throws UsageError with the smallest peak when there is
// none.
RecomputeChoice recompute_within(const arch::Architecture& arch, const program::Setting& setting, Bytes budget,
                                 const program::Schedule* file = nullptr);

}  // namespace molen::plan
