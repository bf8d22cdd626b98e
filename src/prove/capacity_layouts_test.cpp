// Tests models whose experts have a capacity, over ranks. Every layout drops the same choices, because a capacity is
// one of each sequence.
#include <gtest/gtest.h>

#include <numeric>

#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

// The capacity is 4.5 tokens of a sequence, rounded up to five. About a quarter of the choices is dropped.
arch::Architecture dropping() {
  auto a = mixtral();
  a.experts->count = 8, a.experts->ffn = 24, a.experts->capacity = 0.75;
  return a;
}

// The same model with a dense layer, shared experts, sigmoid scores and biases of routers.
arch::Architecture dropping_and_shared() {
  auto a = dropping();
  a.layers = 4, a.tied = true, a.ffn = 36;
  a.experts->dense_layers = 1, a.experts->shared = 2, a.experts->scores = arch::RouterScores::kSigmoid;
  a.experts->z_loss = 0.0, a.experts->bias_rate = 0.001, a.experts->per_token = 3, a.experts->capacity = 1.0;
  return a;
}

Layout capped(int tensor, int experts, Layout l, bool rows = false) {
  l.tensor = tensor, l.experts = experts, l.rows = rows, l.sequence = kSharedSequence;
  return l;
}

Layout with_shared_sequences(int context, program::ContextForm form, Layout l) {
  l.context = context, l.form = form;
  return l;
}

class CapacityOverRanks : public ::testing::TestWithParam<Layout> {
 protected:
  static std::vector<arch::Architecture> models() { return {dropping(), dropping_and_shared()}; }
};

TEST_P(CapacityOverRanks, SameModelInDouble) {
  for (const auto& a : models()) {
    const Outcome& one = train_alone(program::build(a, reference_setting(DType::kF64)), proof_steps());
    const Outcome many = train_threads(proved_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps());
    expect_same_model(one, many);
    ASSERT_EQ(many.dropped.size(), static_cast<std::size_t>(proof_steps()));
    EXPECT_EQ(one.dropped, many.dropped);
    for (const double share : many.dropped) EXPECT_TRUE(share > 0.02 && share < 0.6) << share;
  }
}

TEST_P(CapacityOverRanks, TwiceTheSameAndTheDeadAreDead) {
  auto narrow = setting_of(GetParam(), DType::kBF16);
  narrow.kernels = arch::Kernels::kAten;
  for (const auto& setting : {setting_of(GetParam(), DType::kF32), narrow}) {
    const auto stages = proved_stages(dropping(), setting);
    expect_dead_buffers_unread(stages);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, CapacityOverRanks,
                         ::testing::ValuesIn(suite::covering(
                             {capped(1, 1, {1, 0, true, 2}), capped(1, 1, {3, 1, false, 1}),
                              capped(1, 1, {2, 3, false, 2}), capped(2, 1, {2, 2, false, 1}, true),
                              capped(1, 2, {2, 3, false, 1}), capped(1, 4, {1, 1, false, 2}),
                              capped(2, 2, {1, 0, false, 1}, true),
                              capped(1, 2, {1, 2, false, 1}).recomputing("dispatch,expert_up,expert_activation/2"),
                              over_two_stages(capped(1, 1, {2, 1, true, 1}), program::ScheduleKind::k1f1b),
                              over_two_stages(capped(1, 2, {1, 0, false, 1}), program::ScheduleKind::kZbH1)})));

// Context ranks have parts of each sequence, and find together which tokens an expert takes.
INSTANTIATE_TEST_SUITE_P(
    Context, CapacityOverRanks,
    ::testing::ValuesIn(suite::covering(
        {with_shared_sequences(2, kGather, capped(1, 1, {1, 0, false, 3})),
         with_shared_sequences(3, kRing, capped(1, 1, {1, 0, true, 2})),
         with_shared_sequences(4, kGather, capped(1, 1, {1, 1, false, 2})),
         with_shared_sequences(2, kRing, capped(1, 1, {2, 3, false, 1})),
         with_shared_sequences(2, kGather, capped(2, 1, {1, 2, false, 1}, true)),
         with_shared_sequences(2, kRing, capped(1, 2, {1, 3, false, 1})),
         with_shared_sequences(2, kGather, capped(1, 2, {2, 1, false, 1}))
             .recomputing("dispatch,expert_up,expert_activation/2"),
         with_shared_sequences(4, kRing, capped(1, 2, {1, 0, false, 1}).recomputing("full")),
         with_shared_sequences(2, kGather, capped(2, 2, {1, 0, false, 1}, true)),
         over_two_stages(with_shared_sequences(2, kGather, capped(1, 1, {2, 1, true, 1})),
                         program::ScheduleKind::k1f1b),
         over_two_stages(with_shared_sequences(3, kRing, capped(1, 2, {1, 0, false, 1})), program::ScheduleKind::kZbH1),
         with_shared_sequences(2, kGather, capped(1, 1, suite::on_host(kEverything, {1, 3, false, 2})))})));

// An expert takes the first tokens of a sequence, so the last context rank, whose positions are in the middle, and the
// first one, which has both ends, drop different numbers of choices. Each counts its own.
TEST(Capacity, NoContextRankDropsForAnother) {
  const auto stages = proved_stages(
      dropping(), setting_of(with_shared_sequences(2, kGather, capped(1, 1, {1, 0, false, 3})), DType::kF64));
  const program::Program& p = stages.front();
  std::vector<std::vector<std::int64_t>> lost(2);
  on_ranks(2, [&](comm::Communicator& world) {
    std::vector<std::int64_t>& of_rank = lost[static_cast<std::size_t>(world.rank())];
    exec::Options options;
    options.written = [&](const program::Expanded& e, const std::vector<at::Tensor>& buffers) {
      const auto* c = std::get_if<program::Compute>(&e.step->op);
      if (c && c->part == arch::Part::kLimit) of_rank.push_back(buffers.front().lt(0).sum().item<std::int64_t>());
    };
    (void)train_rank(p, world, 1, options);
  });
  const auto ops = static_cast<std::size_t>(dropping().layers * p.setting.micro_batches());
  ASSERT_EQ(lost[0].size(), ops);
  ASSERT_EQ(lost[1].size(), ops);
  EXPECT_NE(lost[0], lost[1]);
  for (const auto& of_rank : lost) EXPECT_GT(std::accumulate(of_rank.begin(), of_rank.end(), std::int64_t{0}), 0);
}

// With a capacity factor of E / t there is room for all choices. Nothing is dropped, and the model equals the one
// without a capacity.
TEST(Capacity, RoomForAllIsNoCapacity) {
  auto all = mixtral(), none = mixtral();
  all.experts->capacity = 2.5;
  const Outcome& dropless = train_alone(program::build(none, reference_setting(DType::kF64)), 5);
  Outcome capped = train_threads(program::build(all, reference_setting(DType::kF64)), 5);
  EXPECT_EQ(capped.dropped, std::vector<double>(5, 0.0));
  EXPECT_EQ(capped.hash, dropless.hash);
}

}  // namespace
}  // namespace molen::prove
