#include "program/parts/context_attention.h"

#include <algorithm>

#include "arch/context_parallel.h"

namespace molen::program {
namespace {

// math/context_attention.h and math/reference_context.h
std::int64_t context_fused_scratch(std::int64_t D, bool backward, std::int64_t threads) {
  const std::int64_t w = (D + 15) / 16 * 16 + 16;
  return arch::aligned(threads * 4 * (backward ? 96 * (2 * w + 290) + 646 * w : 288 * (2 * w + 162) + 256 * w));
}
std::int64_t context_reference_scratch(std::int64_t D, std::int64_t keys, bool backward, std::int64_t threads) {
  return arch::aligned(8 * threads * (backward ? 2 * D : keys + D));
}

// The cost of the queries of the first rank over the keys that have come `step` ranks far.
arch::PartCost cost_of_step(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                            std::int64_t sequence, int ranks, std::int64_t step, bool keys_rounded) {
  const auto queries = arch::context_runs(sequence, 0, ranks);
  const auto keys = arch::context_runs(sequence, static_cast<int>((ranks - step) % ranks), ranks);
  const bool narrow = size_of(shape.compute) < 4;
  arch::PartCost cost = context_attention_cost(arch, pass, shape, {queries, keys, step > 0, narrow, keys_rounded});
  // Sums are wide; the finished output, which backward reads, is narrow.
  if (narrow && pass == arch::Pass::kBackward)
    cost.scratch += Bytes(arch::aligned(4 * shape.batch * count_positions(queries) * arch.query_size()));
  return cost;
}

arch::PartCost cost_of_steps(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                             std::int64_t sequence, int ranks, bool keys_rounded) {
  arch::PartCost all;
  for (int step = 0; step < ranks; ++step) {
    const arch::PartCost one = cost_of_step(arch, pass, shape, sequence, ranks, step, keys_rounded);
    all = {all.flops + one.flops, all.moved + one.moved, std::max(all.scratch, one.scratch)};
  }
  return all;
}

}  // namespace

arch::PartCost context_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                      const ContextCall& call) {
  const bool backward = pass == arch::Pass::kBackward;
  const std::int64_t B = shape.batch, D = arch.head_dim, threads = std::max(shape.threads, 1);
  const std::int64_t rows = B * count_positions(call.queries), keys = count_positions(call.keys);
  const std::int64_t q = rows * arch.query_size(), kv = 2 * B * keys * arch.kv_heads * D;
  const std::int64_t e = size_of(shape.compute), a = shape.compute == DType::kF64 ? 8 : 4, out = call.wide ? a : e;
  const std::int64_t lse = a * rows * arch.heads, d_keys = (call.keys_rounded ? e : out) * kv;
  const std::int64_t read_beside =
      (shape.documents ? 4 * rows : 0) + (arch.position == arch::Position::kAlibi ? 8 * arch.heads : 0);
  const double flops = (backward ? 2.0 : 1.0) * 4.0 * static_cast<double>(B * arch.heads * D) *
                       arch::causal_pairs(call.queries, call.keys);
  // Forward: q, k|v, o, lse. Backward: d_o, q, k|v, the finished o, lse, and the gradients of q and k|v.
  const std::int64_t moved = read_beside + (backward ? e * (3 * q + kv) + lse + (call.adds ? 2 : 1) * out * q + d_keys
                                                     : e * (q + kv) + (call.adds ? 2 : 1) * (out * q + lse));

  const bool fused = a == 4 && D <= arch::kOwnAttentionMaxHead && shape.kernels != arch::Kernels::kReference;
  std::int64_t scratch =
      fused ? context_fused_scratch(D, backward, threads) : context_reference_scratch(D, keys, backward, threads);
  if (shape.kernels == arch::Kernels::kAten) scratch += arch::kAtenScalars;
  if (e < a) {  // q, k|v and d_o are widened to fp32, and so are o and the gradients if they are narrow
    scratch += arch::aligned(a * q) + arch::aligned(a * kv) + (backward ? arch::aligned(a * q) : 0);
    if (!call.wide) scratch += arch::aligned(a * q) + (backward ? arch::aligned(a * q) + arch::aligned(a * kv) : 0);
  }
  return {Flops(flops), Bytes(moved), Bytes(scratch)};
}

arch::PartCost gathered_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                       std::int64_t sequence, int ranks) {
  const bool narrow = size_of(shape.compute) < 4, backward = pass == arch::Pass::kBackward;
  const std::int64_t rows = shape.batch * shape.sequence, width = 2 * arch.kv_heads * arch.head_dim;
  arch::PartCost all = cost_of_steps(arch, pass, shape, sequence, ranks, true);
  // Gradients of keys are written once and widened for one call at a time. Gradients of queries and the output are
  // sums.
  if (narrow && backward)
    all.scratch += Bytes(arch::aligned(4 * rows * width) + arch::aligned(4 * rows * arch.query_size()));
  if (narrow && !backward) all.scratch += Bytes(arch::aligned(4 * rows * arch.query_size()));
  return all;
}

arch::PartCost ring_attention_cost(const arch::Architecture& arch, arch::Pass pass, const arch::PartShape& shape,
                                   std::int64_t sequence, int ranks, std::int64_t step) {
  return step < 0 ? cost_of_steps(arch, pass, shape, sequence, ranks, false)
                  : cost_of_step(arch, pass, shape, sequence, ranks, step, false);
}

}  // namespace molen::program
