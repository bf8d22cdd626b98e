// Tests models with sparse layers as programs. Cut into micro-batches they are the same model, in all types; their
// programs name all that they keep; and layouts that are not built yet are refused.
#include <gtest/gtest.h>

#include "base/error.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

std::vector<arch::Architecture> sparse_models() {
  auto shared = mixtral();
  shared.tied = true, shared.qk_norm = arch::QkNorm::kAll, shared.experts->norm_topk = false;
  auto plain = mixtral();
  plain.activation = arch::Activation::kGeluTanh, plain.norm = arch::Norm::kLayer;
  plain.position = arch::Position::kLearned;
  auto mixed = mixtral();
  mixed.experts->dense_layers = 1;
  auto deep = mixed;
  deep.layers = 3, deep.experts->shared = 2, deep.experts->norm_topk = false;
  auto ungated = plain;
  ungated.experts->shared = 1;
  auto biased = deep;
  biased.qk_norm = arch::QkNorm::kHead, biased.experts->norm_topk = true, biased.experts->z_loss = 0.0;
  biased.experts->scores = arch::RouterScores::kSigmoid, biased.experts->scale = 2.5, biased.experts->bias_rate = 0.001;
  return {mixtral(), shared, plain, mixed, deep, ungated, biased};
}

program::Program sound(const arch::Architecture& a, const program::Setting& s) {
  program::Program p = program::build(a, s);
  program::require_sound(p, "test");
  EXPECT_EQ(program::parse(program::print(p), "text"), p);
  return p;
}

// Returns the bias of the first layer's router.
std::vector<float> biases(exec::Executor& executor) {
  const program::Program& p = executor.program();
  for (std::size_t u = 0; u < p.units.size(); ++u)
    for (const auto& entry : p.units[u].entries) {
      const auto& parameter = p.parameters[static_cast<std::size_t>(entry.parameter)];
      if (parameter.role != arch::Role::kRouterBias || parameter.layer != 0) continue;
      const float* first = executor.state("param", static_cast<int>(u)).data_ptr<float>() + entry.offset;
      return {first, first + parameter.elements()};
    }
  return {};
}

// The balance loss is taken per sequence, so it does not depend on how a batch is cut into micro-batches.
TEST(SparseLayouts, MicroBatchesAreTheSameModelInDouble) {
  for (const auto& a : sparse_models())
    for (const std::int64_t micro : {1, 4, 12}) {
      const Outcome& one = train_alone(sound(a, setting_of(1, 0, false, DType::kF64, 3)), proof_steps());
      expect_same_model(one, train_threads(sound(a, setting_of(1, 0, false, DType::kF64, micro)), proof_steps()));
    }
}

TEST(SparseLayouts, UnitsOfAnySizeAreTheSameModel) {
  for (const auto& a : sparse_models()) {
    const auto whole = setting_of(1, 0, false, DType::kF64, 3);
    const Outcome& one = train_alone(sound(a, whole), proof_steps());
    for (const std::int64_t layers : {program::kHalfLayer, std::int64_t{2}}) {
      auto s = whole;
      s.unit_layers = layers;
      expect_same_model(one, train_threads(sound(a, s), proof_steps()));
    }
  }
}

TEST(SparseLayouts, OneStepInFloatWithinTheBound) {
  for (const auto& a : sparse_models()) {
    const program::Program fused = sound(a, setting_of(1, 0, false, DType::kF32, 3));
    auto plain = fused.setting;
    plain.kernels = arch::Kernels::kReference;
    const Difference d = difference(train_alone(sound(a, plain), 1), train_threads(fused, 1));
    const Bounds bounds = bounds_of(fused);
    expect_within(d, bounds);
  }
}

TEST(SparseLayouts, LearnInBf16AndDeadBuffersAreDead) {
  auto narrow = setting_of(1, 0, false, DType::kBF16, 3);
  narrow.kernels = arch::Kernels::kAten;
  for (const auto& a : sparse_models())
    for (const auto& setting : {setting_of(1, 0, false, DType::kF32, 3), narrow}) {
      const program::Program p = sound(a, setting);
      const Outcome out = train_threads(p, 10);
      EXPECT_LT(out.losses.back(), out.losses.front()) << "it does not learn";
      EXPECT_EQ(out.hash, train_threads(p, 10, {at::kCPU, true}).hash);
    }
}

// The step's sums are compared with the means that follow from a balanced router and the size of its logits.
TEST(SparseLayouts, TheStepSaysTheLossesOfTheRouter) {
  const program::Program p = sound(mixtral(), setting_of(1, 0, false, DType::kF32, 3));
  on_ranks(1, [&](comm::Communicator& world) {
    exec::Executor executor(p, 0, &world, {});
    for (int u = 0; u < static_cast<int>(p.units.size()); ++u)
      for (const char* state : {"param", "master", "m", "v"})
        if (executor.has_state(state)) executor.state(state, u).zero_();  // all logits are 0, and all scores 1/5
    const ReadSamples read = synthetic_samples(p.setting, p.arch.vocabulary);
    std::int64_t sample = 0;
    exec::StepInput input;
    input.step = 1;
    input.load = [&](const exec::MicroBatch& to) { return read(3 * sample++, 3, to); };
    const exec::StepResult result = executor.run(input);
    // With equal scores, the mean of count x score sum is k T^2 / E^2 whatever the counts, so the loss is 1.
    EXPECT_NEAR(result.balance_loss, 1.0, 1e-6);
    EXPECT_NEAR(result.z_loss, std::log(5.0) * std::log(5.0), 1e-6);
  });
}

// A step moves the bias of each expert by the rate towards a balanced load, according to the load in that step. This
// holds for every optimizer and for every number of micro-batches. The bias takes no part in the gradient's norm.
TEST(SparseLayouts, StepsMoveTheBiasOfARouterByTheSignOfItsLoad) {
  auto a = mixtral();
  a.experts->z_loss = 0.0, a.experts->scores = arch::RouterScores::kSigmoid, a.experts->bias_rate = 0.25;
  for (const char* optimizer : {"adamw", "lion", "muon", "adafactor"})
    for (const std::int64_t micro : {3, 12}) {
      SCOPED_TRACE(optimizer);
      auto s = setting_of(1, 0, false, DType::kF32, micro);
      s.optimizer = optimizer;
      const program::Program p = sound(a, s);
      on_ranks(1, [&](comm::Communicator& world) {
        exec::Executor executor(p, 0, &world, {});
        for (int u = 0; u < static_cast<int>(p.units.size()); ++u)
          for (const char* state : {"param", "master", "m", "v", "v_rows", "v_columns"})
            if (executor.has_state(state)) executor.state(state, u).zero_();
        const ReadSamples read = synthetic_samples(p.setting, p.arch.vocabulary);
        std::int64_t sample = 0;
        const auto step = [&](std::int64_t number) {
          exec::StepInput input;
          input.step = number;
          input.load = [&](const exec::MicroBatch& to) { return read(micro * sample++, micro, to); };
          return executor.run(input);
        };
        // All scores are equal, so in the first step every token chooses the first two experts. The biases of the other
        // three then rise, and the second step chooses two of these.
        EXPECT_EQ(step(1).grad_norm, 0.0) << "the counts are in the norm";
        EXPECT_EQ(biases(executor), (std::vector<float>{-0.25F, -0.25F, 0.25F, 0.25F, 0.25F}));
        step(2);
        EXPECT_EQ(biases(executor), (std::vector<float>{0.0F, 0.0F, 0.0F, 0.0F, 0.5F}));
      });
    }
}

TEST(SparseLayouts, WhatIsNotBuiltIsRefusedByItsKey) {
  const auto refused = [](const Layout& l) {
    try {
      program::build(mixtral(), setting_of(l, DType::kF32));
    } catch (const UsageError& error) {
      const std::string text = error.what();
      return text.substr(0, text.find(':'));
    }
    return std::string("built");
  };
  Layout pieces{1, 0, false, 2};
  pieces.tensor = 2, pieces.rows = true, pieces.chunks = 2;
  EXPECT_EQ(refused(pieces), "parallel.tensor_chunks");
  EXPECT_EQ(refused({1, 0, false, 2}), "built");
}

}  // namespace
}  // namespace molen::prove
