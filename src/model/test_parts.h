// For the tests of the parts: runs every part on named operands, as the executor runs it.
#pragma once

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "arch/parts.h"
#include "math/allocation.h"
#include "model/test_model.h"

namespace molen::model {

using arch::Kernels;
using arch::Part;
using arch::Pass;
using Tensors = std::map<std::string, at::Tensor>;

// Runs a part as the executor does. ATen may allocate only from the op's scratch, and only when the kernels are ATen's.
// This holds on all threads.
template <class F>
void guarded(const arch::PartShape& shape, math::Scratch& scratch, F&& call) {
  math::AllocationGuard::install();
  const std::int64_t before = math::AllocationGuard::unserved();
  {
    const math::AllocationGuard guard(shape.kernels == Kernels::kAten ? &scratch : nullptr);
    call();
  }
  // ATen's attention in fp64 allocates a row of sums on each thread.
  if (shape.kernels == Kernels::kAten && shape.compute == DType::kF64) return;
  EXPECT_EQ(math::AllocationGuard::unserved() - before, 0) << "allocated beside the op's scratch";
}

// Returns the half of a backward for a pass of arch/parts.h.
inline arch::Pass half_of(Pass pass) {
  return pass == Pass::kBackwardInput     ? arch::Pass::kBackwardInput
         : pass == Pass::kBackwardWeights ? arch::Pass::kBackwardWeights
                                          : arch::Pass::kBackward;
}
inline const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "forward";
    case Pass::kBackward:
      return "backward";
    case Pass::kBackwardInput:
      return "backward of the input";
    case Pass::kBackwardWeights:
      return "backward of the weights";
    case Pass::kRecompute:
      break;  // runs the kernels of the forward
  }
  throw Error("no such pass");
}

struct Path {
  const char* name;
  Kernels kernels;
  DType compute;
  int threads;
};
inline const Path kPaths[] = {{"reference_fp32", Kernels::kReference, DType::kF32, 2},
                              {"fused_fp32", Kernels::kFused, DType::kF32, 2},
                              {"fused_fp32_1", Kernels::kFused, DType::kF32, 1},
                              {"aten_fp64", Kernels::kAten, DType::kF64, 2},
                              {"aten_fp32", Kernels::kAten, DType::kF32, 2},
                              {"aten_bf16", Kernels::kAten, DType::kBF16, 2},
                              {"aten_fp16", Kernels::kAten, DType::kF16, 2}};

// Sets the number of threads of ATen's operators to the path's number, because their scratch depends on it.
class OnPath : public ::testing::TestWithParam<Path> {
 protected:
  void SetUp() override { at::set_num_threads(GetParam().threads); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  const int before_ = at::get_num_threads();
};

struct Case {
  arch::Architecture arch;
  Path path;
  std::int64_t batch, sequence;
};

// Operands of all parts by name. The operands that a part only reads have the same values, rounded to the path's dtype,
// for the path and for the reference.
class Operands {
 public:
  Operands(const Case& c, at::ScalarType compute, at::ScalarType wide) : c_(c), compute_(compute), wide_(wide) {}

  // Makes normal values, rounded to the path's dtype, in `type`.
  void make(const std::string& name, at::IntArrayRef shape, double scale, at::ScalarType rounded, at::ScalarType type) {
    t[name] = random_normal(shape, name, scale).to(rounded).to(type);
  }
  void input(const std::string& name, at::IntArrayRef shape, double scale = 1.0) {
    make(name, shape, scale, scalar_type(c_.path.compute), compute_);
  }
  // Makes gradients that are accumulated into, in the main-gradient dtype.
  void gradient(const std::string& name, at::IntArrayRef shape) { make(name, shape, 1.0, at::kFloat, wide_); }
  void output(const std::string& name, at::IntArrayRef shape) { t[name] = at::full(shape, NAN, compute_); }
  void wide_output(const std::string& name, at::IntArrayRef shape) { t[name] = at::full(shape, NAN, wide_); }

  Tensors t;

 private:
  const Case& c_;
  at::ScalarType compute_, wide_;
};

inline NormWeights norm_of(Tensors& t, const std::string& prefix) {
  return {t[prefix + "norm_w"], t[prefix + "norm_b"]};
}
inline Linear linear_of(Tensors& t, const std::string& prefix) {
  return {t[prefix + "w"], t[prefix + "b"]};
}

// Makes the operands of one part.
inline Tensors make_operands(const Case& c, bool reference) {
  const auto& a = c.arch;
  const std::int64_t n = c.batch * c.sequence, d = a.hidden, q = a.query_size();
  Operands o(c, reference ? at::kDouble : scalar_type(c.path.compute),
             reference || c.path.compute == DType::kF64 ? at::kDouble : at::kFloat);
  o.t["ids"] = random_ids(n, a.vocabulary, 0, "ids");
  o.t["labels"] = random_ids(n, a.vocabulary, 3, "labels");
  o.input("table", {a.vocabulary, d});
  o.input("positions", {a.max_sequence, d});
  if (a.position != arch::Position::kLearned) o.t["positions"] = at::Tensor();
  o.input("x", {n, d}), o.input("d_x", {n, d}), o.input("d_y", {n, d});
  o.input("o", {n, q}), o.input("d_o", {n, q}), o.input("qkv", {n, a.qkv_size()}), o.input("d_qkv", {n, a.qkv_size()});
  o.input("up", {n, a.up_size()}), o.input("d_up", {n, a.up_size()}), o.input("a", {n, a.ffn}),
      o.input("d_a", {n, a.ffn});
  for (const auto& [name, out, in] :
       {std::tuple{"qkv_", a.qkv_size(), d}, {"out_", d, q}, {"up_", a.up_size(), d}, {"down_", d, a.ffn}}) {
    const std::string p = name;
    o.input(p + "w", {out, in}, 1.0 / std::sqrt(static_cast<double>(in))), o.gradient("d_" + p + "w", {out, in});
    if (a.biases) o.input(p + "b", {out}), o.gradient("d_" + p + "b", {out});
  }
  if (a.norm != arch::Norm::kLayerPlain) o.input("norm_w", {d}), o.gradient("d_norm_w", {d});
  if (a.norm == arch::Norm::kLayer) o.input("norm_b", {d}), o.gradient("d_norm_b", {d});
  for (const auto& [name, size] : {std::pair{"q_norm_w", a.query_norm_size()}, {"k_norm_w", a.key_norm_size()}})
    if (a.norms_qk()) o.input(name, {size}), o.gradient(std::string("d_") + name, {size});
  o.gradient("d_table", {a.vocabulary, d});
  if (a.position == arch::Position::kLearned) o.gradient("d_positions", {a.max_sequence, d});
  o.wide_output("rstd", {n}), o.wide_output("lse", {c.batch, a.heads, c.sequence}), o.wide_output("losses", {n});
  if (a.norm != arch::Norm::kRms) o.wide_output("mean", {n});
  o.output("y", {n, d}), o.output("y_qkv", {n, a.qkv_size()}), o.output("y_o", {n, q}),
      o.output("y_up", {n, a.up_size()}), o.output("y_a", {n, a.ffn});
  o.wide_output("logits", {n, a.vocabulary});
  return o.t;
}

// An output of a part, with the length of its longest sum and the number of roundings per term.
struct Output {
  std::string name;
  std::int64_t length;
  double c;
};
inline std::vector<Output> run_part(const Context& c, Part part, Pass pass, const RopeTable& rope, Tensors& t) {
  const auto& a = c.arch;
  const std::int64_t n = c.shape.tokens(), d = a.hidden;
  NormSaved saved{t["rstd"], t["mean"]};
  NormWeights norm = norm_of(t, ""), d_norm{t["d_norm_w"], t["d_norm_b"]};
  const bool forward = pass == Pass::kForward;
  const auto with_norm = [&](std::vector<Output> list) {
    if (norm.weight_d.defined()) list.push_back({"d_norm_w", n * d, 8});
    if (norm.bias_d.defined()) list.push_back({"d_norm_b", n * d, 8});
    return list;
  };
  const auto with_bias = [&](std::vector<Output> list, const std::string& name) {
    if (a.biases) list.push_back({name, n, 8});
    return list;
  };
  switch (part) {
    case Part::kEmbed:
      if (forward)
        return embed_forward(c, t["ids"], t["table"], t["positions"], t["y"]), std::vector<Output>{{"y", 1, 4}};
      embed_backward(c, t["ids"], t["d_x"], t["d_table"], t["d_positions"]);
      if (t["d_positions"].defined()) return {{"d_table", n, 4}, {"d_positions", n, 4}};
      return {{"d_table", n, 4}};
    case Part::kNormQkv: {
      Linear w = linear_of(t, "qkv_"), d_w = linear_of(t, "d_qkv_");
      if (forward) {
        norm_qkv_forward(c, t["x"], norm, w, saved, t["y_qkv"]);
        return {{"y_qkv", d, 16}, {"rstd", d, 8}};
      }
      norm_qkv_backward(c, t["d_qkv"], t["x"], saved, norm, w, t["d_x"], d_norm, d_w);
      return with_norm(with_bias({{"d_x", a.qkv_size() + d, 16}, {"d_qkv_w", n + d, 16}}, "d_qkv_b"));
    }
    case Part::kQkNorm: {
      const QkNormWeights w{t["q_norm_w"], t["k_norm_w"]};
      if (forward)
        return qk_norm_forward(c, t["qkv"], w, t["y_qkv"]), std::vector<Output>{{"y_qkv", a.query_norm_size(), 16}};
      QkNormWeights d_w{t["d_q_norm_w"], t["d_k_norm_w"]};
      qk_norm_backward(c, t["qkv"], w, t["d_qkv"], d_w);
      const std::int64_t sums = n * a.heads + a.query_norm_size();
      return {{"d_qkv", a.query_norm_size(), 24}, {"d_q_norm_w", sums, 8}, {"d_k_norm_w", sums, 8}};
    }
    case Part::kRotate:
      rotate(c, rope, !forward, t[forward ? "qkv" : "d_qkv"]);
      return {{forward ? "qkv" : "d_qkv", 2, 8}};
    case Part::kAttention:
      if (forward)
        return attention_forward(c, t["qkv"], t["y_o"], t["lse"]),
               std::vector<Output>{{"y_o", c.shape.sequence + a.head_dim, 16},
                                   {"lse", c.shape.sequence + a.head_dim, 8}};
      attention_backward(c, t["d_o"], t["qkv"], t["o"], t["lse"], t["y_qkv"]);
      return {{"y_qkv", c.shape.sequence + 2 * a.head_dim, 32}};
    case Part::kOutProjection: {
      Linear w = linear_of(t, "out_"), d_w = linear_of(t, "d_out_");
      if (forward)
        return output_projection_forward(c, t["o"], t["x"], w, t["y"]), std::vector<Output>{{"y", a.query_size(), 8}};
      output_projection_backward(c, t["d_x"], t["o"], w, t["y_o"], d_w);
      return with_bias({{"y_o", d, 8}, {"d_out_w", n, 8}}, "d_out_b");
    }
    case Part::kNormUp: {
      Linear w = linear_of(t, "up_"), d_w = linear_of(t, "d_up_");
      if (forward)
        return norm_up_forward(c, t["x"], norm, w, saved, t["y_up"]),
               std::vector<Output>{{"y_up", d, 16}, {"rstd", d, 8}};
      norm_up_backward(c, t["d_up"], t["x"], saved, norm, w, t["d_x"], d_norm, d_w);
      return with_norm(with_bias({{"d_x", a.up_size() + d, 16}, {"d_up_w", n + d, 16}}, "d_up_b"));
    }
    case Part::kActivation:
      if (forward) return activation_forward(c, t["up"], t["y_a"]), std::vector<Output>{{"y_a", 1, 16}};
      activation_backward(c, t["d_a"], t["up"], t["y_up"]);
      return {{"y_up", 1, 24}};
    case Part::kDown: {
      Linear w = linear_of(t, "down_"), d_w = linear_of(t, "d_down_");
      if (forward) return down_forward(c, t["a"], t["x"], w, t["y"]), std::vector<Output>{{"y", a.ffn, 8}};
      down_backward(c, t["d_x"], t["a"], w, t["y_a"], d_w);
      return with_bias({{"y_a", d, 8}, {"d_down_w", n, 8}}, "d_down_b");
    }
    case Part::kFinalNorm:
      if (forward)
        return final_norm_forward(c, t["x"], norm, saved, t["y"]), std::vector<Output>{{"y", d, 16}, {"rstd", d, 8}};
      final_norm_backward(c, t["d_y"], t["x"], saved, norm, t["y"], d_norm);
      return with_norm({{"y", d, 24}});
    case Part::kHead: {
      const std::int64_t first = 2, count = c.shape.chunk;
      at::Tensor y = t["x"].narrow(0, first, count), labels = t["labels"].narrow(0, first, count),
                 losses = t["losses"].narrow(0, first, count);
      at::Tensor d_y = t["y"].narrow(0, first, count);
      t["chunk_losses"] = losses, t["chunk_d_y"] = d_y;
      if (forward)
        return head_loss_forward(c, y, labels, t["table"], losses), std::vector<Output>{{"chunk_losses", d, 16}};
      head_loss(c, y, labels, t["table"], 1.0 / 64.0, losses, d_y, t["d_table"]);
      // Logits are about sqrt(d) large here, and exp turns their rounding into a relative error that is larger by that
      // factor.
      const double c_exp = 16.0 + 8.0 * std::sqrt(static_cast<double>(d));
      return {{"chunk_losses", d, 16}, {"chunk_d_y", d + a.vocabulary, c_exp}, {"d_table", d + count, c_exp}};
    }
    case Part::kHeadLogits:
    case Part::kHeadLoss:
      break;  // SharedVocabulary
    case Part::kRoute:
    case Part::kLimit:
    case Part::kBalance:
    case Part::kSharedUp:
    case Part::kSharedActivation:
    case Part::kSharedDown:
    case Part::kDispatch:
    case Part::kExpertUp:
    case Part::kExpertActivation:
    case Part::kExpertDown:
    case Part::kCombine:
      break;  // tested in experts_test.cpp
  }
  throw Error("no such part");
}

inline std::vector<double> values(const at::Tensor& t) {
  const at::Tensor wide = t.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

// Returns whether the part takes exactly the declared scratch on this path. On the other paths it may take less. Taking
// more fails on every path.
inline bool scratch_is_exact(const Path& path, Part part) {
  return path.kernels != Kernels::kAten || path.compute != DType::kF64 ||
         (part != Part::kAttention && part != Part::kHead);
}

}  // namespace molen::model
