// Chooses what backward computes again so that a step fits a memory budget: the cheapest of a ladder of choices, by the
// memory plan of each.
#pragma once

#include <vector>

#include "arch/architecture.h"
#include "program/build/recompute.h"
#include "program/ir/program.h"
#include "program/parts/part.h"
#include "program/schedule/schedule.h"

namespace molen::plan {

struct RecomputeChoice {
  program::Recompute recompute;
  Flops again;    // that one step computes again: of a rank, or of one rank of each pipeline stage together
  Bytes moved;    // memory traffic of the recomputation
  Bytes peak{0};  // of the memory plan of the stage that needs most; 0 until it is planned
};

// Returns the parts of the model in one block of a layer that can be computed again, in the order of the model, as
// runs: parts that follow each other with no part between them whose result is always kept. So the shared experts of a
// sparse layer are one run, and the others are another. Layers that differ have runs of their own.
std::vector<std::vector<arch::Part>> again_in(const arch::Architecture& arch, program::Standing block);

// Returns the ladder, cheapest first (FLOPs of a step, then bytes): nothing; parts; everything in every k-th layer, for
// each k that gives another number of layers; everything. Parts are any of the attention block's but the last
// (norm_qkv, qk_norm, attention), with the end of each run of the MLP block: none; the last part (activation,
// expert_activation); the last two (norm_up, expert_up); and so on. `setting` gives all but the recompute; `file` is
// the pipeline's schedule when the setting says kFile.
std::vector<RecomputeChoice> recompute_ladder(const arch::Architecture& arch, const program::Setting& setting,
                                              const program::Schedule* file = nullptr);

// Returns the first rung whose planned peak is at most `budget`. Throws UsageError with the smallest peak when there is
// none.
RecomputeChoice recompute_within(const arch::Architecture& arch, const program::Setting& setting, Bytes budget,
                                 const program::Schedule* file = nullptr);

}  // namespace molen::plan
