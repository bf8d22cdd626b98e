// The cost of attention between some queries and some keys, where context ranks share each sequence
// (arch/context_parallel.h).
#pragma once

#include <cstdint>
#include <span>

#include "arch/parts.h"
#include "base/position_run.h"

namespace molen::program {

// Attention of the rows at `queries` over the rows at `keys` (model/context.h), as one op. Scratch is exact on a CPU.
// Document masks, whose work depends on the data, only reduce the cost.
struct ContextCall {
  std::span<const PositionRun> queries, keys;
  // Adds to the output of earlier keys (forward), or to the gradient of queries from earlier keys (backward).
  bool adds = false;
  bool wide = false;  // o, d_q and d_k|d_v are in fp32 when the compute dtype is narrower
};
arch::PartCost context_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                      const ContextCall& call);

// Cost of attention of one context rank, of `ranks`, over the keys of all: as one op over gathered keys, which makes
// outputs narrower than fp32 in scratch; and as step `step` of a ring, -1: all steps. The zig-zag gives every rank the
// same work in each step.
arch::PartCost gathered_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                       std::int64_t sequence, int ranks);
arch::PartCost ring_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                   std::int64_t sequence, int ranks, std::int64_t step);

}  // namespace molen::program
