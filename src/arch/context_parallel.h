// Sizes under context parallelism: the positions of a sequence on each of c context ranks, and the pairs of queries and
// keys that attention computes. The sequence is cut into 2c pieces, and rank r has pieces r and 2c-1-r (the
// zig-zag of Llama 3, arXiv 2407.21783, section 3.3.2). An early piece attends to few positions and a late one to many,
// so that every rank has nearly the same causal work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/position_run.h"

namespace molen::arch {

// Throws UsageError naming parallel.context when a sequence has fewer than 2 positions per rank.
void validate_context_parallel(std::int64_t sequence, int ranks);

// Returns the positions of a rank, ascending: two runs, or one if its pieces are neighbours. The lengths of two pieces
// differ by at most one position, and so do the numbers of positions of two ranks.
std::vector<PositionRun> context_runs(std::int64_t sequence, int rank, int ranks);
// Returns the number of a rank's positions: sequence / ranks, rounded down on some ranks and up on the others.
std::int64_t context_rows(std::int64_t sequence, int rank, int ranks);

// Counts the pairs (query, key) of one sequence whose key is before the query, and half of the pairs at the same
// position. All S positions together give S^2/2, which is the count in `model_flops`.
double causal_pairs(std::span<const PositionRun> queries, std::span<const PositionRun> keys);

}  // namespace molen::arch
