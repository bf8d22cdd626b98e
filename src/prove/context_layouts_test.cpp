// Tests that context parallelism computes the same model. Thread-ranks have sequences in zig-zag pieces, and keys and
// values are gathered or passed on, alone and with every other kind of parallelism.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/provenance/provenance.h"
#include "program/test_edit.h"
#include "program/text/text.h"
#include "program/verify/verify.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::ContextForm;

Layout context(int ranks, ContextForm form, int shards = 1, int zero = 0, std::int64_t micro = 2) {
  Layout l{shards, zero, false, micro};
  l.context = ranks;
  l.form = form;
  l.sequence = kSharedSequence;
  return l;
}
Layout beside(Layout l, int tensor, bool rows, int stages = 1,
              program::ScheduleKind kind = program::ScheduleKind::k1f1b) {
  l.tensor = tensor;
  l.rows = rows;
  l.stages = stages;
  if (stages > 1) l.pipeline = program::pipeline_of(kind, kind == program::ScheduleKind::kInterleaved ? 2 : 1);
  return l;
}
Layout replicated(Layout l, int replicas, bool own_over_dp = false) {
  l.replicas = replicas;
  l.own_over_dp = own_over_dp;
  return l;
}
Layout ordered(Layout l, const char* order) {
  l.order = order;
  return l;
}

// A model with sizes that two tensor ranks can share.
arch::Architecture gpt_of(arch::Position position) {
  auto a = gpt();
  a.heads = a.kv_heads = 4;
  a.ffn = 52;
  a.position = position;
  a.tied = position == arch::Position::kLearned;
  return a;
}

class ContextLayouts : public ::testing::TestWithParam<Layout> {
 protected:
  // Gives each chunk of a stage at least one layer.
  static std::vector<arch::Architecture> models(std::vector<arch::Architecture> of) {
    for (auto& a : of) a.layers = std::max<std::int64_t>(a.layers, GetParam().stages * GetParam().pipeline.chunks);
    return of;
  }
};

TEST_P(ContextLayouts, SameModelInDouble) {
  for (const auto& a : models({llama(true), gpt_of(arch::Position::kLearned), gpt_of(arch::Position::kAlibi)})) {
    SCOPED_TRACE(fmt::format("{}, heads {}, tied {}", arch::name_of(a.family), a.heads, a.tied));
    const Outcome& one = train_alone(program::build(a, reference_setting(DType::kF64)), proof_steps());
    expect_same_model(one, train_threads(proved_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps()));
  }
}

TEST_P(ContextLayouts, OneStepWithinTheBound) {
  for (const auto compute : {DType::kF32, DType::kBF16})
    for (const auto& a : models({llama(true), gpt_of(arch::Position::kAlibi)})) {
      auto one = reference_setting(compute), setting = setting_of(GetParam(), compute);
      if (compute == DType::kBF16) one.kernels = setting.kernels = arch::Kernels::kAten;
      SCOPED_TRACE(fmt::format("{} {}", arch::name_of(a.family), name_of(compute)));
      const auto stages = proved_stages(a, setting);
      const Outcome& reference = train_alone(program::build(a, one), 1);
      const Difference d = difference(reference, train_threads(stages, 1));
      const Bounds bounds =
          compute == DType::kF32
              ? bounds_of(stages.front())
              : bounds_beside(train_alone(program::build(a, reference_setting(DType::kF64)), 1), reference);
      ASSERT_LT(bounds.gradients, 0.25);  // a lost gradient is off by 1
      expect_within(d, bounds);
    }
}

TEST_P(ContextLayouts, SameLayoutTwiceIsIdenticalAndTheDeadAreDead) {
  const auto stages = proved_stages(models({llama(true)})[0], setting_of(GetParam(), DType::kF32));
  expect_dead_buffers_unread(stages);
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, ContextLayouts,
    ::testing::ValuesIn(
        suite::covering({context(2, kGather),
                         context(2, kRing),
                         context(3, kGather),
                         context(3, kRing),
                         context(4, kRing),
                         context(2, kGather, 1, 1, 3),
                         context(2, kRing, 2, 3),
                         context(2, kGather, 2, 2, 1),
                         replicated(context(2, kRing, 1, 3), 2),
                         replicated(context(2, kGather, 2, 3, 1), 2),
                         beside(context(2, kGather), 2, false),
                         beside(context(2, kRing, 1, 3), 2, true),
                         beside(context(2, kGather, 1, 1, 1), 1, false, 2),
                         beside(context(2, kRing, 1, 2, 1), 1, false, 2, program::ScheduleKind::kZbH1),
                         beside(context(2, kGather, 1, 0, 1), 1, false, 2, program::ScheduleKind::kInterleaved),
                         beside(context(2, kRing, 1, 0, 1), 1, false, 2, program::ScheduleKind::kZbV),
                         replicated(context(2, kGather, 2, 3, 1), 2, true),
                         ordered(context(2, kRing, 3, 1, 1), "cp,pp,dp_replicate,dp_shard,tp"),
                         ordered(beside(context(2, kGather, 1, 3, 1), 2, true), "dp_replicate,tp,cp,dp_shard,pp"),
                         ordered(replicated(context(2, kGather, 2, 3, 1), 2, true), "cp,dp_replicate,tp,dp_shard,pp"),
                         context(2, kRing).recomputing("attention"),
                         context(2, kGather, 2, 3).recomputing("full"),
                         beside(context(2, kRing, 1, 0, 1), 2, true, 2).recomputing("norm_qkv,attention/2")})));

// Each mutant is the program that a wrong pass would make.
TEST(ContextMutants, AreRefused) {
  struct Mutant {
    std::string name;
    Layout layout;
    std::vector<std::string> where;
    std::string from, to, says;
  };
  const Layout gather = context(2, kGather), ring = context(3, kRing);
  const std::vector<Mutant> mutants{
      {"keys of another layer",
       gather,
       {"all_gather", "payload=keys layer=1", "reads=from:qkv.1"},
       "reads=from:qkv.1",
       "reads=from:qkv.0",
       "where it needs qkv of layer 1"},
      {"keys over the wrong axis",
       gather,
       {"all_gather", "payload=keys layer=1"},
       "axis=cp",
       "axis=dp",
       "keys and values must be exchanged over the axis cp"},
      {"gradients of keys over the wrong axis",
       gather,
       {"reduce_scatter", "payload=d_keys layer=0"},
       "axis=cp",
       "axis=dp_shard",
       "keys and values must be exchanged over the axis cp"},
      {"gradients of keys of another layer",
       gather,
       {"reduce_scatter", "payload=d_keys layer=1"},
       "layer=1",
       "layer=0",
       "where it needs d_keys_all of layer 0"},
      {"a step of the ring twice",
       ring,
       {"forward", "part=attention layer=0 step=2"},
       "step=2",
       "step=1",
       "where it needs keys of layer 0, step 1"},
      {"a step of the ring before its keys",
       ring,
       {"ring_exchange", "payload=keys layer=0 step=2"},
       "step=2",
       "step=1",
       "ring_exchange: no operand 'own'; it reads from; writes own, to"},
      {"gradients that stop before they are home",
       ring,
       {"ring_exchange", "payload=d_keys layer=1 step=3"},
       "step=3",
       "step=2",
       "ring_exchange: 'd_qkv' is no operand; it consumes from; updates to"},
      {"keys where gradients go",
       ring,
       {"ring_exchange", "payload=d_keys layer=1 step=1"},
       "payload=d_keys",
       "payload=keys",
       "ring_exchange: no operand 'own'; it reads from; writes own, to"},
      {"a shift between data ranks",
       ring,
       {"ring_exchange", "payload=keys layer=1 step=1"},
       "axis=cp",
       "axis=dp",
       "keys and values must be exchanged over the axis cp"},
      {"attention at once in a ring",
       ring,
       {"forward", "part=attention layer=0 step=0"},
       " step=0",
       "",
       "in this program it is computed step by step in a ring"},
  };
  for (const Mutant& m : mutants) {
    SCOPED_TRACE(m.name);
    const auto whole = program::build(llama(false), setting_of(m.layout, DType::kF64));
    const std::string broken = program::rewrite(program::print(whole), m.where, m.from, m.to);
    ASSERT_NE(broken, program::print(whole));
    // The costs are computed for the changed program, because the old costs would reveal it.
    const std::string all = program::refusal(broken);
    EXPECT_NE(all.find(m.says), std::string::npos) << all;
  }
}

TEST(Context, RefusesWhatDoesNotDivide) {
  auto s = setting_of(context(2, kGather), DType::kF64);
  s.sequence = 22;
  EXPECT_THROW(program::build(llama(false), s), UsageError);
  s.mesh[mesh::Axis::kCp] = 1;
  s.context_form = ContextForm::kRing;
  EXPECT_THROW(program::build(llama(false), s), UsageError);
}

}  // namespace
}  // namespace molen::prove
