// What each part costs, as functions of sizes. FLOPs are those of matrix products (and of attention's two), so that the
// parts of a step add up to `model_flops`; element-wise work is in the bytes moved.
#include <algorithm>

#include "arch/parameters.h"
#include "arch/parts.h"
#include "base/error.h"

namespace molen::arch {
namespace {

using i64 = std::int64_t;

// math::Scratch hands out memory in whole lines of 64 bytes.
i64 aligned(i64 bytes) {
  return (bytes + 63) / 64 * 64;
}

// The sizes of one op, with the element sizes of its tensors: e of activations and weights, a of statistics, losses and
// accumulators of the device-generic path, g of main gradients.
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
        D(arch.head_dim),
        e(size_of(shape.compute)),
        a(shape.compute == DType::kF64 ? 8 : 4),
        g(a),
        norm_vectors(arch.norm == Norm::kRms     ? 1
                     : arch.norm == Norm::kLayer ? 2
                                                 : 0),
        stats(arch.norm == Norm::kRms ? 1 : 2),
        biases(arch.biases ? 1 : 0),
        ranks(shape.tensor_ranks) {}
  i64 B, S, N, C, d, Q, q, U, f, V, h, D, e, a, g, norm_vectors, stats, biases, ranks;
};

double product(i64 m, i64 n, i64 k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

Flops flops_of(const Sizes& s, Part part, bool backward) {
  const double passes = backward ? 2.0 : 1.0;  // with respect to the input, and to the weight
  switch (part) {
    case Part::kEmbed:
    case Part::kActivation:
    case Part::kFinalNorm:
      return Flops(0);
    case Part::kNormQkv:
      return Flops(passes * product(s.N, s.Q, s.d));
    // Two products of S x S x D a head, half of each below the diagonal.
    case Part::kAttention:
      return Flops(passes * product(s.N * s.h, s.S, s.D));
    case Part::kOutProjection:
      return Flops(passes * product(s.N, s.d, s.q));
    case Part::kNormUp:
      return Flops(passes * product(s.N, s.U, s.d));
    case Part::kDown:
      return Flops(passes * product(s.N, s.d, s.f));
    // Its backward is one op with its forward.
    case Part::kHead:
      return Flops((backward ? 3.0 : 1.0) * product(s.C, s.V, s.d));
    case Part::kHeadLogits:
      return Flops(product(s.C, s.V, s.d));
    case Part::kHeadLoss:
      return Flops(backward ? 2.0 * product(s.C, s.V, s.d) : 0.0);
  }
  throw Error("no such part");
}

// A linear layer in -> out over N tokens: forward reads input and weight and writes the output; backward reads d_out,
// input and weight, writes d_in, and reads and writes the weight gradient.
i64 linear_moved(const Sizes& s, i64 in, i64 out, bool backward) {
  if (!backward) return s.e * (s.N * in + in * out + s.N * out + s.biases * out);
  return s.e * (s.N * out + 2 * s.N * in + in * out) + 2 * s.g * (in * out + s.biases * out);
}

i64 moved_of(const Sizes& s, Part part, bool backward) {
  const i64 x = s.e * s.N * s.d, stats = s.a * s.stats * s.N, lse = s.a * s.B * s.h * s.S;
  const i64 norm = backward ? 2 * s.g * s.norm_vectors * s.d + s.e * s.norm_vectors * s.d : s.e * s.norm_vectors * s.d;
  switch (part) {
    case Part::kEmbed:
      return 4 * s.N + (backward ? x + 2 * s.g * s.N * s.d : 2 * x);
    case Part::kNormQkv:
      return linear_moved(s, s.d, s.Q, backward) + stats + norm + (backward ? x : 0);
    case Part::kNormUp:
      return linear_moved(s, s.d, s.U, backward) + stats + norm + (backward ? x : 0);
    case Part::kAttention:
      return s.e * s.N * (backward ? 2 * s.Q + 2 * s.q : s.Q + s.q) + lse;
    case Part::kOutProjection:
      return linear_moved(s, s.q, s.d, backward) + (backward ? 0 : x);
    case Part::kDown:
      return linear_moved(s, s.f, s.d, backward) + (backward ? 0 : x);
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

// math/vector_kernels.h (partial sums of the norms' gradients) and math/attention.h.
i64 fused_scratch(const Sizes& s, Part part, bool backward, i64 threads) {
  const i64 partials = backward ? aligned(4 * threads * s.norm_vectors * s.d) : 0;
  switch (part) {
    case Part::kNormQkv:
    case Part::kNormUp:
      return aligned(4 * s.N * s.d) + partials;
    case Part::kFinalNorm:
      return partials;
    case Part::kAttention: {
      const i64 w = (s.D + 15) / 16 * 16 + 16;
      return aligned(threads * 4 * (backward ? 96 * (2 * w + 290) + 646 * w : 288 * (2 * w + 162) + 256 * w));
    }
    case Part::kHead:
      return aligned(4 * s.C * s.V);
    default:
      return 0;
  }
}

// What the BLAS of low-precision products takes for a call: packed operands of each thread.
i64 product_workspace(const Sizes& s, i64 threads, i64 m, i64 n, i64 k) {
  if (s.e >= 4) return 0;
  return threads * (i64{2} << 20) + 4 * (m * k + k * n + m * n);
}
// Both products of a linear layer's backward, the rounded weight gradient before it is added to the main gradient, bias
// sums.
i64 aten_linear(const Sizes& s, i64 threads, i64 in, i64 out, bool backward) {
  if (!backward) return product_workspace(s, threads, s.N, out, in) + 4096;
  return product_workspace(s, threads, s.N, in, out) + product_workspace(s, threads, out, in, s.N) +
         (s.e < 4 ? s.e * in * out : 0) + 2 * s.a * out * s.biases + 4096;
}
// The norm in its composite form: conversions, products and the normalised rows, all alive at once at worst.
i64 aten_norm(const Sizes& s, bool backward) {
  const i64 rows = s.a * s.N * s.d;
  return (backward ? 10 : 6) * rows + 16 * s.a * (s.N + s.d) + 8192;
}
i64 aten_attention(const Sizes& s, bool backward, i64 threads, bool alibi) {
  const i64 tiles = threads * (4 * 256 * 512 * 4 + 256 * 16 * s.D + 65536);
  const i64 rows = s.e * s.N * s.Q + 8 * s.B * s.h * s.S;
  const i64 mask = alibi ? 3 * s.a * s.h * s.S * s.S : 0;
  return tiles + (backward ? 6 : 3) * rows + mask + 65536;
}

i64 aten_scratch(const Sizes& s, Part part, bool backward, i64 threads, bool alibi) {
  const i64 rope = 2 * s.a * s.N * s.Q;
  switch (part) {
    case Part::kEmbed:
      return (backward ? 3 : 1) * s.a * s.N * s.d + 4096;
    case Part::kNormQkv:
      return aten_norm(s, backward) + rope + s.e * s.N * s.d + aten_linear(s, threads, s.d, s.Q, backward);
    case Part::kAttention:
      return aten_attention(s, backward, threads, alibi);
    case Part::kOutProjection:
      return aten_linear(s, threads, s.q, s.d, backward);
    case Part::kNormUp:
      return aten_norm(s, backward) + s.e * s.N * s.d + aten_linear(s, threads, s.d, s.U, backward);
    case Part::kActivation:
      return 4 * s.a * s.N * s.f + 8192;
    case Part::kDown:
      return aten_linear(s, threads, s.f, s.d, backward);
    case Part::kFinalNorm:
      return aten_norm(s, backward);
    case Part::kHead:
      return (2 * s.e + 4 * s.a) * s.C * s.V + 16 * s.a * s.C + 4096 + product_workspace(s, threads, s.C, s.V, s.d) +
             (backward ? product_workspace(s, threads, s.C, s.d, s.V) + product_workspace(s, threads, s.V, s.d, s.C) +
                             (s.e < 4 ? s.e * s.V * s.d : 0)
                       : 0);
    case Part::kHeadLogits:
      return (s.e + 2 * s.a) * s.C * s.V + 16 * s.a * s.C + 4096 + product_workspace(s, threads, s.C, s.V, s.d);
    case Part::kHeadLoss:
      return 16 * s.a * s.C * (2 + s.ranks) + 8192 +
             (backward ? (2 * s.e + 2 * s.a) * s.C * s.V + product_workspace(s, threads, s.C, s.d, s.V) +
                             product_workspace(s, threads, s.V, s.d, s.C) + (s.e < 4 ? s.e * s.V * s.d : 0)
                       : 0);
  }
  throw Error("no such part");
}

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

std::int64_t head_chunk(std::int64_t vocabulary) {
  constexpr std::int64_t kLogits = std::int64_t{1} << 25, kStep = 64, kMost = 1024;
  return std::clamp(kLogits / std::max<std::int64_t>(1, vocabulary) / kStep * kStep, kStep, kMost);
}

namespace {

// What parts take besides where tensor ranks share the model: ids as rows of the rank's table, log of the sum and scale
// of each row, and weights and gradients of q|k|v put together.
i64 shared_scratch(const Sizes& s, Part part, bool backward, bool kv_copied) {
  if (s.ranks == 1) return 0;
  switch (part) {
    case Part::kEmbed:
      return aligned(4 * s.N);
    case Part::kHeadLoss:
      return 2 * aligned(s.a * s.C) + aligned(4 * s.C);
    case Part::kNormQkv:
      if (!kv_copied) return 0;
      return aligned(s.e * s.Q * s.d) + s.biases * aligned(s.e * s.Q) +
             (backward ? aligned(s.g * s.Q * s.d) + s.biases * aligned(s.g * s.Q) : 0);
    default:
      return 0;
  }
}

}  // namespace

PartCost part_cost(const Architecture& arch, Part part, Pass pass, const PartShape& shape) {
  const Sizes s(arch, shape);
  const bool backward = pass == Pass::kBackward;
  const i64 threads = std::max(shape.threads, 1);
  i64 scratch = 0;
  switch (shape.kernels) {
    case Kernels::kReference:
      scratch = reference_scratch(s, part, backward, threads);
      break;
    case Kernels::kFused:
      scratch = fused_scratch(s, part, backward, threads);
      break;
    case Kernels::kAten:
      scratch = aligned(aten_scratch(s, part, backward, threads, arch.position == Position::kAlibi));
      break;
  }
  scratch += shared_scratch(s, part, backward, shape.kv_copied);
  return {flops_of(s, part, backward), Bytes(moved_of(s, part, backward)), Bytes(scratch)};
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
