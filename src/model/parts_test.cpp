// Tests every part, forward and backward, on each path against the double reference, within bounds that follow from
// dtype and length. Also tests that each part takes exactly the declared scratch and allocates nothing else.
#include "model/parts.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "arch/tensor_parallel.h"
#include "math/test_close.h"
#include "model/test_parts.h"
#include "program/parts/part.h"

namespace molen::model {
namespace {

using math::testing::Bound;
using math::testing::close;

// Fills the operands that the backward takes from the forward: the reference's statistics, attention output and lse,
// rounded for the path.
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

void check_part(const Case& c, Part part, Pass pass, bool accumulate) {
  const c10::InferenceMode inference;
  SCOPED_TRACE(fmt::format("{} {} {} {} accumulate={}", c.arch.name, c.path.name, arch::name_of(part), name_of(pass),
                           accumulate));
  arch::PartShape shape{c.batch,        c.sequence,     part == Part::kHead ? c.batch * c.sequence - 3 : 0,
                        c.path.compute, c.path.threads, c.path.kernels};
  arch::PartShape plain = shape;
  plain.compute = DType::kF64, plain.kernels = Kernels::kReference, plain.threads = 1;
  Workspace exact(program::part_cost(c.arch, part, pass, shape).scratch.value), ample(std::int64_t{1} << 22);
  const Context context = with_slopes({c.arch, shape, exact.scratch, accumulate}),
                oracle = with_slopes({c.arch, plain, ample.scratch, accumulate});
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
    // Activations have the rounding of the compute dtype; main gradients are fp32 sums of terms with that rounding.
    const Bound bound{unit_roundoff(c.path.compute), o.length, o.c, 1.0};
    EXPECT_TRUE(close(values(got[o.name]), values(want[o.name]), bound)) << o.name;
  }
  if (scratch_is_exact(c.path, part)) {
    EXPECT_EQ(exact.scratch.high_water(), exact.scratch.capacity());
  }
}

class Parts : public OnPath {};
INSTANTIATE_TEST_SUITE_P(Paths, Parts, ::testing::ValuesIn(kPaths),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Parts, AgreeWithTheDoubleReference) {
  for (const auto& a : test_architectures())
    for (const Part part : arch::parts_in_order(a))
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        for (const bool accumulate : {false, true}) {
          if (pass == Pass::kForward && accumulate) continue;
          check_part({a, GetParam(), 3, 7}, part, pass, accumulate);
        }
}

TEST_P(Parts, LongerSequences) {
  for (const auto& a : test_architectures())
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      check_part({a, GetParam(), 1, 131}, Part::kAttention, pass, false);
}

// The weights, and the rows of a bias and of the head, are larger than one of the blocks in which fp16 is widened.
TEST(HalfPrecision, IsWidenedBlockAfterBlock) {
  auto a = test_architectures()[2];
  a.hidden = 20, a.ffn = a.vocabulary = 16384;
  ASSERT_GT(a.ffn * a.hidden, arch::kWidenBlock);
  ASSERT_LT(arch::widened_rows(3 * 7 - 3, a.vocabulary), 3 * 7 - 3);
  ASSERT_TRUE(a.biases);
  check_part({a, kPaths[6], 3, 7}, Part::kNormUp, Pass::kBackward, false);
  check_part({a, kPaths[6], 3, 7}, Part::kHead, Pass::kBackward, true);
}

// At these sizes ATen and its BLAS block and pack. The test compares the scratch that an op takes with the declared
// scratch.
TEST(Scratch, OfAtenIsWhatIsDeclared) {
  static_assert(arch::kAtenScalars == math::AllocationGuard::kStray);
  const c10::InferenceMode inference;
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  auto llama = test_architectures()[0], gpt = test_architectures()[2];
  llama.hidden = 256, llama.ffn = 704, llama.heads = 8, llama.kv_heads = 4, llama.head_dim = 32,
  llama.vocabulary = 9000;  // the head's long products (math/gemm_narrow.h)
  gpt.hidden = 320, gpt.ffn = 1280, gpt.heads = 5, gpt.kv_heads = 5, gpt.head_dim = 64, gpt.vocabulary = 3000,
  gpt.max_sequence = 512;
  auto qwen = llama;
  qwen.name = "qwen", qwen.qk_norm = arch::QkNorm::kHead;
  for (const auto& a : {llama, gpt, qwen})
    for (const Path& path : {kPaths[3], kPaths[4], kPaths[5]}) {
      Tensors t = make_operands({a, path, 1, 512}, false);
      for (const char* name : {"rstd", "mean", "lse"})
        if (t[name].defined()) t[name].fill_(1.0);
      const RopeTable rope = make_rope_table(a, 512, path.compute == DType::kF64 ? at::kDouble : at::kFloat, at::kCPU);
      for (const Part part : arch::parts_in_order(a))
        for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kBackwardInput, Pass::kBackwardWeights}) {
          if (pass > Pass::kBackward && !program::has_halves(part)) continue;
          const std::string what = fmt::format("{} {} {} {}", a.name, path.name, arch::name_of(part), name_of(pass));
          SCOPED_TRACE(what);
          const arch::PartShape shape{1, 512, part == Part::kHead ? 256 : 0, path.compute, 2, Kernels::kAten};
          Workspace work(program::part_cost(a, part, pass, shape).scratch.value);
          guarded(shape, work.scratch, [&] {
            run_part(with_slopes({a, shape, work.scratch, true, {}, half_of(pass)}), part, pass, rope, t);
          });
          const std::int64_t planned = work.scratch.capacity(), measured = work.scratch.high_water();
          fmt::print("{:<57} planned {:>10} measured {:>10} ratio {:.3f}\n", what, planned, measured,
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
      Workspace w(program::part_cost(a, Part::kHead, Pass::kBackward, shape).scratch.value);
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
    Workspace w(program::part_cost(a, Part::kHead, Pass::kForward, shape).scratch.value);
    head_logits({a, shape, w.scratch, false}, t["x"], t["table"], t["logits"]);
    EXPECT_TRUE(close(values(t["logits"]), values(at::mm(want["x"], want["table"].t())),
                      {unit_roundoff(path.compute), a.hidden, 8, 0}))
        << path.name;
  }
  const Case c{a, kPaths[1], 3, 7};
  Tensors t = make_operands(c, false);
  const arch::PartShape shape{3, 7, 21, DType::kF32, 2, Kernels::kFused};
  Workspace w(program::part_cost(a, Part::kHead, Pass::kForward, shape).scratch.value);
  t["labels"].data_ptr<std::int32_t>()[4] = static_cast<std::int32_t>(a.vocabulary);
  EXPECT_THROW(head_loss_forward({a, shape, w.scratch, false}, t["x"], t["labels"], t["table"], t["losses"]), Error);
}

TEST(Scratch, TooLittleIsAnError) {
  const c10::InferenceMode inference;
  const auto a = test_architectures()[0];
  Tensors t = make_operands({a, kPaths[1], 3, 7}, false);
  const arch::PartShape shape{3, 7, 0, DType::kF32, 2, Kernels::kFused};
  Workspace w(program::part_cost(a, Part::kNormUp, Pass::kForward, shape).scratch.value - 64);
  NormSaved saved{t["rstd"], {}};
  EXPECT_THROW(
      norm_up_forward({a, shape, w.scratch, false}, t["x"], {t["norm_w"], {}}, {t["up_w"], {}}, saved, t["y_up"]),
      Error);
}

// Compares the assembled embedding and head of ranks that share the vocabulary with the whole, in double.
TEST_P(Parts, SharedVocabulariesAddUpToTheWhole) {
  const c10::InferenceMode inference;
  constexpr int kRanks = 3;
  // This share is long enough for the long products of math/gemm_narrow.h. Its rows are so narrow that the products
  // take more scratch than the gradient of the table.
  auto narrow = test_architectures()[0];
  narrow.name = "long vocabulary", narrow.hidden = 16, narrow.vocabulary = kRanks * 8192;
  for (const auto& a : {test_architectures()[0], test_architectures()[2], narrow}) {
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
    std::vector<TensorSlice> shares;
    std::vector<at::Tensor> logits;
    arch::Architecture local = a;
    local.vocabulary = (a.vocabulary + kRanks - 1) / kRanks;
    arch::PartShape shape{3, 7, count, c.path.compute, c.path.threads, c.path.kernels};
    shape.tensor_ranks = kRanks;
    const auto table_of = [&](int r, const char* name) {
      const auto [first, last] = arch::even_range(a.vocabulary, r, kRanks);
      return of_rank[static_cast<std::size_t>(r)][name].narrow(0, first, last - first);
    };
    // Runs an op of a rank with exactly the scratch that is declared for the rank with the largest share.
    const auto run = [&](int r, Part part, Pass pass, const std::function<void(const Context&)>& f) {
      Workspace w(program::part_cost(local, part, pass, shape).scratch.value);
      guarded(shape, w.scratch, [&] { f({local, shape, w.scratch, true, shares[static_cast<std::size_t>(r)]}); });
    };
    for (int r = 0; r < kRanks; ++r) {
      of_rank.push_back(make_operands(c, false));
      TensorSlice s;
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
    // In the embedding, each row belongs to one rank and the other ranks leave zeros. Positions are added once.
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
    for (const Part part : arch::parts_in_order(a)) {
      const arch::PartShape shape{3, 7, part == Part::kHead ? 18 : 0, DType::kF32, 2, Kernels::kFused};
      const RopeTable rope = make_rope_table(a, 7, at::kFloat, at::kCPU);
      Tensors one = make_operands(c, false), two = make_operands(c, false);
      for (Tensors* t : {&one, &two}) {
        (*t)["rstd"].fill_(0.75), (*t)["lse"].fill_(1.5);
        if ((*t)["mean"].defined()) (*t)["mean"].fill_(0.25);
        Workspace w(program::part_cost(a, part, Pass::kBackward, shape).scratch.value);
        run_part(with_slopes({a, shape, w.scratch, true}), part, Pass::kBackward, rope, *t);
      }
      for (const auto& [name, tensor] : one)
        if (tensor.defined() && tensor.is_floating_point()) {
          EXPECT_TRUE(at::equal(tensor.view({-1}).view(at::kInt), two[name].view({-1}).view(at::kInt))) << name;
        }
    }
  }
}

// The cosine and sine of ATen have other last bits than those of the C library, and not the same ones in every run.
TEST(RopeTables, HaveTheCLibrarysBits) {
  arch::Architecture a;
  a.head_dim = 24, a.rope_theta = 10000.0;
  const RopeTable table = make_rope_table(a, 500, at::kDouble, at::kCPU);
  const auto cosines = table.cos_SD2.accessor<double, 2>(), sines = table.sin_SD2.accessor<double, 2>();
  for (int p = 0; p < 500; ++p)
    for (int i = 0; i < 12; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / 24);
      ASSERT_EQ(cosines[p][i], std::cos(angle)) << p << " " << i;
      ASSERT_EQ(sines[p][i], std::sin(angle)) << p << " " << i;
    }
}

}  // namespace
}  // namespace molen::model
