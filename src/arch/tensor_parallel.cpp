#include "arch/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace molen::arch {
namespace {

bool fits(const Architecture& a, int ranks) {
  if (ranks > 1 && a.qk_norm == QkNorm::kAll) return false;
  const bool dense = a.sparse_layers() < a.layers;
  return ranks >= 1 && a.heads % ranks == 0 && (!dense || a.ffn % ranks == 0) &&
         (!a.sparse() || a.sparse_experts().ffn % ranks == 0) && a.vocabulary >= ranks;
}

// Returns the number of consecutive query heads of a rank that share a KV head. It divides both the number of the
// rank's heads and the number of query heads for each KV head.
std::int64_t query_run(const Architecture& a, int ranks) {
  return std::gcd(a.heads / ranks, a.heads / a.kv_heads);
}

}  // namespace

std::vector<int> tensor_degrees(const Architecture& arch, int most) {
  std::vector<int> degrees;
  for (int n = 1; n <= most; ++n)
    if (fits(arch, n)) degrees.push_back(n);
  return degrees;
}

void validate_tensor_parallel(const Architecture& a, int ranks) {
  if (fits(a, ranks)) return;
  if (ranks > 1 && a.qk_norm == QkNorm::kAll)
    throw UsageError(
        "parallel.tensor: {} ranks have different heads, and model.qk_norm = \"all\" takes one norm over the heads of "
        "all of them, which is not implemented; parallel.tensor = 1 trains this model, and model.qk_norm = \"head\" "
        "can "
        "be shared",
        ranks);
  std::string text;
  for (const int n : tensor_degrees(a, static_cast<int>(std::min<std::int64_t>(a.heads, 1024))))
    text += fmt::format("{}{}", text.empty() ? "" : ", ", n);
  std::string widths = a.sparse_layers() < a.layers ? fmt::format("FFN {}", a.ffn) : "";
  if (a.sparse()) widths += fmt::format("{}experts of width {}", widths.empty() ? "" : ", ", a.sparse_experts().ffn);
  throw UsageError(
      "parallel.tensor: {} ranks cannot share {} heads, {} and vocabulary {} evenly; these degrees fit: {}", ranks,
      a.heads, widths, a.vocabulary, text);
}

bool kv_replicated(const Architecture& a, int ranks) {
  return a.kv_heads % ranks != 0;
}

Architecture tensor_local(const Architecture& a, int ranks) {
  Architecture local = a;
  if (ranks == 1) return local;
  local.heads = a.heads / ranks;
  local.kv_heads = kv_replicated(a, ranks) ? local.heads / query_run(a, ranks) : a.kv_heads / ranks;
  local.ffn = a.ffn / ranks;
  if (local.experts) local.experts->ffn = a.experts->ffn / ranks;
  local.vocabulary = (a.vocabulary + ranks - 1) / ranks;
  return local;
}

std::vector<std::int64_t> kv_heads_of(const Architecture& a, int rank, int ranks) {
  const Architecture local = tensor_local(a, ranks);
  const std::int64_t run = local.heads / local.kv_heads, group = a.heads / a.kv_heads;
  std::vector<std::int64_t> heads;
  for (std::int64_t k = 0; k < local.kv_heads; ++k) heads.push_back((rank * local.heads + k * run) / group);
  return heads;
}

std::pair<std::int64_t, std::int64_t> even_range(std::int64_t count, int rank, int ranks) {
  MOLEN_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  const std::int64_t base = count / ranks, extra = count % ranks;
  const std::int64_t first = rank * base + std::min<std::int64_t>(rank, extra);
  return {first, first + base + (rank < extra ? 1 : 0)};
}

std::vector<Parameter> tensor_local_parameters(const Architecture& arch, int ranks) {
  std::vector<Parameter> list = parameters(arch);
  if (ranks == 1) return list;
  validate_tensor_parallel(arch, ranks);
  for (Parameter& p : list) {
    const bool kv =
        p.role == Role::kKey || p.role == Role::kValue || p.role == Role::kKeyBias || p.role == Role::kValueBias;
    if (kv && kv_replicated(arch, ranks)) p.shard = ShardDim::kNone;
    if (p.shard == ShardDim::kRows) p.shape[0] = (p.shape[0] + ranks - 1) / ranks;
    if (p.shard == ShardDim::kColumns) p.shape[1] = p.shape[1] / ranks;
  }
  return list;
}

Block block_of(const Parameter& whole, const Parameter& local, int rank, int ranks) {
  Block b{0, whole.shape[0], 0, whole.shape.size() > 1 ? whole.shape[1] : 1,
          whole.shape.size() > 1 ? whole.shape[1] : 1};
  if (ranks == 1 || local.shard == ShardDim::kNone) return b;
  const bool rows = local.shard == ShardDim::kRows;
  const auto [first, last] = even_range(rows ? b.rows : b.columns, rank, ranks);
  (rows ? b.first_row : b.first_column) = first;
  (rows ? b.rows : b.columns) = last - first;
  return b;
}

}  // namespace molen::arch
