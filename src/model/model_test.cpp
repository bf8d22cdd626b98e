// Tests the parts, chained into a whole model, forward and backward, on every path. The oracle is libtorch's autograd
// on composite operators in float64. The tests compare the loss and the gradient of every parameter, with accumulation
// over two micro-batches, tied and untied heads, and ignored labels.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "arch/alibi.h"
#include "model/test_model.h"
#include "program/parts/part.h"

namespace molen::model {
namespace {

using arch::Kernels;
using arch::Part;
using arch::Pass;

// Weights of one model by name, all in float64. The names in layer L are "L.name".
using Weights = std::map<std::string, at::Tensor>;

Weights make_weights(const arch::Architecture& a) {
  Weights w;
  const auto make = [&](const std::string& name, at::IntArrayRef shape, double scale, double mean = 0.0) {
    w[name] = random_normal(shape, name, scale).add_(mean);
  };
  const auto norm = [&](const std::string& name) {
    if (a.norm != arch::Norm::kLayerPlain) make(name + "_w", {a.hidden}, 0.2, 1.0);
    if (a.norm == arch::Norm::kLayer) make(name + "_b", {a.hidden}, 0.2);
  };
  make("table", {a.vocabulary, a.hidden}, 0.5);
  if (a.position == arch::Position::kLearned) make("positions", {a.max_sequence, a.hidden}, 0.5);
  for (std::int64_t l = 0; l < a.layers; ++l) {
    const std::string p = std::to_string(l) + ".";
    norm(p + "norm1"), norm(p + "norm2");
    for (const auto& [name, out, in] : {std::tuple{"qkv", a.qkv_size(), a.hidden},
                                        {"out", a.hidden, a.query_size()},
                                        {"up", a.up_size(), a.hidden},
                                        {"down", a.hidden, a.ffn}}) {
      make(p + name + "_w", {out, in}, 0.3);
      if (a.biases) make(p + name + "_b", {out}, 0.3);
    }
    if (!a.norms_qk()) continue;
    make(p + "query_norm", {a.query_norm_size()}, 0.2, 1.0), make(p + "key_norm", {a.key_norm_size()}, 0.2, 1.0);
  }
  norm("final");
  if (!a.tied) make("head", {a.vocabulary, a.hidden}, 0.3);
  return w;
}

at::Tensor get(const Weights& w, const std::string& name) {
  const auto found = w.find(name);
  return found == w.end() ? at::Tensor() : found->second;
}
Linear linear(const Weights& w, const std::string& name) {
  return {get(w, name + "_w"), get(w, name + "_b")};
}
QkNormWeights qk_norm(const Weights& w, const std::string& layer) {
  return {get(w, layer + "query_norm"), get(w, layer + "key_norm")};
}
NormWeights norm(const Weights& w, const std::string& name) {
  return {get(w, name + "_w"), get(w, name + "_b")};
}

struct Batch {
  at::Tensor ids, labels;
  std::int64_t B, S;
};

// --- the oracle: composite operators under autograd

at::Tensor oracle_norm(const arch::Architecture& a, const at::Tensor& x, const NormWeights& w) {
  if (a.norm == arch::Norm::kRms) return x * at::rsqrt(x.pow(2).mean(-1, true) + a.norm_eps) * w.weight_d;
  const at::Tensor centred = x - x.mean(-1, true), y = centred * at::rsqrt(centred.pow(2).mean(-1, true) + a.norm_eps);
  return w.weight_d.defined() ? y * w.weight_d + w.bias_d : y;
}
at::Tensor oracle_linear(const at::Tensor& x, const Linear& w) {
  const at::Tensor y = at::matmul(x, w.weight_OI.t());
  return w.bias_O.defined() ? y + w.bias_O : y;
}
at::Tensor oracle_rope(const at::Tensor& x, const RopeTable& t) {  // [B, S, heads, D]
  const at::Tensor c = at::cat({t.cos_SD2, t.cos_SD2}, 1).unsqueeze(1),
                   s = at::cat({t.sin_SD2, t.sin_SD2}, 1).unsqueeze(1);
  const auto halves = x.chunk(2, -1);
  return x * c + at::cat({-halves[1], halves[0]}, -1) * s;
}
// Queries or keys [B, S, heads, D], normalised over the last dimension or over the last two.
at::Tensor oracle_qk_norm(const arch::Architecture& a, const at::Tensor& x, const at::Tensor& w) {
  if (a.qk_norm == arch::QkNorm::kHead) return x * at::rsqrt(x.pow(2).mean(-1, true) + a.norm_eps) * w;
  return x * at::rsqrt(x.pow(2).mean({-2, -1}, true) + a.norm_eps) * w.view({x.size(2), x.size(3)});
}
at::Tensor oracle_attention(const arch::Architecture& a, const Batch& batch, const at::Tensor& qkv,
                            const QkNormWeights& norms, const RopeTable& rope) {
  const at::Tensor all = qkv.view({batch.B, batch.S, a.heads + 2 * a.kv_heads, a.head_dim});
  at::Tensor q = all.narrow(2, 0, a.heads), k = all.narrow(2, a.heads, a.kv_heads),
             v = all.narrow(2, a.heads + a.kv_heads, a.kv_heads);
  if (a.norms_qk()) q = oracle_qk_norm(a, q, norms.query), k = oracle_qk_norm(a, k, norms.key);
  if (a.position == arch::Position::kRope) q = oracle_rope(q, rope), k = oracle_rope(k, rope);
  k = k.repeat_interleave(a.heads / a.kv_heads, 2), v = v.repeat_interleave(a.heads / a.kv_heads, 2);
  at::Tensor scores =
      at::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) / std::sqrt(static_cast<double>(a.head_dim));
  const at::Tensor place = at::arange(batch.S, at::kDouble), distance = place.unsqueeze(0) - place.unsqueeze(1);
  if (a.position == arch::Position::kAlibi)
    scores = scores + at::tensor(arch::alibi_slopes(a.heads), at::kDouble).view({-1, 1, 1}) * distance;
  scores = scores.masked_fill(distance.gt(0), -INFINITY);
  return at::matmul(at::softmax(scores, -1), v.transpose(1, 2)).transpose(1, 2).reshape({batch.B * batch.S, -1});
}
at::Tensor oracle_loss(const arch::Architecture& a, const Weights& w, const Batch& batch) {
  const RopeTable rope = make_rope_table(a, batch.S, at::kDouble, at::kCPU);
  at::Tensor x = w.at("table").index_select(0, batch.ids);
  if (a.position == arch::Position::kLearned) x = x + w.at("positions").narrow(0, 0, batch.S).repeat({batch.B, 1});
  for (std::int64_t l = 0; l < a.layers; ++l) {
    const std::string p = std::to_string(l) + ".";
    const at::Tensor qkv = oracle_linear(oracle_norm(a, x, norm(w, p + "norm1")), linear(w, p + "qkv"));
    const at::Tensor mid =
        x + oracle_linear(oracle_attention(a, batch, qkv, qk_norm(w, p), rope), linear(w, p + "out"));
    const at::Tensor up = oracle_linear(oracle_norm(a, mid, norm(w, p + "norm2")), linear(w, p + "up"));
    const at::Tensor act =
        a.gated() ? at::silu(up.narrow(1, 0, a.ffn)) * up.narrow(1, a.ffn, a.ffn) : at::gelu(up, "tanh");
    x = mid + oracle_linear(act, linear(w, p + "down"));
  }
  const at::Tensor logits = at::matmul(oracle_norm(a, x, norm(w, "final")), w.at(a.tied ? "table" : "head").t());
  return at::nll_loss(at::log_softmax(logits, -1), batch.labels.to(at::kLong), {}, /*reduction sum*/ 2, -1);
}

// --- ours

at::ScalarType wide_type(DType compute) {
  return compute == DType::kF64 ? at::kDouble : at::kFloat;
}

class Model {
 public:
  // Weights in the compute dtype; gradients and statistics are wide. With `halves`, the weights halves of all layers
  // run after the rest of the backward, beginning with the first layer.
  Model(const arch::Architecture& a, Kernels kernels, DType compute, const Weights& weights, const Batch& batch,
        bool halves = false)
      : a_(a),
        w_(weights),
        batch_(batch),
        shape_{batch.B, batch.S, 0, compute, 2, kernels},
        compute_(scalar_type(compute)),
        wide_(wide_type(compute)),
        rope_(make_rope_table(a, batch.S, wide_, at::kCPU)),
        halves_(halves) {}

  // Returns the loss sum; writes the gradients of loss * scale into `grads`.
  double step(double scale, bool accumulate, Weights& grads) {
    accumulate_ = accumulate;
    at::Tensor x = empty(a_.hidden), y = empty(a_.hidden), d_x = empty(a_.hidden), d_y = empty(a_.hidden);
    at::Tensor positions = get(w_, "positions");
    with(Part::kEmbed, Pass::kForward,
         [&](const Context& c) { embed_forward(c, batch_.ids, w_.at("table"), positions, x); });
    std::vector<Saved> saved;
    for (std::int64_t l = 0; l < a_.layers; ++l) saved.push_back(forward(l, x)), x = saved.back().y;
    NormSaved stats = statistics();
    with(Part::kFinalNorm, Pass::kForward,
         [&](const Context& c) { final_norm_forward(c, x, norm(w_, "final"), stats, y); });
    const double loss = head(scale, y, d_y, grads);
    NormWeights d_final = norm(grads, "final");
    with(Part::kFinalNorm, Pass::kBackward,
         [&](const Context& c) { final_norm_backward(c, d_y, x, stats, norm(w_, "final"), d_x, d_final); });
    std::vector<Kept> kept;
    for (std::int64_t l = a_.layers - 1; l >= 0; --l)
      kept.push_back(backward(l, saved[static_cast<std::size_t>(l)], d_x, grads));
    accumulate_ = accumulate || a_.tied;
    at::Tensor d_positions = get(grads, "positions");
    with(Part::kEmbed, Pass::kBackward,
         [&](const Context& c) { embed_backward(c, batch_.ids, d_x, grads.at("table"), d_positions); });
    accumulate_ = accumulate;
    for (std::int64_t l = 0; halves_ && l < a_.layers; ++l)
      backward_weights(l, saved[static_cast<std::size_t>(l)], kept[static_cast<std::size_t>(a_.layers - 1 - l)], grads);
    return loss;
  }

 private:
  struct Saved {
    at::Tensor x, qkv, o, lse, mid, up, a, y;
    NormSaved norm1, norm2;
    at::Tensor projected{};  // q|k|v before their norms
  };
  // Gradients of the linear layers' outputs, kept for the weights halves.
  struct Kept {
    at::Tensor d_down, d_up, d_out, d_qkv;
  };

  template <class F>
  void with(Part part, Pass pass, F&& call, std::int64_t chunk = 0) {
    arch::PartShape shape = shape_;
    shape.chunk = chunk;
    Workspace work(program::part_cost(a_, part, pass, shape).scratch.value);
    const arch::Pass half = pass == Pass::kBackwardInput     ? arch::Pass::kBackwardInput
                            : pass == Pass::kBackwardWeights ? arch::Pass::kBackwardWeights
                                                             : arch::Pass::kBackward;
    call(with_slopes({a_, shape, work.scratch, accumulate_, {}, half}));
  }
  at::Tensor empty(std::int64_t columns) const { return at::full({batch_.B * batch_.S, columns}, NAN, compute_); }
  NormSaved statistics() const {
    const std::int64_t n = batch_.B * batch_.S;
    return {at::empty({n}, wide_), a_.norm == arch::Norm::kRms ? at::Tensor() : at::empty({n}, wide_)};
  }

  Saved forward(std::int64_t l, const at::Tensor& x) {
    const std::string p = std::to_string(l) + ".";
    Saved s{x,
            empty(a_.qkv_size()),
            empty(a_.query_size()),
            at::full({batch_.B, a_.heads, batch_.S}, NAN, wide_),
            empty(a_.hidden),
            empty(a_.up_size()),
            empty(a_.ffn),
            empty(a_.hidden),
            statistics(),
            statistics()};
    with(Part::kNormQkv, Pass::kForward, [&](const Context& c) {
      norm_qkv_forward(c, x, norm(w_, p + "norm1"), linear(w_, p + "qkv"), s.norm1, s.qkv);
    });
    if (a_.norms_qk()) {
      s.projected = s.qkv, s.qkv = empty(a_.qkv_size());
      with(Part::kQkNorm, Pass::kForward,
           [&](const Context& c) { qk_norm_forward(c, s.projected, qk_norm(w_, p), s.qkv); });
    }
    if (rope_.cos_SD2.defined())
      with(Part::kRotate, Pass::kForward, [&](const Context& c) { rotate(c, rope_, false, s.qkv); });
    with(Part::kAttention, Pass::kForward, [&](const Context& c) { attention_forward(c, s.qkv, s.o, s.lse); });
    with(Part::kOutProjection, Pass::kForward,
         [&](const Context& c) { output_projection_forward(c, s.o, x, linear(w_, p + "out"), s.mid); });
    with(Part::kNormUp, Pass::kForward, [&](const Context& c) {
      norm_up_forward(c, s.mid, norm(w_, p + "norm2"), linear(w_, p + "up"), s.norm2, s.up);
    });
    with(Part::kActivation, Pass::kForward, [&](const Context& c) { activation_forward(c, s.up, s.a); });
    with(Part::kDown, Pass::kForward,
         [&](const Context& c) { down_forward(c, s.a, s.mid, linear(w_, p + "down"), s.y); });
    return s;
  }

  Kept backward(std::int64_t l, const Saved& s, at::Tensor& d_x, Weights& grads) {
    const Pass pass = halves_ ? Pass::kBackwardInput : Pass::kBackward;
    const std::string p = std::to_string(l) + ".";
    at::Tensor d_a = empty(a_.ffn), d_up = empty(a_.up_size()), d_o = empty(a_.query_size()),
               d_qkv = empty(a_.qkv_size());
    Linear g_down = linear(grads, p + "down"), g_up = linear(grads, p + "up"), g_out = linear(grads, p + "out"),
           g_qkv = linear(grads, p + "qkv");
    NormWeights g_norm1 = norm(grads, p + "norm1"), g_norm2 = norm(grads, p + "norm2");
    const at::Tensor d_down = d_x.clone();
    with(Part::kDown, pass, [&](const Context& c) { down_backward(c, d_x, s.a, linear(w_, p + "down"), d_a, g_down); });
    with(Part::kActivation, pass, [&](const Context& c) { activation_backward(c, d_a, s.up, d_up); });
    with(Part::kNormUp, pass, [&](const Context& c) {
      norm_up_backward(c, d_up, s.mid, s.norm2, norm(w_, p + "norm2"), linear(w_, p + "up"), d_x, g_norm2, g_up);
    });
    const at::Tensor d_out = d_x.clone();
    with(Part::kOutProjection, pass,
         [&](const Context& c) { output_projection_backward(c, d_x, s.o, linear(w_, p + "out"), d_o, g_out); });
    with(Part::kAttention, pass, [&](const Context& c) { attention_backward(c, d_o, s.qkv, s.o, s.lse, d_qkv); });
    if (rope_.cos_SD2.defined()) with(Part::kRotate, pass, [&](const Context& c) { rotate(c, rope_, true, d_qkv); });
    QkNormWeights g_qk_norm = qk_norm(grads, p);
    if (a_.norms_qk())
      with(Part::kQkNorm, pass,
           [&](const Context& c) { qk_norm_backward(c, s.projected, qk_norm(w_, p), d_qkv, g_qk_norm); });
    with(Part::kNormQkv, pass, [&](const Context& c) {
      norm_qkv_backward(c, d_qkv, s.x, s.norm1, norm(w_, p + "norm1"), linear(w_, p + "qkv"), d_x, g_norm1, g_qkv);
    });
    return {d_down, d_up, d_out, d_qkv};
  }

  // Runs the weights halves, which read no weight matrix.
  void backward_weights(std::int64_t l, const Saved& s, const Kept& kept, Weights& grads) {
    const std::string p = std::to_string(l) + ".";
    constexpr Pass kPass = Pass::kBackwardWeights;
    Linear g_down = linear(grads, p + "down"), g_up = linear(grads, p + "up"), g_out = linear(grads, p + "out"),
           g_qkv = linear(grads, p + "qkv");
    NormWeights no_norm;
    at::Tensor none;
    with(Part::kDown, kPass, [&](const Context& c) { down_backward(c, kept.d_down, s.a, {}, none, g_down); });
    with(Part::kNormUp, kPass, [&](const Context& c) {
      norm_up_backward(c, kept.d_up, s.mid, s.norm2, norm(w_, p + "norm2"), {}, none, no_norm, g_up);
    });
    with(Part::kOutProjection, kPass,
         [&](const Context& c) { output_projection_backward(c, kept.d_out, s.o, {}, none, g_out); });
    with(Part::kNormQkv, kPass, [&](const Context& c) {
      norm_qkv_backward(c, kept.d_qkv, s.x, s.norm1, norm(w_, p + "norm1"), {}, none, no_norm, g_qkv);
    });
  }

  double head(double scale, const at::Tensor& y, at::Tensor& d_y, Weights& grads) {
    const std::string name = a_.tied ? "table" : "head";
    const std::int64_t n = y.size(0), chunk = 5;
    at::Tensor losses = at::full({n}, NAN, wide_);
    const bool accumulate = accumulate_;
    for (std::int64_t first = 0; first < n; first += chunk) {
      const std::int64_t count = std::min(chunk, n - first);
      at::Tensor part = losses.narrow(0, first, count), d_part = d_y.narrow(0, first, count);
      accumulate_ = accumulate || first > 0;
      with(
          Part::kHead, Pass::kBackward,
          [&](const Context& c) {
            head_loss(c, y.narrow(0, first, count), batch_.labels.narrow(0, first, count), w_.at(name), scale, part,
                      d_part, grads.at(name));
          },
          count);
    }
    accumulate_ = accumulate;
    return losses.sum(at::kDouble).item<double>();
  }

  const arch::Architecture& a_;
  const Weights& w_;
  const Batch& batch_;
  arch::PartShape shape_;
  at::ScalarType compute_, wide_;
  RopeTable rope_;
  bool halves_, accumulate_ = false;
};

// The bound relative to the largest element is c u sqrt(n depth). Each part on the way from a weight to the loss and
// back (`depth` parts) rounds again, independently of the others. n is the length of the longest sum that an element
// depends on when sums round as they go. In bf16 sums run in fp32 and only their results are rounded, so n is 1. As in
// parts_test.cpp, c is the number of roundings per term.
double bound(const arch::Architecture& a, DType compute, std::int64_t tokens) {
  constexpr double kC = 8.0;
  const std::int64_t depth = 2 * (6 * a.layers + 2);
  const std::int64_t n = compute == DType::kBF16 ? 1 : std::max({a.vocabulary, a.up_size(), a.qkv_size(), tokens});
  return kC * unit_roundoff(compute) * std::sqrt(static_cast<double>(n * depth));
}

void check(const arch::Architecture& a, Kernels kernels, DType compute) {
  SCOPED_TRACE(fmt::format("{}{} {}", a.name, a.tied ? ", tied" : "", name_of(compute)));
  Weights weights = make_weights(a), grads, leaves;
  for (auto& [name, tensor] : weights) {
    tensor = tensor.to(scalar_type(compute));
    // The oracle uses the rounded weights, because the rounding of the weights is not an error of the kernels.
    leaves[name] = tensor.to(at::kDouble, /*non_blocking*/ false, /*copy*/ true).requires_grad_(true);
    grads[name] = at::full(tensor.sizes(), NAN, wide_type(compute));
  }
  std::vector<Batch> batches;
  for (const char* key : {"first", "second"})
    batches.push_back({random_ids(3 * 7, a.vocabulary, 0, key),
                       random_ids(3 * 7, a.vocabulary, 4, std::string(key) + " labels"), 3, 7});
  double loss = 0.0;
  for (std::size_t i = 0; i < batches.size(); ++i)
    loss += Model(a, kernels, compute, weights, batches[i]).step(0.125, i > 0, grads);

  const at::Tensor want = oracle_loss(a, leaves, batches[0]) + oracle_loss(a, leaves, batches[1]);
  (want * 0.125).backward();
  const double allowed = bound(a, compute, 2 * 3 * 7);
  EXPECT_LT(allowed, 0.2) << "a bound that proves nothing";
  EXPECT_NEAR(loss / want.item<double>(), 1.0, allowed);
  for (const auto& [name, leaf] : leaves) {
    const at::Tensor& expected = leaf.grad();
    const double scale = expected.abs().max().item<double>(),
                 error = (grads.at(name).to(at::kDouble) - expected).abs().max().item<double>();
    EXPECT_GT(scale, 0.0) << name;
    EXPECT_LE(error, allowed * scale) << name;  // NaN fails
  }
}

std::vector<arch::Architecture> with_tied() {
  auto list = test_architectures();
  auto tied = list[0];
  tied.tied = true, tied.rope_scaling = arch::RopeScaling{8.0, 1.0, 4.0, 16};
  list.push_back(tied);
  return list;
}

TEST(Model, ReferenceAgreesWithAutograd) {
  for (const auto& a : with_tied()) check(a, Kernels::kReference, DType::kF64);
}
TEST(Model, AtenAgreesWithAutograd) {
  for (const auto& a : with_tied()) check(a, Kernels::kAten, DType::kF64);
}
// These are the kernels and the type that CPUs normally run.
TEST(Model, FusedAgreesWithAutograd) {
  for (const auto& a : with_tied()) check(a, Kernels::kFused, DType::kF32);
}
// These are the kernels that run in bf16 in practice.
TEST(Model, AtenInHalfPrecisionAgreesWithAutograd) {
  for (const auto& a : with_tied()) check(a, Kernels::kAten, DType::kBF16);
}

// With the order of work of a zero-bubble schedule, the gradients equal those of the whole backward bit for bit.
TEST(Model, HalvesGiveTheGradientsOfTheWhole) {
  for (const auto& a : with_tied())
    for (const auto& [kernels, compute] :
         {std::pair{Kernels::kReference, DType::kF64}, std::pair{Kernels::kFused, DType::kF32},
          std::pair{Kernels::kAten, DType::kF64}, std::pair{Kernels::kAten, DType::kBF16}}) {
      SCOPED_TRACE(fmt::format("{}{} {} {}", a.name, a.tied ? ", tied" : "", name_of(kernels), name_of(compute)));
      Weights weights = make_weights(a), whole, halves;
      for (auto& [name, tensor] : weights) {
        tensor = tensor.to(scalar_type(compute));
        for (Weights* grads : {&whole, &halves}) (*grads)[name] = at::full(tensor.sizes(), NAN, wide_type(compute));
      }
      for (const std::string key : {"first", "second"}) {
        const Batch batch{random_ids(3 * 7, a.vocabulary, 0, key), random_ids(3 * 7, a.vocabulary, 4, key + " labels"),
                          3, 7};
        const bool accumulate = key == "second";
        EXPECT_EQ(Model(a, kernels, compute, weights, batch).step(0.125, accumulate, whole),
                  Model(a, kernels, compute, weights, batch, true).step(0.125, accumulate, halves));
      }
      for (const auto& [name, gradient] : whole) EXPECT_TRUE(at::equal(gradient, halves.at(name))) << name;
    }
}

// The expected values come from transformers 4.x, modeling_rope_utils._compute_llama3_parameters, for theta 500000, D
// 128, factor 8, low 1, high 4, original 8192.
TEST(Rope, ScalesFrequenciesAsLlama3) {
  arch::Architecture a = test_architectures()[0];
  a.head_dim = 128, a.rope_theta = 500000.0, a.rope_scaling = arch::RopeScaling{};
  const RopeTable t = make_rope_table(a, 2, at::kDouble, at::kCPU);
  const auto frequency = [&](std::int64_t i) {
    return std::atan2(t.sin_SD2[1][i].item<double>(), t.cos_SD2[1][i].item<double>());
  };
  const auto plain = [](double i) { return std::pow(500000.0, -i / 64.0); };
  EXPECT_NEAR(frequency(0), 1.0, 1e-12);
  EXPECT_NEAR(frequency(20) / plain(20), 1.0, 1e-12);        // wavelength 380 < 8192/4: kept
  EXPECT_NEAR(frequency(50) / plain(50), 1.0 / 8.0, 1e-12);  // wavelength 178,000 > 8192: stretched
  const double wavelength = 2.0 * M_PI / plain(32), smooth = (8192.0 / wavelength - 1.0) / 3.0;
  EXPECT_NEAR(frequency(32), ((1.0 - smooth) / 8.0 + smooth) * plain(32), 1e-12);
}

TEST(Process, OneOpenMpRuntime) {
  std::ifstream maps("/proc/self/maps");
  std::map<std::string, int> runtimes;
  for (std::string line; std::getline(maps, line);)
    if (const auto at = line.find('/'); at != std::string::npos && line.find("gomp", at) != std::string::npos)
      ++runtimes[line.substr(at)];
  EXPECT_EQ(runtimes.size(), 1U) << "two thread pools would fight for the cores";
}

}  // namespace
}  // namespace molen::model
