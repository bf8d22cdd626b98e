// Chooses the parts that backward computes again so that a step fits a memory budget. The choices form a ladder, of
// which the cheapest choice whose memory plan fits is taken.
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
  Flops again;    // FLOPs that one step computes again: on one rank, or in total on one rank of each pipeline stage
  Bytes moved;    // memory traffic of the recomputation
  Bytes peak{0};  // peak of the memory plan of the stage that needs most; 0 until it is planned
};

// Returns the parts in one block of a layer that can be computed again, in the order of the model, as runs. A run is a
// sequence of parts without a part in between whose result is always kept. For example, the shared experts of a sparse
// layer are one run, and the other experts are another. Layers that differ have runs of their own.
std::vector<std::vector<arch::Part>> again_in(const arch::Architecture& arch, program::Standing block);

// Returns the ladder, cheapest first (by FLOPs of a step, then by bytes). The choices are: nothing; some parts;
// everything in every k-th layer, for each k that gives another number of layers; everything. A choice of parts
// combines any parts of the attention block but the last (norm_qkv, qk_norm, attention) with the end of each run of the
// MLP block: no part, the last part (activation, expert_activation), the last two (norm_up, expert_up), and so on.
// `setting` gives everything but the recompute. `file` is the pipeline's schedule when the setting says kFile.
std::vector<RecomputeChoice> recompute_ladder(const arch::Architecture& arch, const program::Setting& setting,
                                              const program::Schedule* file = nullptr);

// Returns the first choice of the ladder whose planned peak is at most `budget`. Throws UsageError with the smallest
// peak when there is none.
RecomputeChoice recompute_within(const arch::Architecture& arch, const program::Setting& setting, Bytes budget,
                                 const program::Schedule* file = nullptr);

}  // namespace molen::plan
