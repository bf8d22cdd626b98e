// What to compute again in backward so that a step fits a budget of memory: the cheapest of a ladder of choices, by the
// memory plan of each.
#pragma once

#include <vector>

#include "arch/architecture.h"
#include "program/program.h"
#include "program/recompute.h"

namespace molen::plan {

struct RecomputeChoice {
  program::Recompute recompute;
  Flops again;    // that one step of a rank computes a second time
  Bytes moved;    // memory traffic of that
  Bytes peak{0};  // of the memory plan; 0 until it is made
};

// The ladder, cheapest first (FLOPs of a step, then bytes): nothing; the activation; attention; both; with the product
// before the activation (norm_up), and the one before attention (norm_qkv), with and without attention; all but
// out_projection; everything in every k-th layer, for each k that gives another number of layers; everything.
// `setting` says all but the recompute.
std::vector<RecomputeChoice> recompute_ladder(const arch::Architecture& arch, const program::Setting& setting);

// The first rung whose plan's peak is at most `budget`. Throws UsageError with the smallest peak of all where none is.
RecomputeChoice recompute_within(const arch::Architecture& arch, const program::Setting& setting, Bytes budget);

}  // namespace molen::plan
