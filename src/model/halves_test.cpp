// Tests the split backward of a part (Context::half) against the whole backward: the same bits, with only the operands
// that each half is documented to take, and with exactly the declared scratch.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "model/parts.h"
#include "model/test_parts.h"
#include "program/parts/part.h"

namespace molen::model {
namespace {

using Names = std::set<std::string>;

// The operands of run_part that a half takes, and the ones that it writes.
struct Taken {
  Names all, written;
};
Taken taken(Part part, Pass half) {
  const bool input = half == Pass::kBackwardInput;
  const auto linear = [&](const std::string& name, const std::string& x, const std::string& d_in) {
    Taken t;
    t.written = input ? Names{d_in} : Names{"d_" + name + "_w", "d_" + name + "_b"};
    t.all = {"d_x", input ? name + "_w" : x};
    return t;
  };
  const auto norm_linear = [&](const std::string& name) {
    Taken t;
    t.written = input ? Names{"d_x", "d_norm_w", "d_norm_b"} : Names{"d_" + name + "_w", "d_" + name + "_b"};
    t.all = {"d_" + name, "x", "rstd", "mean", "norm_w", "norm_b"};
    if (input) t.all.insert(name + "_w");
    return t;
  };
  Taken t;
  if (part == Part::kDown) t = linear("down", "a", "y_a");
  if (part == Part::kOutProjection) t = linear("out", "o", "y_o");
  if (part == Part::kNormUp) t = norm_linear("up");
  if (part == Part::kNormQkv) t = norm_linear("qkv");
  t.all.insert(t.written.begin(), t.written.end());
  return t;
}

Tensors clone(const Tensors& t) {
  Tensors copy;
  for (const auto& [name, tensor] : t) copy[name] = tensor.defined() ? tensor.clone() : tensor;
  return copy;
}
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() &&
         (!a.defined() || (a.nbytes() == b.nbytes() && std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0));
}
// Makes operands with constant statistics in place of the values that the forward saves.
Tensors make(const Case& c) {
  Tensors t = make_operands(c, false);
  for (const auto& [name, value] : {std::pair{"rstd", 0.75}, std::pair{"mean", 0.25}, std::pair{"lse", 1.5}})
    if (t[name].defined()) t[name].fill_(value);
  // Adds undefined tensors, as for norm weights that an architecture lacks.
  for (const char* name : {"norm_w", "norm_b", "d_norm_w", "d_norm_b", "mean"}) t.try_emplace(name);
  for (const std::string name : {"qkv_", "out_", "up_", "down_"}) t.try_emplace("d_" + name + "b");
  return t;
}
// Returns the names whose tensors differ in any bit.
Names differing(const Tensors& a, const Tensors& b) {
  Names names;
  for (const auto& [name, tensor] : a)
    if (!same_bits(tensor, b.at(name))) names.insert(name);
  return names;
}

struct Task {
  Case c;
  Part part;
  TensorSlice share;
  bool accumulate;

  arch::PartShape shape() const {
    arch::PartShape s{c.batch,        c.sequence,     program::of_head(part) ? c.batch * c.sequence - 3 : 0,
                      c.path.compute, c.path.threads, c.path.kernels};
    s.tensor_ranks = share.ranks;
    return s;
  }
  RopeTable rope() const {
    return make_rope_table(c.arch, c.sequence, c.path.compute == DType::kF64 ? at::kDouble : at::kFloat, at::kCPU);
  }
  void run(Pass pass, Tensors t) const {
    Workspace exact(program::part_cost(c.arch, part, pass, shape()).scratch.value);
    const Context context = with_slopes({c.arch, shape(), exact.scratch, accumulate, share, half_of(pass)});
    const RopeTable table = rope();
    guarded(shape(), exact.scratch, [&] { run_part(context, part, pass, table, t); });
    if (scratch_is_exact(c.path, part)) {
      EXPECT_EQ(exact.scratch.high_water(), exact.scratch.capacity()) << name_of(pass);
    }
  }
  // Runs a half with only the operands that it takes; all others are undefined.
  void run_bare(Pass half, const Tensors& all) const {
    Tensors t;
    for (const std::string& name : taken(part, half).all) t[name] = all.at(name);
    run(half, t);
  }
  std::string name() const {
    return fmt::format("{} {} {}, rank {} of {}, residual {}, accumulate {}", c.arch.name, c.path.name,
                       arch::name_of(part), share.rank, share.ranks, share.residual_rows ? "elsewhere" : "here",
                       accumulate);
  }
};

// Returns three shares: all rows; the second third of the rows, as on a tensor rank; and the same third with the
// residual kept by rows.
std::vector<TensorSlice> shares() {
  TensorSlice rows;
  rows.rank = 1, rows.ranks = 3, rows.first_row = 7, rows.rows = 7;
  TensorSlice residual = rows;
  residual.residual_rows = true;
  return {TensorSlice{}, rows, residual};
}

std::vector<Part> parts_with_halves() {
  std::vector<Part> parts;
  for (const Part part : arch::kAllParts)
    if (program::has_halves(part)) parts.push_back(part);
  return parts;
}

void check_bits(const Task& s, const Tensors& made) {
  SCOPED_TRACE(s.name());
  Tensors whole;
  for (const Pass half : {Pass::kBackwardInput, Pass::kBackwardWeights})
    for (const std::string& name : taken(s.part, half).all) whole[name] = made.at(name);
  whole = clone(whole);
  const Tensors halves = clone(whole);
  s.run(Pass::kBackward, whole);
  s.run_bare(Pass::kBackwardInput, halves);
  s.run_bare(Pass::kBackwardWeights, halves);
  EXPECT_EQ(differing(whole, halves), Names{});
}

std::vector<Path> paths() {
  std::vector<Path> all(std::begin(kPaths), std::end(kPaths));
  all.push_back({"reference_fp64", Kernels::kReference, DType::kF64, 1});
  return all;
}
class Halves : public OnPath {};
const auto name_of_path = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Paths, Halves, ::testing::ValuesIn(paths()), name_of_path);

// Returns all paths except the reference kernels, whose plain loops do not work in blocks.
std::vector<Path> blocking_paths() {
  auto all = paths();
  std::erase_if(all, [](const Path& path) { return path.kernels == Kernels::kReference; });
  return all;
}
class BlockedHalves : public Halves {};
INSTANTIATE_TEST_SUITE_P(Paths, BlockedHalves, ::testing::ValuesIn(blocking_paths()), name_of_path);

TEST_P(Halves, GiveTheBitsOfTheWhole) {
  const c10::InferenceMode inference;
  ASSERT_EQ(parts_with_halves().size(), 4U);
  auto gated = test_architectures()[0];
  gated.name = "llama with biases", gated.biases = true;
  auto list = test_architectures();
  list.push_back(gated);
  for (const auto& a : list) {
    const Tensors made = make({a, GetParam(), 3, 7});
    for (const Part part : parts_with_halves())
      for (const TensorSlice& share : shares())
        for (const bool accumulate : {false, true}) check_bits({{a, GetParam(), 3, 7}, part, share, accumulate}, made);
  }
}

TEST_P(Halves, WriteTheirOwnAlone) {
  const c10::InferenceMode inference;
  for (const auto& a : test_architectures()) {
    const Tensors made = make({a, GetParam(), 3, 7});
    for (const Part part : parts_with_halves()) {
      const Task s{{a, GetParam(), 3, 7}, part, {}, true};
      SCOPED_TRACE(s.name());
      Tensors t = clone(made);
      for (const Pass half : {Pass::kBackwardInput, Pass::kBackwardWeights}) {
        Names expected;
        for (const std::string& name : taken(part, half).written)
          if (t[name].defined()) expected.insert(name);
        const Tensors before = clone(t);
        s.run(half, t);
        EXPECT_EQ(differing(before, t), expected) << name_of(half);
      }
    }
  }
}

TEST_P(Halves, OfOtherPartsAreTheWholeAndNothing) {
  const c10::InferenceMode inference;
  for (const auto& a : test_architectures()) {
    const Tensors made = make({a, GetParam(), 3, 7});
    for (const Part part : arch::parts_in_order(a)) {
      if (program::has_halves(part)) continue;
      const Task s{{a, GetParam(), 3, 7}, part, {}, true};
      SCOPED_TRACE(s.name());
      const Tensors whole = clone(made), input = clone(whole), weights = clone(whole);
      s.run(Pass::kBackward, whole);
      s.run(Pass::kBackwardInput, input);
      EXPECT_EQ(differing(whole, input), Names{});
      const Tensors before = clone(weights);
      // Gives the scratch of the whole backward, so that the only error is the missing half.
      Workspace ample(program::part_cost(a, part, Pass::kBackward, s.shape()).scratch.value);
      const Context context{a, s.shape(), ample.scratch, true, {}, arch::Pass::kBackwardWeights};
      Tensors operands = weights;
      EXPECT_THROW(run_part(context, part, Pass::kBackwardWeights, s.rope(), operands), Error);
      EXPECT_EQ(differing(before, weights), Names{});
    }
  }
  const auto a = test_architectures()[0];
  const Task s{{a, GetParam(), 3, 7}, Part::kHeadLoss, {}, true};
  math::Scratch none;
  const Context context{a, s.shape(), none, true, {}, arch::Pass::kBackwardWeights};
  at::Tensor logits, losses, d_y, d_head;
  EXPECT_THROW(head_shared_gradient(context, {}, {}, logits, {}, {}, 1.0, losses, d_y, d_head), Error);
}

// Uses sizes at which products block, pack and run on several threads, and 16-bit gradients are added in blocks.
TEST_P(BlockedHalves, GiveTheBitsOfTheWholeAtSize) {
  const Path& path = GetParam();
  const c10::InferenceMode inference;
  auto llama = test_architectures()[0], gpt = test_architectures()[2];
  llama.hidden = 256, llama.ffn = 704, llama.heads = 8, llama.kv_heads = 4, llama.head_dim = 32;
  gpt.hidden = 320, gpt.ffn = 1280, gpt.heads = 5, gpt.kv_heads = 5, gpt.head_dim = 64;
  ASSERT_GT(llama.up_size() * llama.hidden, arch::kWidenBlock);
  for (const auto& a : {llama, gpt}) {
    const Tensors made = make({a, path, 2, 128});
    for (const Part part : parts_with_halves())
      for (const bool accumulate : {false, true}) check_bits({{a, path, 2, 128}, part, {}, accumulate}, made);
  }
}

}  // namespace
}  // namespace molen::model
