// Tensor parallelism as sizes: what one of `ranks` tensor ranks holds and computes of a model (Shoeybi et al. 2019,
// "Megatron-LM", section 3). Attention is cut by heads, the MLP by columns and then rows, embedding and head by rows of
// the vocabulary; norms, learned positions and the biases of row-cut products are on every rank.
//
// Query heads are dealt in order. Key and value heads go with them where `ranks` divides their number; else every rank
// holds all of them ("replicated") and computes those that its query heads need, one copy for each run of query heads
// that share one.
#pragma once

#include <cstdint>
#include <vector>

#include "arch/architecture.h"
#include "arch/parameters.h"

namespace molen::arch {

// Throws UsageError naming parallel.tensor where heads or FFN do not divide, or the vocabulary has too few rows; the
// message lists the degrees that fit.
void validate_tensor_parallel(const Architecture& arch, int ranks);
std::vector<int> tensor_degrees(const Architecture& arch, int most);  // that fit, ascending

// Sizes of what one rank computes: heads, KV heads, FFN, and the vocabulary of the rank with the most rows.
Architecture tensor_local(const Architecture& arch, int ranks);
// Whether every rank holds all key and value heads.
bool kv_replicated(const Architecture& arch, int ranks);
// Global number of each KV head that `rank` computes with, in the order of its query heads.
std::vector<std::int64_t> kv_heads_of(const Architecture& arch, int rank, int ranks);

// The range [first, second) of `count` things that rank `rank` of `ranks` has: as even as can be, rank 0's the longest.
std::pair<std::int64_t, std::int64_t> even_range(std::int64_t count, int rank, int ranks);

// `parameters(arch)` with the shapes of one rank, the largest; ShardDim::kNone marks what all ranks hold alike.
std::vector<Parameter> tensor_local_parameters(const Architecture& arch, int ranks);

// What `rank` holds of a parameter, as a block of the whole (vectors are columns of height n): the block lies row by
// row at the start of the local parameter.
struct Block {
  std::int64_t first_row = 0, rows = 0, first_column = 0, columns = 0;
  std::int64_t all_columns = 0;  // of the whole parameter
};
Block block_of(const Parameter& whole, const Parameter& local, int rank, int ranks);

}  // namespace molen::arch
