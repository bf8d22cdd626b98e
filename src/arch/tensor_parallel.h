// Sizes under tensor parallelism: the part of a model that one of `ranks` tensor ranks holds and computes (Shoeybi et
// al. 2019, "Megatron-LM", section 3). Attention is split by heads, the MLP by columns and then rows, embedding and
// head by rows of the vocabulary. Norms, learned positions and the biases of row-split products are on every rank.
//
// Query heads are dealt to ranks in order. Key and value heads are dealt with them if `ranks` divides their number.
// Otherwise every rank holds all key and value heads ("replicated") and computes those that its query heads need, one
// copy for each run of query heads that share one.
#pragma once

#include <cstdint>
#include <vector>

#include "arch/architecture.h"
#include "arch/parameters.h"

namespace molen::arch {

// Throws UsageError naming parallel.tensor when `ranks` does not divide heads or FFN, or when the vocabulary has too
// few rows; the message lists the degrees that fit.
void validate_tensor_parallel(const Architecture& arch, int ranks);
std::vector<int> tensor_degrees(const Architecture& arch, int most);  // returns the degrees that fit, ascending

// Returns the sizes that one rank computes: heads, KV heads, FFN, and the vocabulary of the rank with the most rows.
Architecture tensor_local(const Architecture& arch, int ranks);
// Returns whether every rank holds all key and value heads.
bool kv_replicated(const Architecture& arch, int ranks);
// Returns the global number of each KV head that `rank` computes with, in the order of its query heads.
std::vector<std::int64_t> kv_heads_of(const Architecture& arch, int rank, int ranks);

// Returns the range [first, second) of `count` items on rank `rank` of `ranks`: the ranges are as even as possible, and
// rank 0's is the longest.
std::pair<std::int64_t, std::int64_t> even_range(std::int64_t count, int rank, int ranks);

// Returns `parameters(arch)` with the shapes of the rank with the largest part; ShardDim::kNone marks parameters that
// are the same on all ranks.
std::vector<Parameter> tensor_local_parameters(const Architecture& arch, int ranks);

// The part of a parameter on `rank`, as a block of the whole (vectors are columns of height n). The block is stored row
// by row at the start of the local parameter.
struct Block {
  std::int64_t first_row = 0, rows = 0, first_column = 0, columns = 0;
  std::int64_t all_columns = 0;  // columns of the whole parameter
};
Block block_of(const Parameter& whole, const Parameter& local, int rank, int ranks);

}  // namespace molen::arch
