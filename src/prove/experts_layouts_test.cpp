// Tests models with sparse layers over ranks. Each layout is the same model, including the router and its losses, and
// never reads a dead buffer.
#include <gtest/gtest.h>

#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

// A model that two, three and six tensor ranks can share.
arch::Architecture sparse_over_ranks() {
  auto a = mixtral();
  a.layers = 4, a.qk_norm = arch::QkNorm::kHead;
  a.experts->ffn = 24;
  return a;
}

// The same model with a dense layer, shared experts, sigmoid scores, biases of routers, and one table at both ends.
arch::Architecture sharing_over_ranks() {
  auto a = sparse_over_ranks();
  a.tied = true, a.norm = arch::Norm::kLayer, a.qk_norm = arch::QkNorm::kNone, a.ffn = 36;
  a.experts->dense_layers = 1, a.experts->shared = 2, a.experts->scores = arch::RouterScores::kSigmoid;
  a.experts->z_loss = 0.0, a.experts->bias_rate = 0.001, a.experts->per_token = 3;
  return a;
}

Layout sparse(int tensor, Layout l = {1, 0, false, 1}, bool rows = false) {
  l.tensor = tensor, l.sequence = kSharedSequence, l.rows = rows;
  return l;
}
Layout sparse_context(int ranks, program::ContextForm form, Layout l) {
  l.context = ranks, l.form = form;
  return l;
}
Layout copies(int replicas, bool own_over_dp, Layout l) {
  l.replicas = replicas, l.own_over_dp = own_over_dp;
  return l;
}

class SparseOverRanks : public ::testing::TestWithParam<Layout> {
 protected:
  static std::vector<arch::Architecture> models() { return {sparse_over_ranks(), sharing_over_ranks()}; }
};

TEST_P(SparseOverRanks, SameModelInDouble) {
  for (const auto& a : models()) {
    const Outcome& one = train_alone(program::build(a, reference_setting(DType::kF64)), proof_steps());
    const Outcome many = train_threads(proved_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps());
    expect_same_model(one, many);
    ASSERT_EQ(many.balance.size(), static_cast<std::size_t>(proof_steps()));
    EXPECT_GT(many.balance.front(), 0.5);
  }
}

TEST_P(SparseOverRanks, OneStepInFloatWithinTheBound) {
  for (const auto& a : models()) {
    const auto stages = proved_stages(a, setting_of(GetParam(), DType::kF32));
    const Difference d =
        difference(train_alone(program::build(a, reference_setting(DType::kF32)), 1), train_threads(stages, 1));
    const Bounds bounds = bounds_of(stages[0]);
    expect_within(d, bounds);
  }
}

TEST_P(SparseOverRanks, TwiceTheSameAndTheDeadAreDead) {
  auto narrow = setting_of(GetParam(), DType::kBF16);
  narrow.kernels = arch::Kernels::kAten;
  for (const auto& setting : {setting_of(GetParam(), DType::kF32), narrow}) {
    const auto stages = proved_stages(sparse_over_ranks(), setting);
    expect_dead_buffers_unread(stages);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, SparseOverRanks,
                         ::testing::ValuesIn(suite::covering(
                             {sparse(1, {2, 0, false, 2}),
                              sparse(1, {3, 1, false, 2}),
                              sparse(1, {2, 2, false, 1}),
                              sparse(1, {2, 3, false, 2}),
                              sparse(1, {3, 3, false, 1}).units(program::kHalfLayer),
                              sparse(1, copies(2, false, {2, 3, false, 1})),
                              sparse(1, copies(2, true, {2, 2, false, 1})),
                              sparse(1, {1, 0, true, 2}),
                              sparse(1, {2, 3, false, 2}).recomputing("dispatch,expert_up/2"),
                              sparse(1, {1, 0, false, 2}).recomputing("expert_activation"),
                              sparse(2, {1, 0, false, 3}, true).recomputing("shared_up,shared_act/2"),
                              sparse(1, on_host(kEverything, {2, 3, false, 2})),
                              sparse(1, on_host(kActivations, {1, 0, true, 3})),
                              sparse(2),
                              sparse(3),
                              sparse(6, {1, 0, true, 3}),
                              sparse(2, {2, 2, false, 1}, true),
                              sparse(3, {1, 0, true, 3}, true),
                              sparse_context(2, kGather, sparse(1)),
                              sparse_context(3, kRing, sparse(1, {1, 0, true, 2})),
                              sparse_context(2, kRing, sparse(2, {2, 3, false, 1}, true)),
                              over_two_stages(sparse_context(2, kGather, sparse(1, {1, 1, false, 1})),
                                              program::ScheduleKind::kZbH1),
                              sparse(2, on_host(kEverything, {2, 3, false, 1}), true),
                              over_two_stages(sparse(1), program::ScheduleKind::k1f1b),
                              over_two_stages(sparse(1), program::ScheduleKind::kZbH1),
                              over_two_stages(sparse(1, {2, 1, true, 1}), program::ScheduleKind::kInterleaved, 2),
                              over_two_stages(sparse(2, {1, 0, false, 1}, true), program::ScheduleKind::kZbV, 2)})));

// Each token chooses every expert, so rounding cannot change a choice, which would be no small difference. The bound is
// the distance between one rank in bf16 and one rank in fp64.
TEST(SparseLayouts, TensorRanksInBf16AreWithinTheBound) {
  const auto narrow = [](program::Setting s) {
    s.compute = DType::kBF16, s.master = s.reduce = DType::kF32, s.kernels = arch::Kernels::kAten;
    return s;
  };
  for (auto a : {sparse_over_ranks(), sharing_over_ranks()}) {
    a.experts->per_token = a.experts->count;
    const Outcome& exact = train_alone(program::build(a, reference_setting(DType::kF64)), 1);
    const Outcome& rounded = train_alone(program::build(a, narrow(reference_setting(DType::kF32))), 1);
    const Bounds bounds = bounds_beside(exact, rounded);
    ASSERT_LT(bounds.gradients, 0.25);  // a gradient that is lost, or a term that is counted twice, is off by about 1
    for (const Layout& l : {sparse(2), sparse(3, {1, 0, true, 3}, true), sparse(2, {2, 3, false, 1}, true)}) {
      SCOPED_TRACE(fmt::format("{} tensor ranks, {} shards", l.tensor, l.shards));
      const Difference d = difference(rounded, train_threads(proved_stages(a, narrow(setting_of(l, DType::kF32))), 1));
      EXPECT_GT(d.gradients, 0) << "nothing is rounded";
      expect_within(d, bounds);
    }
  }
}

program::Setting under_muon(program::Setting s) {
  s.optimizer = "muon";
  return s;
}

// Muon deals whole matrices to ranks. A router's bias is in none of them, and still moves by the load.
TEST(SparseLayouts, BiasesMoveAlikeUnderMuon) {
  const auto a = sharing_over_ranks();
  const std::string bias = "model.layers.2.mlp.gate.e_score_correction_bias";
  constexpr int kSteps = 4;
  const Outcome& one = train_alone(program::build(a, under_muon(reference_setting(DType::kF64))), kSteps);
  const double moved = one.tensors.at(bias).abs().max().item<double>(), rate = a.experts->bias_rate;
  EXPECT_GE(moved, rate * 0.999);
  EXPECT_LE(moved, rate * kSteps * 1.001);
  for (const Layout& l : {sparse(1, {3, 1, false, 2}), sparse(2, {2, 2, false, 1}, true),
                          over_two_stages(sparse(1, {2, 1, true, 1}), program::ScheduleKind::k1f1b)}) {
    SCOPED_TRACE(fmt::format("{} shards, {} tensor and {} context ranks, {} stages, ZeRO-{}", l.shards, l.tensor,
                             l.context, l.stages, l.zero));
    expect_same_model(one, train_threads(proved_stages(a, under_muon(setting_of(l, DType::kF64))), kSteps));
  }
}

TEST(SparseLayouts, BiasesAreSavedInOneLayoutAndLoadedInAnother) {
  const auto a = sharing_over_ranks();
  const std::filesystem::path dir = std::filesystem::temp_directory_path() / fmt::format("molen_biases_{}", ::getpid());
  std::filesystem::remove_all(dir);
  const Layout tensor = sparse(2, {2, 3, false, 1}, true),
               staged = over_two_stages(sparse(1, {2, 1, false, 1}), program::ScheduleKind::k1f1b);
  for (const auto& [from, muon] : {std::pair{sparse(1, {3, 1, false, 2}), false}, {staged, false}, {tensor, true}}) {
    const auto programs = [&, with_muon = muon](const Layout& l) {
      const auto s = setting_of(l, DType::kF32);
      return proved_stages(a, with_muon ? under_muon(s) : s);
    };
    const std::string saved = hash_of_checkpoint(programs(from), dir, true);
    for (const Layout& to : {sparse(1), sparse(1, {2, 2, false, 1}), tensor, staged}) {
      SCOPED_TRACE(fmt::format("{} shards, {} tensor ranks, {} stages", to.shards, to.tensor, to.stages));
      EXPECT_EQ(saved, hash_of_checkpoint(programs(to), dir, false)) << (muon ? "muon" : "adamw");
    }
    std::filesystem::remove_all(dir);
  }
}

// A router's bias is updated as a whole, but it is not a matrix whose directions tensor ranks would gather.
TEST(SparseLayouts, ABiasGathersNoDirections) {
  for (const program::Program& p : proved_stages(sharing_over_ranks(), setting_of(sparse(2), DType::kF32)))
    for (const program::Buffer& b : p.buffers) {
      EXPECT_NE(b.role, program::Value::kDirection);
      EXPECT_NE(b.role, program::Value::kDirectionAll);
    }
}

}  // namespace
}  // namespace molen::prove
