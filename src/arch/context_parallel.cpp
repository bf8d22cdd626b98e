#include "arch/context_parallel.h"

#include <algorithm>

#include "arch/tensor_parallel.h"
#include "base/error.h"

namespace molen::arch {
namespace {

using i64 = std::int64_t;

// math/context_attention.h and math/reference_context.h
i64 context_fused_scratch(i64 D, bool backward, i64 threads) {
  const i64 w = (D + 15) / 16 * 16 + 16;
  return aligned(threads * 4 * (backward ? 96 * (2 * w + 290) + 646 * w : 288 * (2 * w + 162) + 256 * w));
}
i64 context_reference_scratch(i64 D, i64 keys, bool backward, i64 threads) {
  return aligned(8 * threads * (backward ? 2 * D : keys + D));
}

}  // namespace

void validate_context_parallel(std::int64_t sequence, int ranks) {
  if (ranks >= 1 && (ranks == 1 || sequence >= 2 * static_cast<i64>(ranks))) return;
  throw UsageError(
      "parallel.context: {} ranks cannot share a sequence of {} tokens, of which each needs two pieces; 1 to {} can",
      ranks, sequence, std::max<i64>(1, sequence / 2));
}

std::vector<PositionRun> context_runs(std::int64_t sequence, int rank, int ranks) {
  validate_context_parallel(sequence, ranks);
  const auto [first, middle] = even_range(sequence, rank, 2 * ranks);
  const auto [second, last] = even_range(sequence, 2 * ranks - 1 - rank, 2 * ranks);
  if (middle == second) return {{first, last}};
  return {{first, middle}, {second, last}};
}

std::int64_t context_rows(std::int64_t sequence, int rank, int ranks) {
  return count_positions(context_runs(sequence, rank, ranks));
}

double causal_pairs(std::span<const PositionRun> queries, std::span<const PositionRun> keys) {
  double pairs = 0;
  for (const PositionRun& q : queries)
    for (const PositionRun& k : keys) {
      // Queries before the run of keys attend to none of it, those after it to all, those within it as in a triangle.
      const i64 first = std::max(q.first, k.first), last = std::min(q.last, k.last);
      if (first < last) {
        const auto before = static_cast<double>(first - k.first), n = static_cast<double>(last - first);
        pairs += n * before + n * n / 2;
      }
      pairs +=
          static_cast<double>(std::max<i64>(0, q.last - std::max(q.first, k.last))) * static_cast<double>(k.size());
    }
  return pairs;
}

PartCost context_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, const ContextCall& call) {
  const bool backward = pass == Pass::kBackward;
  const i64 B = shape.batch, D = arch.head_dim, threads = std::max(shape.threads, 1);
  const i64 rows = B * count_positions(call.queries), keys = count_positions(call.keys);
  const i64 q = rows * arch.query_size(), kv = 2 * B * keys * arch.kv_heads * D;
  const i64 e = size_of(shape.compute), a = shape.compute == DType::kF64 ? 8 : 4, out = call.wide ? a : e;
  const i64 lse = a * rows * arch.heads;
  const double flops =
      (backward ? 2.0 : 1.0) * 4.0 * static_cast<double>(B * arch.heads * D) * causal_pairs(call.queries, call.keys);
  // Forward: q, k|v, o, lse. Backward: d_o, q, k|v, o, lse, and the gradients of q and k|v.
  const i64 moved = backward ? e * (2 * q + kv) + out * q + lse + out * ((call.adds ? 2 : 1) * q + kv)
                             : e * (q + kv) + (call.adds ? 2 : 1) * (out * q + lse);

  const bool fused = a == 4 && D <= kOwnAttentionMaxHead && shape.kernels != Kernels::kReference;
  i64 scratch =
      fused ? context_fused_scratch(D, backward, threads) : context_reference_scratch(D, keys, backward, threads);
  if (shape.kernels == Kernels::kAten) scratch += kAtenScalars;
  if (e < a) {  // widened to fp32: q and k|v, d_o; and o and the gradients if they are narrow
    scratch += aligned(a * q) + aligned(a * kv) + (backward ? aligned(a * q) : 0);
    if (!call.wide) scratch += aligned(a * q) + (backward ? aligned(a * q) + aligned(a * kv) : 0);
  }
  return {Flops(flops), Bytes(moved), Bytes(scratch)};
}

PartCost gathered_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, std::int64_t sequence,
                                 int ranks) {
  const bool narrow = size_of(shape.compute) < 4, backward = pass == Pass::kBackward;
  const i64 rows = shape.batch * shape.sequence, width = 2 * arch.kv_heads * arch.head_dim;
  PartCost all;
  for (int step = 0; step < ranks; ++step) {
    const PartCost one = ring_attention_cost(arch, pass, shape, sequence, ranks, step);
    all = {all.flops + one.flops, all.moved + one.moved, std::max(all.scratch, one.scratch)};
  }
  // Gradients of keys are written once, each widened for its call; gradients of queries, and the output, are sums.
  if (narrow && backward) all.scratch += Bytes(aligned(4 * rows * width) + aligned(4 * rows * arch.query_size()));
  if (narrow && !backward) all.scratch += Bytes(aligned(4 * rows * arch.query_size()));
  return all;
}

PartCost ring_attention_cost(const Architecture& arch, Pass pass, const PartShape& shape, std::int64_t sequence,
                             int ranks, std::int64_t step) {
  if (step < 0) {
    PartCost all;
    for (int i = 0; i < ranks; ++i) {
      const PartCost one = ring_attention_cost(arch, pass, shape, sequence, ranks, i);
      all = {all.flops + one.flops, all.moved + one.moved, std::max(all.scratch, one.scratch)};
    }
    return all;
  }
  const auto queries = context_runs(sequence, 0, ranks);
  const auto keys = context_runs(sequence, static_cast<int>((ranks - step) % ranks), ranks);
  const bool narrow = size_of(shape.compute) < 4;
  PartCost cost = context_attention_cost(arch, pass, shape, {queries, keys, step > 0, narrow});
  // Sums are wide; the finished output, which backward reads, is narrow.
  if (narrow && pass == Pass::kBackward)
    cost.scratch += Bytes(aligned(4 * shape.batch * count_positions(queries) * arch.query_size()));
  return cost;
}

}  // namespace molen::arch
