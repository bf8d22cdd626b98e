// What to compute again in backward so that a step fits a budget of memory: the cheapest of a ladder of choices, by the
// memory plan of each.
#pragma once

#include <vector>

#include "arch/architecture.h"
#include "program/program.h"
#include "program/recompute.h"
#include "program/schedule.h"

namespace molen::plan {

struct RecomputeChoice {
  program::Recompute recompute;
  Flops again;    // that one step computes a second time: of a rank, or of a rank of each pipeline stage together
  Bytes moved;    // memory traffic of that
  Bytes peak{0};  // of the memory plan, of the stage that needs most; 0 until it is made
};

// The ladder, cheapest first (FLOPs of a step, then bytes): nothing; the activation; attention; both; with the product
// before the activation (norm_up), and the one before attention (norm_qkv), with and without attention; all but
// out_projection; everything in every k-th layer, for each k that gives another number of layers; everything.
// `setting` says all but the recompute; `file` is the pipeline's schedule where it says kFile.
std::vector<RecomputeChoice> recompute_ladder(const arch::Architecture& arch, const program::Setting& setting,
                                              const program::Schedule* file = nullptr);

// The first rung whose plan's peak is at most `budget`. Throws UsageError with the smallest peak of all where none is.
RecomputeChoice recompute_within(const arch::Architecture& arch, const program::Setting& setting, Bytes budget,
                                 const program::Schedule* file = nullptr);

}  // namespace molen::plan
