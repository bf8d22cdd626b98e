#include "program/parts/sizes.h"

#include <algorithm>

#include "base/error.h"

namespace molen::program::parts {

Sizes::Sizes(const arch::Architecture& arch, const arch::PartShape& shape)
    : B(shape.batch),
      S(shape.sequence),
      N(shape.tokens()),
      C(shape.chunk),
      d(arch.hidden),
      Q(arch.qkv_size()),
      q(arch.query_size()),
      U(arch.up_size()),
      f(arch.ffn),
      V(arch.vocabulary),
      h(arch.heads),
      k(arch.kv_heads),
      D(arch.head_dim),
      e(size_of(shape.compute)),
      a(shape.compute == DType::kF64 ? 8 : 4),
      g(a),
      query_norm(arch.query_norm_size()),
      key_norm(arch.key_norm_size()),
      E(arch.experts ? arch.experts->count : 0),
      t(arch.experts ? arch.experts->per_token : 0),
      W(arch.expert_up_size()),
      w(arch.experts ? arch.experts->ffn : 0),
      M(N * t),
      R(arch.experts ? even_rows_of_experts(*arch.experts, shape.sequences()) : 0),
      L(E / shape.expert_ranks),
      G(arch.experts ? most_rows_of_experts(*arch.experts, shape.sequences(), shape.expert_ranks) : 0),
      drops(arch.drops_tokens()),
      c(shape.context_ranks),
      apart(shape.expert_ranks > 1),
      router_bias(arch.biases_router() ? arch.sparse_experts().count : 0),
      X(arch.shared_up_size()),
      x(arch.shared_ffn()),
      norm_vectors(arch.norm == arch::Norm::kRms     ? 1
                   : arch.norm == arch::Norm::kLayer ? 2
                                                     : 0),
      stats(arch.norm == arch::Norm::kRms ? 1 : 2),
      biases(arch.biases ? 1 : 0),
      ranks(shape.tensor_ranks),
      own((N + ranks - 1) / ranks),
      sharded(ranks > 1 && shape.rows_sharded),
      threads(std::max(shape.threads, 1)),
      documents(shape.documents),
      kv_copied(shape.kv_copied),
      rounds(e < a),
      bf16(shape.compute == DType::kBF16),
      position(arch.position) {
  if (L == 0) return;
  const auto [first, end] = arch::experts_of_tile(L, shape.expert_tile, shape.expert_tiles);
  R = arch::even_share(R, end, L) - arch::even_share(R, first, L);
  L = end - first;
}

double product(i64 m, i64 n, i64 k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

i64 linear_moved(const Sizes& s, i64 in, i64 out, Pass pass) {
  const i64 gradient = 2 * s.g * (in * out + s.biases * out);
  switch (pass) {
    case Pass::kForward:
      return s.e * (s.N * in + in * out + s.N * out + s.biases * out);
    case Pass::kBackward:
      return s.e * (s.N * out + 2 * s.N * in + in * out) + gradient;
    case Pass::kBackwardInput:
      return s.e * (s.N * out + in * out + s.N * in);
    case Pass::kBackwardWeights:
      return s.e * (s.N * out + s.N * in) + gradient;
    case Pass::kRecompute:
      break;
  }
  throw Error("a recomputation has the costs of a forward");
}

i64 norm_partials(const Sizes& s, Pass pass) {
  const bool of_norm = is_backward(pass) && pass != Pass::kBackwardWeights;
  return of_norm ? aligned(4 * s.threads * s.norm_vectors * s.d) : 0;
}

i64 AtenScratch::own_product(i64 n, i64 k) const {
  const auto up = [](i64 count, i64 step) { return (count + step - 1) / step * step; };
  const i64 packed = up(std::min<i64>(n, 512), 64) * up(std::min<i64>(k, 2048), 256) / 2;
  return 4 * (packed + s.threads * (128 * 112 + 384));
}

i64 AtenScratch::weight_gradient(i64 in, i64 out, i64 terms) const {
  if (s.bf16) return aligned(std::max(2 * in * out, own_product(in, terms)));
  return s.rounds ? narrow(in * out) + wide(std::min(in * out, arch::kWidenBlock)) : 0;
}

i64 AtenScratch::linear_gradient(i64 in, i64 out) const {
  if (s.bf16) return weight_gradient(in, out, s.N);
  const i64 bias = s.biases ? wide(out) + widened(arch::widened_rows(s.N, out) * out) : 0;
  return std::max(weight_gradient(in, out, s.N), bias);
}

i64 AtenScratch::norm_output() const {
  if (s.bf16) return 0;
  if (!rms()) return widened(s.N * s.d) + s.norm_vectors * widened(s.d) + wide(s.N * s.d) + 2 * wide(s.N);
  return 2 * widened(s.N * s.d) + s.norm_vectors * widened(s.d);
}

i64 AtenScratch::norm_backward() const {
  if (s.bf16) return wide(s.threads * s.norm_vectors * s.d);
  if (rms()) return 3 * wide(s.N * s.d) + std::max(s.norm_vectors * wide(s.d), wide(s.N));
  const i64 weights = s.norm_vectors ? 2 * widened(s.d) + 2 * wide(s.d) + wide(2 * s.threads * s.d) : 0;
  return 2 * widened(s.N * s.d) + wide(s.N * s.d) + weights;
}

}  // namespace molen::program::parts
