// Tests units of several layers whose experts are units of their own, as they are with expert ranks. Such a unit stays
// on a rank while the experts of its layers come and go. Each layout is the same model as on one rank.
#include <gtest/gtest.h>

#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

// Five layers, so that the last of several units is smaller.
arch::Architecture five_sparse_layers() {
  auto a = eight_experts();
  a.layers = 5;
  return a;
}

// The same model with a dense layer, shared experts and one table at both ends.
arch::Architecture five_mixed_layers() {
  auto a = five_sparse_layers();
  a.tied = true, a.ffn = 36;
  a.experts->dense_layers = 1, a.experts->shared = 2;
  return a;
}

class UnitsOfLayers : public ::testing::TestWithParam<Layout> {
 protected:
  static std::vector<arch::Architecture> models() { return {five_sparse_layers(), five_mixed_layers()}; }
};

TEST_P(UnitsOfLayers, SameModelInDouble) {
  for (const auto& a : models()) {
    const Outcome& one = train_alone(program::build(a, reference_setting(DType::kF64)), proof_steps());
    const Outcome many = train_threads(proved_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps());
    expect_same_model(one, many);
  }
}

TEST_P(UnitsOfLayers, TwiceTheSameAndTheDeadAreDead) {
  const auto stages = proved_stages(models().back(), setting_of(GetParam(), DType::kF32));
  expect_dead_buffers_unread(stages);
}

Layout of_units(std::int64_t layers, int prefetch, int tensor, Layout l) {
  l.unit_layers = layers, l.prefetch = prefetch, l.tensor = tensor, l.rows = tensor > 1;
  return l;
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, UnitsOfLayers,
    ::testing::ValuesIn(suite::covering(
        {of_units(2, 1, 1, experts(2, {2, 3, false, 2})), of_units(2, 0, 1, experts(4, {1, 3, false, 1})),
         of_units(3, 2, 1, experts(4, {1, 3, true, 1})), of_units(5, 2, 1, experts(2, {2, 3, true, 1})),
         of_units(2, 2, 2, experts(2, {1, 3, false, 1})),
         of_units(3, 1, 1, experts(2, on_host(kParameters, {1, 0, false, 2}))),
         of_units(2, 2, 1, experts(2, on_host(kEverything, {2, 3, true, 1}))),
         over_two_stages(of_units(2, 1, 1, experts(2, {1, 3, false, 1})), program::ScheduleKind::k1f1b),
         over_two_stages(of_units(3, 2, 1, experts(2, {2, 3, false, 1})), program::ScheduleKind::kZbH1),
         over_two_stages(of_units(2, 1, 2, experts(2, {1, 3, true, 1})), program::ScheduleKind::kInterleaved)})));

}  // namespace
}  // namespace molen::prove
