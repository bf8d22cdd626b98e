// Tests that models with norms of queries and keys compute the same in all kinds of layouts. The norms are over each
// head, or, when tensor ranks do not share the heads, over all heads together.
#include <gtest/gtest.h>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

// The model has 12 query heads and 3 KV heads. With 2 or 4 tensor ranks, each rank holds a copy of all keys' weights;
// with 3, each has one KV head.
arch::Architecture shared_by_ranks() {
  auto a = qwen();
  a.layers = 4, a.heads = 12, a.head_dim = 6, a.ffn = 48;
  return a;
}

// Norms over all heads, with ALiBi for positions, so that no later part rotates queries and keys.
arch::Architecture over_all_heads() {
  auto a = qwen(arch::QkNorm::kAll);
  a.layers = 4, a.position = arch::Position::kAlibi, a.tied = true;
  return a;
}

Layout normed_along(int tensor, int context, Layout l = {1, 0, false, 1}) {
  l.tensor = tensor, l.context = context, l.sequence = kSharedSequence;
  l.rows = l.rows || l.chunks > 1;
  return l;
}
Layout normed_by_rows(Layout l, std::int64_t chunks = 1) {
  l.rows = true, l.chunks = chunks;
  return l;
}
Layout normed_ring(Layout l) {
  l.form = kRing;
  return l;
}

class QkNorm : public ::testing::TestWithParam<Layout> {
 protected:
  static std::vector<arch::Architecture> models() {
    std::vector<arch::Architecture> list{shared_by_ranks()};
    if (GetParam().tensor == 1) list.push_back(over_all_heads());
    return list;
  }
};

TEST_P(QkNorm, SameModelInDouble) {
  for (const auto& a : models()) {
    SCOPED_TRACE(arch::name_of(a.qk_norm));
    const Outcome& one = train_alone(program::build(a, reference_setting(DType::kF64)), proof_steps());
    expect_same_model(one, train_threads(proved_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps()));
  }
}

TEST_P(QkNorm, OneStepInFloatWithinTheBound) {
  for (const auto kernels : {arch::Kernels::kFused, arch::Kernels::kAten})
    for (const auto& a : models()) {
      SCOPED_TRACE(fmt::format("{}, {}", arch::name_of(a.qk_norm), arch::name_of(kernels)));
      auto one = reference_setting(DType::kF32), setting = setting_of(GetParam(), DType::kF32);
      one.kernels = setting.kernels = kernels;
      const auto stages = proved_stages(a, setting);
      const Difference d = difference(train_alone(program::build(a, one), 1), train_threads(stages, 1));
      const Bounds bounds = bounds_of(stages[0]);
      expect_within(d, bounds);
    }
}

TEST_P(QkNorm, DeadBuffersAreDead) {
  for (const auto& a : models()) {
    const auto stages = proved_stages(a, setting_of(GetParam(), DType::kF32));
    expect_dead_buffers_unread(stages);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, QkNorm,
                         ::testing::ValuesIn(suite::covering(
                             {normed_along(1, 1, {2, 1, false, 2}),
                              normed_along(1, 1, {3, 3, true, 2}),
                              normed_along(1, 1, {2, 3, false, 2}).units(program::kHalfLayer),
                              normed_along(1, 1, {1, 0}).recomputing("qk_norm"),
                              normed_along(1, 1, {1, 0}).recomputing("norm_qkv"),
                              normed_along(1, 1, {2, 0}).recomputing("norm_qkv,qk_norm,attention/2"),
                              normed_along(1, 1, on_host(kEverything, {2, 3, false, 2})),  //
                              normed_along(2, 1),
                              normed_along(3, 1),
                              normed_along(4, 1, {1, 0, true, 3}),
                              normed_along(2, 1, normed_by_rows({2, 2, false, 1})),
                              normed_along(2, 1, normed_by_rows({1, 0, true, 1}, 2)),
                              normed_along(3, 1, normed_by_rows({1, 0, false, 3})),
                              normed_along(1, 2),
                              normed_ring(normed_along(1, 2)),
                              normed_ring(normed_along(2, 2, normed_by_rows({1, 0, true, 1}))),
                              over_two_stages(normed_along(1, 1), program::ScheduleKind::k1f1b),
                              over_two_stages(normed_along(1, 1), program::ScheduleKind::kZbH1),
                              over_two_stages(normed_along(2, 1, normed_by_rows({1, 0, false, 1})),
                                              program::ScheduleKind::kZbV, 2),
                              over_two_stages(normed_along(1, 2, {1, 0, true, 1}), program::ScheduleKind::kZbH1)})));

TEST(QkNormLayouts, OverAllHeadsIsRefusedToTensorRanks) {
  EXPECT_THROW(program::build(over_all_heads(), setting_of(normed_along(2, 1), DType::kF32)), UsageError);
}

}  // namespace
}  // namespace molen::prove
