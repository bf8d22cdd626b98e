// Every part, forward and backward, on each path against the double reference, within bounds that follow from dtype and
// length; scratch taken against scratch declared; nothing else allocated.
#include "model/parts.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <map>

#include "arch/tensor_parallel.h"
#include "math/allocation.h"
#include "math/test_close.h"
#include "model/test_model.h"

namespace molen::model {
namespace {

using arch::Kernels;
using arch::Part;
using arch::Pass;
using math::testing::Bound;
using math::testing::close;
using Tensors = std::map<std::string, at::Tensor>;

// Runs a part as the executor does: ATen may allocate from the op's scratch where the kernels are ATen's, and not at
// all elsewhere, on no thread.
template <class F>
void guarded(const arch::PartShape& shape, math::Scratch& scratch, F&& call) {
  math::AllocationGuard::install();
  const std::int64_t before = math::AllocationGuard::unserved();
  {
    const math::AllocationGuard guard(shape.kernels == Kernels::kAten ? &scratch : nullptr);
    call();
  }
  // ATen's attention in fp64 takes a row of sums on each thread.
  if (shape.kernels == Kernels::kAten && shape.compute == DType::kF64) return;
  EXPECT_EQ(math::AllocationGuard::unserved() - before, 0) << "allocated beside the op's scratch";
}

struct Path {
  const char* name;
  Kernels kernels;
  DType compute;
  int threads;
};
const Path kPaths[] = {{"reference_fp32", Kernels::kReference, DType::kF32, 2},
                       {"fused_fp32", Kernels::kFused, DType::kF32, 2},
                       {"fused_fp32_1", Kernels::kFused, DType::kF32, 1},
                       {"aten_fp64", Kernels::kAten, DType::kF64, 2},
                       {"aten_fp32", Kernels::kAten, DType::kF32, 2},
                       {"aten_bf16", Kernels::kAten, DType::kBF16, 2},
                       {"aten_fp16", Kernels::kAten, DType::kF16, 2}};

struct Case {
  arch::Architecture arch;
  Path path;
  std::int64_t batch, sequence;
};

// Operands of all parts by name. What a part only reads is the same (rounded to the path's dtype) for both sides.
class Operands {
 public:
  Operands(const Case& c, at::ScalarType compute, at::ScalarType wide) : c_(c), compute_(compute), wide_(wide) {}

  // Normal values rounded to the path's dtype, in `type`.
  void make(const std::string& name, at::IntArrayRef shape, double scale, at::ScalarType rounded, at::ScalarType type) {
    t[name] = random_normal(shape, name, scale).to(rounded).to(type);
  }
  void input(const std::string& name, at::IntArrayRef shape, double scale = 1.0) {
    make(name, shape, scale, scalar_type(c_.path.compute), compute_);
  }
  // Gradients that are accumulated into, in the main-gradient dtype.
  void gradient(const std::string& name, at::IntArrayRef shape) { make(name, shape, 1.0, at::kFloat, wide_); }
  void output(const std::string& name, at::IntArrayRef shape) { t[name] = at::full(shape, NAN, compute_); }
  void wide_output(const std::string& name, at::IntArrayRef shape) { t[name] = at::full(shape, NAN, wide_); }

  Tensors t;

 private:
  const Case& c_;
  at::ScalarType compute_, wide_;
};

NormWeights norm_of(Tensors& t, const std::string& prefix) {
  return {t[prefix + "norm_w"], t[prefix + "norm_b"]};
}
Linear linear_of(Tensors& t, const std::string& prefix) {
  return {t[prefix + "w"], t[prefix + "b"]};
}

// Makes the operands of one part.
Tensors make_operands(const Case& c, bool reference) {
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
  o.gradient("d_table", {a.vocabulary, d});
  if (a.position == arch::Position::kLearned) o.gradient("d_positions", {a.max_sequence, d});
  o.wide_output("rstd", {n}), o.wide_output("lse", {c.batch, a.heads, c.sequence}), o.wide_output("losses", {n});
  if (a.norm != arch::Norm::kRms) o.wide_output("mean", {n});
  o.output("y", {n, d}), o.output("y_qkv", {n, a.qkv_size()}), o.output("y_o", {n, q}),
      o.output("y_up", {n, a.up_size()}), o.output("y_a", {n, a.ffn});
  o.wide_output("logits", {n, a.vocabulary});
  return o.t;
}

// Runs the part on the operands; names the outputs with the length of their longest sum and the roundings per term.
struct Output {
  std::string name;
  std::int64_t length;
  double c;
};
std::vector<Output> run_part(const Context& c, Part part, Pass pass, const RopeTable& rope, Tensors& t) {
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
        norm_qkv_forward(c, t["x"], norm, w, rope, saved, t["y_qkv"]);
        return {{"y_qkv", d, 16}, {"rstd", d, 8}};
      }
      norm_qkv_backward(c, t["d_qkv"], t["x"], saved, norm, w, rope, t["d_x"], d_norm, d_w);
      return with_norm(with_bias({{"d_x", a.qkv_size() + d, 16}, {"d_qkv_w", n + d, 16}}, "d_qkv_b"));
    }
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
      // Logits are some sqrt(d) large here, and exp turns their rounding into a relative error that much larger.
      const double c_exp = 16.0 + 8.0 * std::sqrt(static_cast<double>(d));
      return {{"chunk_losses", d, 16}, {"chunk_d_y", d + a.vocabulary, c_exp}, {"d_table", d + count, c_exp}};
    }
    case Part::kHeadLogits:
    case Part::kHeadLoss:
      break;  // SharedVocabulary
  }
  throw Error("no such part");
}

std::vector<double> values(const at::Tensor& t) {
  const at::Tensor wide = t.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

// What the backward takes from the forward: the reference's statistics, attention output and lse, rounded for the path.
void fill_saved(const Context& c, Part part, const RopeTable& rope, Tensors& reference, Tensors& path) {
  run_part(c, part, Pass::kForward, rope, reference);
  c.scratch.reset();
  for (const char* name : {"rstd", "mean", "lse"})
    if (path[name].defined()) path[name].copy_(reference[name]);
  if (part == Part::kAttention) {
    path["o"].copy_(reference["y_o"]);
    reference["o"].copy_(path["o"]);
  }
}

// More than declared fails in every case; in these it is the very amount.
bool scratch_is_exact(const Path& path, Part part) {
  return path.kernels != Kernels::kAten || path.compute != DType::kF64 ||
         (part != Part::kAttention && part != Part::kHead);
}

void check(const Case& c, Part part, Pass pass, bool accumulate) {
  const c10::InferenceMode inference;
  SCOPED_TRACE(fmt::format("{} {} {} {} accumulate={}", c.arch.name, c.path.name, arch::name_of(part),
                           pass == Pass::kForward ? "forward" : "backward", accumulate));
  arch::PartShape shape{c.batch,        c.sequence,     part == Part::kHead ? c.batch * c.sequence - 3 : 0,
                        c.path.compute, c.path.threads, c.path.kernels};
  arch::PartShape plain = shape;
  plain.compute = DType::kF64, plain.kernels = Kernels::kReference, plain.threads = 1;
  Workspace exact(arch::part_cost(c.arch, part, pass, shape).scratch.value), ample(std::int64_t{1} << 22);
  const Context context{c.arch, shape, exact.scratch, accumulate}, oracle{c.arch, plain, ample.scratch, accumulate};
  Tensors got = make_operands(c, false), want = make_operands(c, true);
  const at::ScalarType wide = c.path.compute == DType::kF64 ? at::kDouble : at::kFloat;
  const RopeTable rope = make_rope_table(c.arch, c.sequence, wide, at::kCPU);
  const RopeTable exact_rope =
      rope.cos_SD2.defined() ? RopeTable{rope.cos_SD2.to(at::kDouble), rope.sin_SD2.to(at::kDouble)} : RopeTable{};
  if (pass == Pass::kBackward && part != Part::kHead && part != Part::kEmbed)
    fill_saved(oracle, part, exact_rope, want, got);
  const auto outputs = run_part(oracle, part, pass, exact_rope, want);
  guarded(shape, exact.scratch, [&] { run_part(context, part, pass, rope, got); });
  for (const Output& o : outputs) {
    // Activations carry the rounding of the compute dtype; main gradients are fp32, of terms that carry it too.
    const Bound bound{unit_roundoff(c.path.compute), o.length, o.c, 1.0};
    EXPECT_TRUE(close(values(got[o.name]), values(want[o.name]), bound)) << o.name;
  }
  if (scratch_is_exact(c.path, part)) {
    EXPECT_EQ(exact.scratch.high_water(), exact.scratch.capacity());
  }
}

class Parts : public ::testing::TestWithParam<Path> {};
INSTANTIATE_TEST_SUITE_P(Paths, Parts, ::testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Parts, AgreeWithTheDoubleReference) {
  for (const auto& a : test_architectures())
    for (const Part part : arch::kWholeParts)
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        for (const bool accumulate : {false, true}) {
          if (pass == Pass::kForward && accumulate) continue;
          check({a, GetParam(), 3, 7}, part, pass, accumulate);
        }
}

TEST_P(Parts, LongerSequences) {
  for (const auto& a : test_architectures())
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      check({a, GetParam(), 1, 131}, Part::kAttention, pass, false);
}

// At sizes where ATen and its BLAS block and pack: what an op takes beside what is declared for it.
TEST(Scratch, OfAtenIsWhatIsDeclared) {
  static_assert(arch::kAtenScalars == math::AllocationGuard::kStray);
  const c10::InferenceMode inference;
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  auto llama = test_architectures()[0], gpt = test_architectures()[2];
  llama.hidden = 256, llama.ffn = 704, llama.heads = 8, llama.kv_heads = 4, llama.head_dim = 32,
  llama.vocabulary = 3000;
  gpt.hidden = 320, gpt.ffn = 1280, gpt.heads = 5, gpt.kv_heads = 5, gpt.head_dim = 64, gpt.vocabulary = 3000,
  gpt.max_sequence = 512;
  for (const auto& a : {llama, gpt})
    for (const Path& path : {kPaths[3], kPaths[4], kPaths[5]}) {
      Tensors t = make_operands({a, path, 1, 512}, false);
      for (const char* name : {"rstd", "mean", "lse"})
        if (t[name].defined()) t[name].fill_(1.0);
      const RopeTable rope = make_rope_table(a, 512, path.compute == DType::kF64 ? at::kDouble : at::kFloat, at::kCPU);
      for (const Part part : arch::kWholeParts)
        for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
          const std::string what = fmt::format("{} {} {} {}", a.name, path.name, arch::name_of(part),
                                               pass == Pass::kForward ? "forward" : "backward");
          SCOPED_TRACE(what);
          const arch::PartShape shape{1, 512, part == Part::kHead ? 256 : 0, path.compute, 2, Kernels::kAten};
          Workspace work(arch::part_cost(a, part, pass, shape).scratch.value);
          guarded(shape, work.scratch, [&] { run_part({a, shape, work.scratch, true}, part, pass, rope, t); });
          const std::int64_t planned = work.scratch.capacity(), measured = work.scratch.high_water();
          fmt::print("{:<44} planned {:>10} measured {:>10} ratio {:.3f}\n", what, planned, measured,
                     static_cast<double>(planned) / static_cast<double>(measured));
          if (scratch_is_exact(path, part)) {
            EXPECT_EQ(planned, measured);
          }
        }
      fmt::print("  the products' library keeps {} bytes\n", math::LibraryCall::kept());
    }
  at::set_num_threads(threads);
}

TEST(Head, ChunksAddUpToTheWhole) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  const Case c{a, kPaths[1], 3, 7};
  std::vector<std::vector<double>> losses, gradients;
  for (const std::int64_t chunk : {21, 8, 1}) {
    Tensors t = make_operands(c, false);
    for (std::int64_t first = 0; first < 21; first += chunk) {
      const std::int64_t count = std::min<std::int64_t>(chunk, 21 - first);
      const arch::PartShape shape{3, 7, count, DType::kF32, 2, Kernels::kFused};
      Workspace w(arch::part_cost(a, Part::kHead, Pass::kBackward, shape).scratch.value);
      at::Tensor part = t["losses"].narrow(0, first, count), d_y = t["y"].narrow(0, first, count);
      head_loss({a, shape, w.scratch, first > 0}, t["x"].narrow(0, first, count), t["labels"].narrow(0, first, count),
                t["table"], 0.25, part, d_y, t["d_table"]);
    }
    losses.push_back(values(t["losses"])), gradients.push_back(values(t["d_table"]));
  }
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_TRUE(close(losses[i], losses[0], {0x1p-24, a.hidden, 16, 0}));
    EXPECT_TRUE(close(gradients[i], gradients[0], {0x1p-24, 21 + a.hidden, 64, 0}));
  }
}

TEST(Head, LogitsAndHostileLabels) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  for (const Path& path : kPaths) {
    const Case c{a, path, 3, 7};
    Tensors t = make_operands(c, false), want = make_operands(c, true);
    const arch::PartShape shape{3, 7, 21, path.compute, 2, path.kernels};
    Workspace w(arch::part_cost(a, Part::kHead, Pass::kForward, shape).scratch.value);
    head_logits({a, shape, w.scratch, false}, t["x"], t["table"], t["logits"]);
    EXPECT_TRUE(close(values(t["logits"]), values(at::mm(want["x"], want["table"].t())),
                      {unit_roundoff(path.compute), a.hidden, 8, 0}))
        << path.name;
  }
  const Case c{a, kPaths[1], 3, 7};
  Tensors t = make_operands(c, false);
  const arch::PartShape shape{3, 7, 21, DType::kF32, 2, Kernels::kFused};
  Workspace w(arch::part_cost(a, Part::kHead, Pass::kForward, shape).scratch.value);
  t["labels"].data_ptr<std::int32_t>()[4] = static_cast<std::int32_t>(a.vocabulary);
  EXPECT_THROW(head_loss_forward({a, shape, w.scratch, false}, t["x"], t["labels"], t["table"], t["losses"]), Error);
}

TEST(Scratch, TooLittleIsAnError) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  Tensors t = make_operands({a, kPaths[1], 3, 7}, false);
  const arch::PartShape shape{3, 7, 0, DType::kF32, 2, Kernels::kFused};
  Workspace w(arch::part_cost(a, Part::kNormUp, Pass::kForward, shape).scratch.value - 64);
  NormSaved saved{t["rstd"], {}};
  EXPECT_THROW(
      norm_up_forward({a, shape, w.scratch, false}, t["x"], {t["norm_w"], {}}, {t["up_w"], {}}, saved, t["y_up"]),
      Error);
}

// Embedding and head of ranks that share the vocabulary, put together, beside the whole in double.
TEST_P(Parts, SharedVocabulariesAddUpToTheWhole) {
  const c10::InferenceMode inference;
  constexpr int kRanks = 3;
  for (const auto& a : {test_architectures()[0], test_architectures()[2]}) {
    const Case c{a, GetParam(), 3, 7};
    const std::int64_t n = 21, count = n - 3, stride = n, d = a.hidden;
    arch::PartShape plain{3, 7, count, DType::kF64, 1, Kernels::kReference};
    Workspace ample(std::int64_t{1} << 22);
    Tensors want = make_operands(c, true);
    const Context oracle{a, plain, ample.scratch, true};
    const auto outputs = run_part(oracle, Part::kHead, Pass::kBackward, {}, want);

    const at::ScalarType wide = c.path.compute == DType::kF64 ? at::kDouble : at::kFloat;
    const at::Tensor sums = at::full({kRanks, stride, 2}, NAN, wide);
    std::vector<Tensors> of_rank;
    std::vector<Share> shares;
    std::vector<at::Tensor> logits;
    arch::Architecture local = a;
    local.vocabulary = (a.vocabulary + kRanks - 1) / kRanks;
    arch::PartShape shape{3, 7, count, c.path.compute, c.path.threads, c.path.kernels};
    shape.tensor_ranks = kRanks;
    const auto table_of = [&](int r, const char* name) {
      const auto [first, last] = arch::even_range(a.vocabulary, r, kRanks);
      return of_rank[static_cast<std::size_t>(r)][name].narrow(0, first, last - first);
    };
    // An op of a rank on exactly the scratch that is declared for its largest.
    const auto run = [&](int r, Part part, Pass pass, const std::function<void(const Context&)>& f) {
      Workspace w(arch::part_cost(local, part, pass, shape).scratch.value);
      guarded(shape, w.scratch, [&] { f({local, shape, w.scratch, true, shares[static_cast<std::size_t>(r)]}); });
    };
    for (int r = 0; r < kRanks; ++r) {
      of_rank.push_back(make_operands(c, false));
      Share s;
      s.rank = r, s.ranks = kRanks, s.rows = 7, s.first_row = 7 * r;
      s.vocabulary_first = arch::even_range(a.vocabulary, r, kRanks).first, s.vocabulary_all = a.vocabulary;
      shares.push_back(s);
      auto& t = of_rank.back();
      const at::Tensor y = t["x"].narrow(0, 2, count), labels = t["labels"].narrow(0, 2, count),
                       table = table_of(r, "table");
      logits.push_back(at::full({count, table.size(0)}, NAN, wide));
      at::Tensor mine = sums.select(0, r).narrow(0, 0, count);
      run(r, Part::kHeadLogits, Pass::kForward,
          [&](const Context& x) { head_logits_sums(x, y, labels, table, logits.back(), mine); });
    }
    at::Tensor d_y = at::zeros({count, d}, at::kDouble), losses, d_table = want["d_table"].clone();
    for (int r = 0; r < kRanks; ++r) {
      auto& t = of_rank[static_cast<std::size_t>(r)];
      const at::Tensor y = t["x"].narrow(0, 2, count), labels = t["labels"].narrow(0, 2, count),
                       table = table_of(r, "table");
      at::Tensor part = t["y"].narrow(0, 2, count), gradient = table_of(r, "d_table"),
                 loss = t["losses"].narrow(0, 2, count), l = logits[static_cast<std::size_t>(r)];
      run(r, Part::kHeadLoss, Pass::kForward, [&](const Context& x) { head_shared_loss(x, sums, labels, loss); });
      losses = loss.clone();
      run(r, Part::kHeadLoss, Pass::kBackward, [&](const Context& x) {
        head_shared_gradient(x, sums, labels, l, y, table, 1.0 / 64.0, loss, part, gradient);
      });
      EXPECT_TRUE(at::equal(losses, loss));
      d_y += part.to(at::kDouble);
      const auto [first, last] = arch::even_range(a.vocabulary, r, kRanks);
      d_table.narrow(0, first, last - first).copy_(gradient);
    }
    const Tensors got{{"chunk_losses", losses}, {"chunk_d_y", d_y}, {"d_table", d_table}};
    for (const Output& o : outputs) {
      const Bound bound{unit_roundoff(c.path.compute), o.length + kRanks, o.c, 1.0};
      EXPECT_TRUE(close(values(got.at(o.name)), values(want[o.name]), bound)) << a.name << " " << o.name;
    }
    // The embedding: each row is of one rank, the others leave zeros; positions are added once.
    Tensors whole = make_operands(c, true);
    run_part(oracle, Part::kEmbed, Pass::kForward, {}, whole);
    at::Tensor x = at::zeros({n, d}, at::kDouble);
    for (int r = 0; r < kRanks; ++r) {
      auto& t = of_rank[static_cast<std::size_t>(r)];
      run(r, Part::kEmbed, Pass::kForward,
          [&](const Context& k) { embed_forward(k, t["ids"], table_of(r, "table"), t["positions"], t["y"]); });
      x += t["y"].to(at::kDouble);
    }
    EXPECT_TRUE(close(values(x), values(whole["y"]), Bound{unit_roundoff(c.path.compute), 1, 4, 1.0}));
  }
}

TEST(Kernels, RunTwiceGiveTheSameBits) {
  const c10::InferenceMode inference;
  for (const auto& a : test_architectures()) {
    const Case c{a, kPaths[1], 3, 7};
    for (const Part part : arch::kWholeParts) {
      const arch::PartShape shape{3, 7, part == Part::kHead ? 18 : 0, DType::kF32, 2, Kernels::kFused};
      const RopeTable rope = make_rope_table(a, 7, at::kFloat, at::kCPU);
      Tensors one = make_operands(c, false), two = make_operands(c, false);
      for (Tensors* t : {&one, &two}) {
        (*t)["rstd"].fill_(0.75), (*t)["lse"].fill_(1.5);
        if ((*t)["mean"].defined()) (*t)["mean"].fill_(0.25);
        Workspace w(arch::part_cost(a, part, Pass::kBackward, shape).scratch.value);
        run_part({a, shape, w.scratch, true}, part, Pass::kBackward, rope, *t);
      }
      for (const auto& [name, tensor] : one)
        if (tensor.defined() && tensor.is_floating_point()) {
          EXPECT_TRUE(at::equal(tensor.view({-1}).view(at::kInt), two[name].view({-1}).view(at::kInt))) << name;
        }
    }
  }
}

}  // namespace
}  // namespace molen::model
