// Context parallelism as sizes: which positions of a sequence each of c context ranks has, and what attention between
// some queries and some keys costs. The sequence is cut into 2c chunks and rank r has chunks r and 2c-1-r (the zig-zag
// of Llama 3, arXiv 2407.21783, section 3.3.2): an early chunk that sees little and a late one that sees much, so that
// every rank has nearly the same causal work.
#pragma once

#include <span>
#include <vector>

#include "arch/parts.h"
#include "base/position_run.h"

namespace molen::arch {

// Throws UsageError naming parallel.context where a sequence has fewer than 2 positions for each rank.
void validate_context_parallel(std::int64_t sequence, int ranks);

// The positions of a rank, rising: two runs, or one where its chunks are neighbours. Chunks differ by at most one
// position, and so do ranks.
std::vector<PositionRun> context_runs(std::int64_t sequence, int rank, int ranks);
// Their number: sequence / ranks, rounded down on some ranks and up on the others.
std::int64_t context_rows(std::int64_t sequence, int rank, int ranks);

// Pairs (query, key) of one sequence with key before query, and half of those at the same position: all of S positions
// make S^2/2, which is how `model_flops` counts.
double causal_pairs(std::span<const PositionRun> queries, std::span<const PositionRun> keys);

// Attention of the rows at `queries` over the rows at `keys` (model/context.h), as one op. Scratch is exact on a CPU.
// Document masks, whose work depends on the data, only make less of it.
struct ContextCall {
  std::span<const PositionRun> queries, keys;
  bool adds =
      false;  // to the output of earlier keys (forward), to the gradient of queries from earlier keys (backward)
  bool wide = false;  // o, d_q and d_k|d_v are in fp32 where the compute dtype is narrower
};
PartCost context_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, const ContextCall& call);

// Attention of one of so many context ranks over the keys of all, call after call: as one op (of gathered keys, outputs
// that are narrower than fp32 being made in scratch), and as step `step` of a ring, -1: all steps. The zig-zag gives
// every rank the same work in each.
PartCost gathered_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, std::int64_t sequence,
                                 int ranks);
PartCost ring_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, std::int64_t sequence,
                             int ranks, std::int64_t step);

}  // namespace molen::arch
