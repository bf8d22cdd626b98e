// Sizes under context parallelism: the positions of a sequence on each of c context ranks, and the cost of attention
// between some queries and some keys. The sequence is cut into 2c chunks, and rank r has chunks r and 2c-1-r (the
// zig-zag of Llama 3, arXiv 2407.21783, section 3.3.2). An early chunk attends to few positions and a late one to many,
// so that every rank has nearly the same causal work.
#pragma once

#include <span>
#include <vector>

#include "arch/parts.h"
#include "base/position_run.h"

namespace molen::arch {

// Throws UsageError naming parallel.context when a sequence has fewer than 2 positions per rank.
void validate_context_parallel(std::int64_t sequence, int ranks);

// Returns the positions of a rank, ascending: two runs, or one if its chunks are neighbours. The lengths of chunks
// differ by at most one position, and so do those of ranks.
std::vector<PositionRun> context_runs(std::int64_t sequence, int rank, int ranks);
// Returns the number of these positions: sequence / ranks, rounded down on some ranks and up on the others.
std::int64_t context_rows(std::int64_t sequence, int rank, int ranks);

// Counts the pairs (query, key) of one sequence with the key before the query, and half of the pairs at the same
// position: all S positions give S^2/2, the count in `model_flops`.
double causal_pairs(std::span<const PositionRun> queries, std::span<const PositionRun> keys);

// Attention of the rows at `queries` over the rows at `keys` (model/context.h), as one op. Scratch is exact on a CPU.
// Document masks, whose work depends on the data, only reduce the cost.
struct ContextCall {
  std::span<const PositionRun> queries, keys;
  // Adds to the output of earlier keys (forward), or to the gradient of queries from earlier keys (backward).
  bool adds = false;
  bool wide = false;  // o, d_q and d_k|d_v are in fp32 when the compute dtype is narrower
};
PartCost context_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, const ContextCall& call);

// Cost of attention of one context rank, of `ranks`, over the keys of all: as one op over gathered keys, which makes
// outputs narrower than fp32 in scratch; and as step `step` of a ring, -1: all steps. The zig-zag gives every rank the
// same work in each step.
PartCost gathered_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, std::int64_t sequence,
                                 int ranks);
PartCost ring_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, std::int64_t sequence,
                             int ranks, std::int64_t step);

}  // namespace molen::arch
