// The cost of each part as functions of sizes. FLOPs are those of matrix products (and of attention's two), so that the
// parts of a step add up to `model_flops`; element-wise work is counted in the bytes moved.
#include <algorithm>

#include "arch/parameters.h"
#include "arch/parts.h"
#include "base/error.h"

namespace molen::arch {
namespace {

using i64 = std::int64_t;

// The sizes of one op, with the element sizes of its tensors: e for activations and weights, a for statistics, losses
// and accumulators of the device-generic path, g for main gradients.
struct Sizes {
  Sizes(const Architecture& arch, const PartShape& shape)
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
        norm_vectors(arch.norm == Norm::kRms     ? 1
                     : arch.norm == Norm::kLayer ? 2
                                                 : 0),
        stats(arch.norm == Norm::kRms ? 1 : 2),
        biases(arch.biases ? 1 : 0),
        ranks(shape.tensor_ranks),
        documents(shape.documents) {}
  i64 B, S, N, C, d, Q, q, U, f, V, h, k, D, e, a, g, norm_vectors, stats, biases, ranks;
  bool documents;
};

double product(i64 m, i64 n, i64 k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

Flops flops_of(const Sizes& s, Part part, Pass pass) {
  const bool backward = pass != Pass::kForward;
  const double passes = pass == Pass::kBackward ? 2.0 : 1.0;  // for the input, and for the weight
  switch (part) {
    case Part::kEmbed:
    case Part::kActivation:
    case Part::kFinalNorm:
      return Flops(0);
    case Part::kNormQkv:
      return Flops(passes * product(s.N, s.Q, s.d));
    // Two products of S x S x D per head, half of each below the diagonal.
    case Part::kAttention:
      return Flops(passes * product(s.N * s.h, s.S, s.D));
    case Part::kOutProjection:
      return Flops(passes * product(s.N, s.d, s.q));
    case Part::kNormUp:
      return Flops(passes * product(s.N, s.U, s.d));
    case Part::kDown:
      return Flops(passes * product(s.N, s.d, s.f));
    // The backward of the head is one op with its forward.
    case Part::kHead:
      return Flops((backward ? 3.0 : 1.0) * product(s.C, s.V, s.d));
    case Part::kHeadLogits:
      return Flops(product(s.C, s.V, s.d));
    case Part::kHeadLoss:
      return Flops(backward ? 2.0 * product(s.C, s.V, s.d) : 0.0);
  }
  throw Error("no such part");
}

// A linear layer in -> out over N tokens. Forward reads input and weight and writes the output. Backward reads d_out,
// input and weight, writes d_in, and reads and writes the weight gradient. Each of the two halves of backward reads
// d_out.
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
  }
  throw Error("no such pass");
}

// Bytes that the norm before a linear layer d -> out adds: statistics and weights if there is a norm, the residual to
// which d_in is added, the norm's gradients, and the norm's input if the linear layer does not read it.
i64 norm_linear_moved(const Sizes& s, i64 out, Pass pass) {
  const i64 x = s.e * s.N * s.d, read = s.a * s.stats * s.N + s.e * s.norm_vectors * s.d;
  const bool input = pass == Pass::kBackward || pass == Pass::kBackwardInput;
  return linear_moved(s, s.d, out, pass) + read + (input ? x + 2 * s.g * s.norm_vectors * s.d : 0) +
         (pass == Pass::kBackwardInput ? x : 0);
}

i64 moved_of(const Sizes& s, Part part, Pass pass) {
  const bool backward = pass != Pass::kForward;
  const i64 x = s.e * s.N * s.d, stats = s.a * s.stats * s.N, lse = s.a * s.B * s.h * s.S;
  const i64 norm = backward ? 2 * s.g * s.norm_vectors * s.d + s.e * s.norm_vectors * s.d : s.e * s.norm_vectors * s.d;
  switch (part) {
    case Part::kEmbed:
      return 4 * s.N + (backward ? x + 2 * s.g * s.N * s.d : 2 * x);
    case Part::kNormQkv:
      return norm_linear_moved(s, s.Q, pass);
    case Part::kNormUp:
      return norm_linear_moved(s, s.U, pass);
    case Part::kAttention:
      return s.e * s.N * (backward ? 2 * s.Q + 2 * s.q : s.Q + s.q) + lse;
    case Part::kOutProjection:
      return linear_moved(s, s.q, s.d, pass) + (backward ? 0 : x);
    case Part::kDown:
      return linear_moved(s, s.f, s.d, pass) + (backward ? 0 : x);
    case Part::kActivation:
      return s.e * s.N * (backward ? 2 * s.U + s.f : s.U + s.f);
    case Part::kFinalNorm:
      return (backward ? 3 : 2) * x + stats + norm;
    case Part::kHead: {
      const i64 forward = s.e * (s.C * s.d + s.V * s.d) + (4 + s.a) * s.C;
      return backward ? forward + s.e * s.C * s.d + 2 * s.g * s.V * s.d : forward;
    }
    case Part::kHeadLogits:
      return s.e * (s.C * s.d + s.V * s.d) + s.a * s.C * s.V + (4 + 2 * s.a) * s.C;
    case Part::kHeadLoss: {
      const i64 sums = (4 + s.a + 2 * s.a * s.ranks) * s.C;
      return backward ? sums + 2 * s.a * s.C * s.V + s.e * (2 * s.C * s.d + s.V * s.d) + 2 * s.g * s.V * s.d : sums;
    }
  }
  throw Error("no such part");
}

// math/reference.h: accumulators are 8 bytes for fp32 and fp64.
i64 reference_scratch(const Sizes& s, Part part, bool backward, i64 threads) {
  switch (part) {
    case Part::kNormQkv:
    case Part::kNormUp:
      return aligned(s.e * s.N * s.d);
    case Part::kAttention:
      return aligned(8 * threads * (backward ? 2 * s.D : s.S + s.D));
    case Part::kHead:
      return aligned(s.e * s.C * s.V);
    default:
      return 0;
  }
}

// math/attention.h
i64 attention_scratch(const Sizes& s, bool backward, i64 threads) {
  const i64 w = (s.D + 15) / 16 * 16 + 16;
  return aligned(threads * 4 * (backward ? 96 * (2 * w + 290) + 646 * w : 288 * (2 * w + 162) + 256 * w));
}

// math/attention_narrow.h
i64 narrow_attention_scratch(const Sizes& s, bool backward, i64 threads) {
  const auto width = [](i64 n) { return (n + 15) / 16 * 16 + 16; };
  const i64 w = width(s.D), a = width((s.D + 1) / 2);
  if (!backward) return aligned(threads * 4 * (416 * a + 352 * w + 6256));
  const i64 pieces = s.B * s.k, rounds = (pieces + threads - 1) / threads;
  const bool finely = 7 * pieces < 5 * rounds * threads && s.S > 128;
  return aligned(threads * 4 * (448 * a + 512 * w + 23424) +
                 (finely ? 0 : std::min(threads, pieces) * 4 * (s.h / s.k) * s.S * w));
}

// math/vector_kernels.h (partial sums of the norms' gradients) and math/attention.h.
i64 fused_scratch(const Sizes& s, Part part, Pass pass, i64 threads) {
  const bool backward = pass != Pass::kForward, of_norm = backward && pass != Pass::kBackwardWeights;
  const i64 partials = of_norm ? aligned(4 * threads * s.norm_vectors * s.d) : 0;
  switch (part) {
    case Part::kNormQkv:
    case Part::kNormUp:
      return aligned(4 * s.N * s.d) + partials;
    case Part::kFinalNorm:
      return partials;
    case Part::kAttention:
      return attention_scratch(s, backward, threads);
    case Part::kHead:
      return aligned(4 * s.C * s.V);
    default:
      return 0;
  }
}

// Scratch of model/parts_aten.cpp on the host, function by function: the largest sum of temporaries that exist at the
// same time. The workspace of the library's matrix products is not included (math/allocation.h).
class AtenScratch {
 public:
  AtenScratch(const Sizes& sizes, Position position, i64 threads, DType compute)
      : s(sizes), position_(position), threads_(threads), low_(sizes.e < sizes.a), own_(compute == DType::kBF16) {}

  i64 of(Part part, Pass pass) const {
    const bool backward = pass != Pass::kForward, weights = backward && pass != Pass::kBackwardInput;
    switch (part) {
      case Part::kEmbed:
        return backward ? (own_ ? 0 : widened(s.N * s.d)) +
                              (s.a == 8 && position_ == Position::kLearned ? wide(s.S * s.d) : 0)
                        : 0;
      case Part::kNormQkv:
        return std::max(pass == Pass::kBackwardWeights ? 0 : rotation(), norm_linear(s.Q, pass));
      case Part::kAttention:
        return attention(backward);
      case Part::kOutProjection:
        return weights ? linear_gradient(s.q, s.d) : 0;
      case Part::kNormUp:
        return norm_linear(s.U, pass);
      case Part::kActivation:
        return 0;
      case Part::kDown:
        return weights ? linear_gradient(s.f, s.d) : 0;
      case Part::kFinalNorm:
        return backward ? norm_backward() : norm_output();
      case Part::kHead:
        return head(backward);
      case Part::kHeadLogits:
        return low_ ? narrow(s.C * s.V) : 0;
      case Part::kHeadLoss:
        return backward ? (low_ ? narrow(s.C * s.V) : 0) + logits_backward() : 0;
    }
    throw Error("no such part");
  }

 private:
  i64 wide(i64 elements) const { return aligned(s.a * elements); }
  i64 narrow(i64 elements) const { return aligned(s.e * elements); }
  i64 widened(i64 elements) const { return low_ ? wide(elements) : 0; }
  bool rms() const { return s.stats == 1; }

  // Scratch of math/gemm_narrow.h for a product with n columns and k terms.
  i64 own_product(i64 n, i64 k) const {
    const auto up = [](i64 count, i64 step) { return (count + step - 1) / step * step; };
    const i64 packed = up(std::min<i64>(n, 512), 64) * up(std::min<i64>(k, 2048), 256) / 2;
    return 4 * (packed + threads_ * (128 * 112 + 384));
  }
  // Our own product into fp32, or a rounded gradient.
  i64 weight_gradient(i64 in, i64 out, i64 terms) const {
    if (own_) return aligned(std::max(2 * in * out, own_product(in, terms)));
    return low_ ? narrow(in * out) + wide(std::min(in * out, kWidenBlock)) : 0;
  }
  i64 linear_gradient(i64 in, i64 out) const {
    if (own_) return weight_gradient(in, out, s.N);
    const i64 bias = s.biases ? wide(out) + widened(widened_rows(s.N, out) * out) : 0;
    return std::max(weight_gradient(in, out, s.N), bias);
  }
  // Halves of the query and key heads.
  i64 rotation() const {
    const i64 values = (s.Q - s.q) / 2;
    return position_ == Position::kRope && !own_ ? 3 * wide(s.N * (s.Q - values) / 2) : 0;
  }
  // LayerNorm uses ATen's own operator, which returns the rows and both statistics.
  i64 norm_output() const {
    if (own_) return 0;
    if (!rms()) return widened(s.N * s.d) + s.norm_vectors * widened(s.d) + wide(s.N * s.d) + 2 * wide(s.N);
    return 2 * widened(s.N * s.d) + s.norm_vectors * widened(s.d);
  }
  i64 norm_output_again() const { return own_ ? 0 : widened(s.N * s.d) + s.norm_vectors * widened(s.d); }
  i64 norm_backward() const {
    if (own_) return wide(threads_ * s.norm_vectors * s.d);
    if (rms()) return 3 * wide(s.N * s.d) + std::max(s.norm_vectors * wide(s.d), wide(s.N));
    const i64 weights = s.norm_vectors ? 2 * widened(s.d) + 2 * wide(s.d) + wide(2 * threads_ * s.d) : 0;
    return 2 * widened(s.N * s.d) + wide(s.N * s.d) + weights;
  }
  i64 norm_linear(i64 out, Pass pass) const {
    if (pass == Pass::kForward) return narrow(s.N * s.d) + norm_output();
    const i64 input = pass == Pass::kBackwardWeights ? 0 : norm_backward(),
              weights = pass == Pass::kBackwardInput ? 0 : std::max(norm_output_again(), linear_gradient(s.d, out));
    return narrow(s.N * s.d) + std::max(input, weights);
  }
  i64 attention(bool backward) const {
    if (own_ && !s.documents && s.D <= kOwnAttentionMaxHead) return narrow_attention_scratch(s, backward, threads_);
    if (s.a == 4 && s.D <= kOwnAttentionMaxHead)
      return (backward ? 2 : 1) * (widened(s.N * s.Q) + widened(s.N * s.q)) + attention_scratch(s, backward, threads_);
    // ATen's own attention: results, tiles of each thread, and a bound on the mask of ALiBi.
    const i64 rows = std::min<i64>(s.S >= 768 ? 256 : s.S >= 192 ? 64 : 32, s.S), columns = std::min<i64>(512, s.S);
    const i64 mask = position_ == Position::kAlibi ? 3 * wide(s.h * s.S * s.S) + 4 * wide(s.S * s.S) : 0;
    if (backward) return wide(s.N * s.Q) + 128 + 2 * wide(threads_ * rows * columns) + wide(rows) + mask;
    return wide(s.N * s.q) + wide(s.N * s.h) + wide(threads_ * (rows * columns + 2 * rows + rows * s.D)) + mask;
  }
  i64 logits_backward() const {
    constexpr i64 kLongProduct = 8192;  // of math/gemm_narrow.h
    const i64 input = own_ && s.V >= kLongProduct ? aligned(own_product(s.d, s.V) + (s.C * s.d + 15) / 16 * 64) : 0;
    return std::max(input, weight_gradient(s.d, s.V, s.C));
  }
  i64 head(bool backward) const {
    const i64 gradient = backward ? logits_backward() : 0;
    const i64 rows = own_ ? threads_ : widened_rows(s.C, s.V);
    if (low_) return narrow(s.C * s.V) + std::max(wide(rows * s.V), gradient);
    // In fp64 the losses use ATen's operators: a bound.
    return wide(s.C * s.V) + (s.a == 8 ? wide(s.C * s.V) + 8 * wide(s.C) : 0);
  }

  const Sizes& s;
  Position position_;
  i64 threads_;
  bool low_;  // 16 bits
  bool own_;  // bf16: our own kernels, which widen while they read
};

}  // namespace

std::string_view name_of(Part part) {
  switch (part) {
    case Part::kEmbed:
      return "embed";
    case Part::kNormQkv:
      return "norm_qkv";
    case Part::kAttention:
      return "attention";
    case Part::kOutProjection:
      return "out_projection";
    case Part::kNormUp:
      return "norm_up";
    case Part::kActivation:
      return "activation";
    case Part::kDown:
      return "down";
    case Part::kFinalNorm:
      return "final_norm";
    case Part::kHead:
      return "head";
    case Part::kHeadLogits:
      return "head_logits";
    case Part::kHeadLoss:
      return "head_loss";
  }
  throw Error("no such part");
}

std::int64_t widened_rows(std::int64_t rows, std::int64_t columns) {
  return std::clamp<i64>(kWidenBlock / std::max<i64>(1, columns), 1, std::max<i64>(1, rows));
}

std::int64_t head_chunk(std::int64_t vocabulary) {
  constexpr std::int64_t kLogits = std::int64_t{1} << 25, kStep = 64, kMost = 1024;
  return std::clamp(kLogits / std::max<std::int64_t>(1, vocabulary) / kStep * kStep, kStep, kMost);
}

namespace {

// Additional scratch when tensor ranks share the model: ids as rows of the rank's table, the log of the sum and the
// scale of each row, and assembled weights and gradients of q|k|v (for one half of backward, only the one that it
// uses).
i64 shared_scratch(const Sizes& s, Part part, Pass pass, bool kv_copied) {
  if (s.ranks == 1) return 0;
  const bool backward = pass != Pass::kForward;
  switch (part) {
    case Part::kEmbed:
      return aligned(4 * s.N);
    case Part::kHeadLoss:
      return backward ? 2 * aligned(s.a * s.C) + aligned(4 * s.C) : 0;
    case Part::kNormQkv:
      if (!kv_copied) return 0;
      return (pass == Pass::kBackwardWeights ? 0 : aligned(s.e * s.Q * s.d) + s.biases * aligned(s.e * s.Q)) +
             (backward && pass != Pass::kBackwardInput ? aligned(s.g * s.Q * s.d) + s.biases * aligned(s.g * s.Q) : 0);
    default:
      return 0;
  }
}

}  // namespace

PartCost part_cost(const Architecture& arch, Part part, Pass pass, const PartShape& shape) {
  if (!has_halves(part)) {
    if (pass == Pass::kBackwardWeights) return {Flops(0), Bytes(0), Bytes(0)};
    if (pass == Pass::kBackwardInput) pass = Pass::kBackward;
  }
  const Sizes s(arch, shape);
  const i64 threads = std::max(shape.threads, 1);
  i64 scratch = 0;
  switch (shape.kernels) {
    case Kernels::kReference:
      scratch = reference_scratch(s, part, pass != Pass::kForward, threads);
      break;
    case Kernels::kFused:
      scratch = fused_scratch(s, part, pass, threads);
      break;
    case Kernels::kAten:
      scratch = kAtenScalars + AtenScratch(s, arch.position, threads, shape.compute).of(part, pass);
      break;
  }
  scratch += shared_scratch(s, part, pass, shape.kv_copied);
  return {flops_of(s, part, pass), Bytes(moved_of(s, part, pass)), Bytes(scratch)};
}

std::string_view name_of(FlopsConvention convention) {
  return convention == FlopsConvention::kCausal ? "causal" : "palm";
}

std::string_view formula_of(FlopsConvention convention) {
  return convention == FlopsConvention::kCausal ? "6 N (matrices, no input embedding) + 6 L h D s, causal attention"
                                                : "6 N (all parameters) + 12 L h D s, whole attention";
}

FlopsConvention flops_convention_from_name(std::string_view name) {
  for (const auto convention : {FlopsConvention::kCausal, FlopsConvention::kPalm})
    if (name == name_of(convention)) return convention;
  throw UsageError("'{}' is no way to count model FLOPs; causal and palm are", name);
}

Flops model_flops(const Architecture& arch, std::int64_t tokens, std::int64_t sequence, FlopsConvention convention) {
  const auto n = static_cast<double>(tokens);
  const double attention =
      static_cast<double>(arch.layers) * static_cast<double>(arch.query_size()) * static_cast<double>(sequence);
  if (convention == FlopsConvention::kPalm)
    return Flops(n * (6.0 * static_cast<double>(num_parameters(arch)) + 12.0 * attention));
  const double layer = static_cast<double>(arch.hidden) *
                       static_cast<double>(arch.qkv_size() + arch.query_size() + arch.up_size() + arch.ffn);
  const double matrices = static_cast<double>(arch.layers) * layer +
                          static_cast<double>(arch.vocabulary) * static_cast<double>(arch.hidden);
  return Flops(n * (6.0 * matrices + 6.0 * attention));
}

}  // namespace molen::arch
