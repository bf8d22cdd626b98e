// Tests models with sparse layers over ranks: each layout is the same model, router and its losses included, and keeps
// nothing that a dead buffer holds.
#include <gtest/gtest.h>

#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

// Two, three and six tensor ranks can share it.
arch::Architecture sparse_over_ranks() {
  auto a = mixtral();
  a.layers = 4, a.qk_norm = arch::QkNorm::kHead;
  a.experts->ffn = 24;
  return a;
}

// A dense layer, shared experts, sigmoid scores, biases of routers, and one table at both ends.
arch::Architecture sharing_over_ranks() {
  auto a = sparse_over_ranks();
  a.tied = true, a.norm = arch::Norm::kLayer, a.qk_norm = arch::QkNorm::kNone, a.ffn = 36;
  a.experts->dense_layers = 1, a.experts->shared = 2, a.experts->scores = arch::RouterScores::kSigmoid;
  a.experts->z_loss = 0.0, a.experts->bias_rate = 0.001, a.experts->per_token = 3;
  return a;
}

constexpr std::int64_t kSparseSequence = 24;

Layout sparse(int tensor, Layout l = {1, 0, false, 1}, bool rows = false) {
  l.tensor = tensor, l.sequence = kSparseSequence, l.rows = rows;
  return l;
}
Layout sparse_context(int ranks, program::ContextForm form, Layout l) {
  l.context = ranks, l.form = form;
  return l;
}
Layout sparse_stages(Layout l, program::ScheduleKind kind, int chunks = 1) {
  l.stages = 2;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}
Layout copies(int replicas, bool own_over_dp, Layout l) {
  l.replicas = replicas, l.own_over_dp = own_over_dp;
  return l;
}

program::Setting sparse_alone(DType compute) {
  auto s = setting_of(1, 0, false, compute, 3);
  s.sequence = kSparseSequence;
  return s;
}

std::vector<program::Program> sparse_programs(const arch::Architecture& a, const program::Setting& s) {
  auto stages = program::build_stages(a, s);
  for (const program::Program& p : stages) {
    program::require_sound(p, "test");
    EXPECT_EQ(program::parse(program::print(p), "text"), p);
  }
  return stages;
}

class SparseOverRanks : public ::testing::TestWithParam<Layout> {
 protected:
  static std::vector<arch::Architecture> models() { return {sparse_over_ranks(), sharing_over_ranks()}; }
};

TEST_P(SparseOverRanks, SameModelInDouble) {
  for (const auto& a : models()) {
    const Outcome& one = train_alone(program::build(a, sparse_alone(DType::kF64)), 10);
    const Outcome many = train_threads(sparse_programs(a, setting_of(GetParam(), DType::kF64)), 10);
    expect_same_model(one, many);
    ASSERT_EQ(many.balance.size(), 10u);
    EXPECT_GT(many.balance.front(), 0.5);
  }
}

TEST_P(SparseOverRanks, OneStepInFloatWithinTheBound) {
  for (const auto& a : models()) {
    const auto stages = sparse_programs(a, setting_of(GetParam(), DType::kF32));
    const Difference d =
        difference(train_alone(program::build(a, sparse_alone(DType::kF32)), 1), train_threads(stages, 1));
    const Bounds bounds = bounds_of(stages[0]);
    EXPECT_LE(d.loss, bounds.loss);
    EXPECT_LE(d.norm, bounds.norm);
    EXPECT_LE(d.gradients, bounds.gradients) << d.worst_gradient;
  }
}

TEST_P(SparseOverRanks, TwiceTheSameAndTheDeadAreDead) {
  auto narrow = setting_of(GetParam(), DType::kBF16);
  narrow.kernels = arch::Kernels::kAten;
  for (const auto& setting : {setting_of(GetParam(), DType::kF32), narrow}) {
    const auto stages = sparse_programs(sparse_over_ranks(), setting);
    EXPECT_EQ(train_threads(stages, 3).hash, train_threads(stages, 3, {at::kCPU, true}).hash);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, SparseOverRanks,
    ::testing::Values(
        sparse(1, {2, 0, false, 2}), sparse(1, {3, 1, false, 2}), sparse(1, {2, 2, false, 1}),
        sparse(1, {2, 3, false, 2}), sparse(1, {3, 3, false, 1}).units(program::kHalfLayer),
        sparse(1, copies(2, false, {2, 3, false, 1})), sparse(1, copies(2, true, {2, 2, false, 1})),
        sparse(1, {1, 0, true, 2}), sparse(1, {2, 3, false, 2}).recomputing("dispatch,expert_up/2"),
        sparse(1, {1, 0, false, 2}).recomputing("expert_activation"), sparse(1, on_host(kEverything, {2, 3, false, 2})),
        sparse(1, on_host(kActivations, {1, 0, true, 3})), sparse(2), sparse(3),
        sparse(6, {1, 0, true, 3}), sparse(2, {2, 2, false, 1}, true), sparse(3, {1, 0, true, 3}, true),
        sparse_context(2, kGather, sparse(1)), sparse_context(3, kRing, sparse(1, {1, 0, true, 2})),
        sparse_context(2, kRing, sparse(2, {2, 3, false, 1}, true)),
        sparse_stages(sparse_context(2, kGather, sparse(1, {1, 1, false, 1})), program::ScheduleKind::kZbH1),
        sparse(2, on_host(kEverything, {2, 3, false, 1}), true), sparse_stages(sparse(1), program::ScheduleKind::k1f1b),
        sparse_stages(sparse(1), program::ScheduleKind::kZbH1),
        sparse_stages(sparse(1, {2, 1, true, 1}), program::ScheduleKind::kInterleaved, 2),
        sparse_stages(sparse(2, {1, 0, false, 1}, true), program::ScheduleKind::kZbV, 2)));

// A router's bias is updated as a whole, but it is no matrix whose directions tensor ranks would gather.
TEST(SparseLayouts, ABiasGathersNoDirections) {
  for (const program::Program& p : sparse_programs(sharing_over_ranks(), setting_of(sparse(2), DType::kF32)))
    for (const program::Buffer& b : p.buffers) {
      EXPECT_NE(b.role, program::Value::kDirection);
      EXPECT_NE(b.role, program::Value::kDirectionAll);
    }
}

}  // namespace
}  // namespace molen::prove
