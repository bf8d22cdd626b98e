// The cost of attention between some queries and some keys, for context ranks that share each sequence
// (arch/context_parallel.h).
#pragma once

#include <cstdint>
#include <span>

#include "arch/parts.h"
#include "base/position_run.h"

namespace molen::program {

// Attention of the rows at `queries` over the rows at `keys` (model/context.h), as one op. The scratch is exact on a
// CPU. Document masks only reduce the cost; by how much depends on the data, so they are not counted.
struct ContextCall {
  std::span<const PositionRun> queries, keys;
  // The call adds to the output over earlier keys (forward), or to the gradient of queries from earlier keys
  // (backward).
  bool adds = false;
  // If the compute dtype is narrower than fp32: o in forward and d_q in backward are in fp32, and so are d_k|d_v unless
  // they are made in scratch and rounded.
  bool wide = false, keys_rounded = false;
};
arch::PartCost context_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                      const ContextCall& call);

// Return the cost of attention of one of `ranks` context ranks over the keys of all these ranks. The first is for one
// op over gathered keys, which makes outputs in scratch if they are narrower than fp32. The second is for step `step`
// of a ring, or for all its steps if `step` is -1. The zig-zag gives every rank the same work in each step.
arch::PartCost gathered_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                       std::int64_t sequence, int ranks);
arch::PartCost ring_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                   std::int64_t sequence, int ranks, std::int64_t step);

}  // namespace molen::program
