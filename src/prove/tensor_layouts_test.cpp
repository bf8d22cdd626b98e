// Tests that tensor and sequence parallelism compute the same model: heads, FFN and vocabulary are split over
// thread-ranks, alone and with data sharding, for models whose sizes do not divide well.
#include <gtest/gtest.h>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

// llama3-30b has 13 KV heads at tensor degree 4. This model has 3 KV heads with 4 query heads each, so each of 4 ranks
// has 3 query heads.
arch::Architecture llama_odd_kv(bool tied) {
  auto a = llama(tied);
  a.heads = 12;
  a.head_dim = 6;
  return a;
}

// The KV heads divide: at degree 2 a rank has 4 query heads and 2 KV heads, and at degree 4 it has 2 and 1.
arch::Architecture llama_even_kv() {
  auto a = llama(false);
  a.heads = 8;
  a.kv_heads = 4;
  a.head_dim = 6;
  return a;
}

arch::Architecture gpt_four_heads(arch::Position position, bool tied) {
  auto a = gpt();
  a.heads = a.kv_heads = 4;
  a.ffn = 52;
  a.position = position;
  a.tied = tied;
  return a;
}

// The model has an odd number of KV heads, and biases.
arch::Architecture gpt_grouped() {
  auto a = gpt_four_heads(arch::Position::kLearned, false);
  a.heads = 12;
  a.kv_heads = 3;
  a.head_dim = 4;
  return a;
}

std::vector<arch::Architecture> models() {
  return {llama_odd_kv(false),
          llama_odd_kv(true),
          llama_even_kv(),
          gpt_four_heads(arch::Position::kLearned, true),
          gpt_four_heads(arch::Position::kAlibi, false),
          gpt_grouped()};
}

Layout tensor_layout(int tensor, bool rows, int shards = 1, int zero = 0, bool recompute = false,
                     std::int64_t micro = 2) {
  Layout l{shards, zero, recompute, micro};
  l.tensor = tensor;
  l.rows = rows;
  return l;
}

program::Program program_of(const arch::Architecture& a, const program::Setting& s) {
  program::Program p = program::build(a, s);
  program::require_sound(p, "test");
  return p;
}

class Tensor : public ::testing::TestWithParam<Layout> {};

TEST_P(Tensor, SameModelInDouble) {
  for (const auto& a : models()) {
    SCOPED_TRACE(fmt::format("{} heads {} kv {} tied {}", arch::name_of(a.family), a.heads, a.kv_heads, a.tied));
    const Outcome& one = train_alone(program_of(a, setting_of(1, 0, false, DType::kF64, 3)), proof_steps());
    const Outcome many = train_threads(program_of(a, setting_of(GetParam(), DType::kF64)), proof_steps());
    expect_same_model(one, many);
  }
}

// Runs the fused kernels and ATen's.
TEST_P(Tensor, OneStepInFloatWithinTheBound) {
  for (const auto kernels : {arch::Kernels::kFused, arch::Kernels::kAten})
    for (const auto& a : models()) {
      SCOPED_TRACE(
          fmt::format("{} heads {} kv {} kernels {}", arch::name_of(a.family), a.heads, a.kv_heads, name_of(kernels)));
      auto alone = setting_of(1, 0, false, DType::kF32, 3), setting = setting_of(GetParam(), DType::kF32);
      alone.kernels = setting.kernels = kernels;
      const program::Program p = program_of(a, setting);
      const Difference d = difference(train_alone(program_of(a, alone), 1), train_threads(p, 1));
      const Bounds bounds = bounds_of(p);
      expect_within(d, bounds);
    }
}

TEST_P(Tensor, SameLayoutTwiceIsIdenticalAndTheDeadAreDead) {
  for (const auto& a : {llama_odd_kv(true), gpt_grouped()}) {
    const program::Program p = program_of(a, setting_of(GetParam(), DType::kF32));
    const Outcome once = train_threads(p, 4), again = train_threads(p, 4, {at::kCPU, true});
    EXPECT_EQ(once.losses, again.losses);
    EXPECT_EQ(once.norms, again.norms);
    EXPECT_EQ(once.hash, again.hash);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, Tensor,
    ::testing::ValuesIn(suite::covering({tensor_layout(2, false), tensor_layout(2, true),
                                         tensor_layout(4, false, 1, 0, true, 3), tensor_layout(4, true, 1, 0, true, 1),
                                         tensor_layout(2, true, 2, 3, false, 1), tensor_layout(2, false, 2, 2, true),
                                         tensor_layout(2, true, 3, 1), tensor_layout(4, true, 2, 3),
                                         tensor_layout(2, true).recomputing("attention,norm_up,activation"),
                                         tensor_layout(4, false).recomputing("norm_qkv,out_projection/2"),
                                         tensor_layout(2, true, 2, 3).recomputing("out_projection,norm_up")})));

// The head goes through its chunks one after another, the last one shorter, on every rank of the vocabulary.
TEST(TensorHead, GoesThroughChunks) {
  auto alone = setting_of(1, 0, false, DType::kF64, 2), setting = setting_of(tensor_layout(4, true), DType::kF64);
  alone.head_chunk = 46;
  setting.head_chunk = 10;
  const auto a = llama_odd_kv(false);
  const Difference d = difference(train_alone(program_of(a, alone), proof_steps()),
                                  train_threads(program_of(a, setting), proof_steps()));
  EXPECT_LE(d.parameters, 1e-9) << d.worst_parameter;
  EXPECT_LE(d.loss, 1e-9);
}

// Plans the published model at full size, without allocating tensors: llama3-30b has 13 KV heads over 4 ranks.
TEST(TensorSizes, ThirteenKeyHeadsOverFourRanks) {
  const auto& a = arch::preset("llama3-30b");
  EXPECT_TRUE(arch::kv_replicated(a, 4));
  EXPECT_EQ(arch::tensor_local(a, 4).heads, 13);
  for (int rank = 0; rank < 4; ++rank) {
    const auto heads = arch::kv_heads_of(a, rank, 4);
    for (std::int64_t q = 0; q < 13; ++q) EXPECT_EQ(heads[static_cast<std::size_t>(q)], (rank * 13 + q) / 4);
  }
  program::Setting s;
  s.mesh[mesh::Axis::kTp] = 4;
  s.global_batch = 1;
  s.sequence = 4096;
  s.compute = DType::kBF16;
  s.kernels = arch::Kernels::kAten;
  s.head_chunk = arch::head_chunk(a.vocabulary);
  EXPECT_TRUE(program::verify(program::build(a, s)).empty());
}

TEST(TensorSizes, DegreesThatDoNotFitAreRefused) {
  program::Setting s = setting_of(1, 0, false, DType::kF64);
  s.mesh[mesh::Axis::kTp] = 4;
  EXPECT_THROW(program::build(llama(false), s), UsageError);  // 6 heads do not divide over the ranks
}

}  // namespace
}  // namespace molen::prove
