#include "plan/memory_need.h"

#include <gtest/gtest.h>

#include "arch/architecture.h"
#include "arch/parameters.h"
#include "program/build/build.h"
#include "program/memory/memory.h"

namespace molen::plan {
namespace {

program::MemoryPlan plan_of(std::int64_t peak, std::int64_t persistent, std::int64_t host) {
  program::MemoryPlan plan;
  plan.peak = Bytes(peak), plan.persistent = Bytes(persistent), plan.host = Bytes(host);
  return plan;
}

TEST(MemoryNeed, AnEvaluationThatDoesNotFitBesideWhatIsKeptNeedsAnArena) {
  const program::MemoryPlan training = plan_of(1000, 600, 50);
  const MemoryNeed fits = with_evaluation(training, plan_of(400, 0, 7));
  EXPECT_EQ(fits.device, Bytes(1000));
  EXPECT_EQ(fits.host, Bytes(57));
  const MemoryNeed apart = with_evaluation(training, plan_of(401, 0, 7));
  EXPECT_EQ(apart.device, Bytes(1401));
  EXPECT_EQ(apart.host, Bytes(57));
}

// A plan of few micro-batches stands for that of many, on each number of data-parallel ranks.
TEST(MemoryNeed, IsThatOfTheWholeBatch) {
  arch::Architecture a = arch::preset("llama-tiny");
  for (const int ranks : {1, 2, 8})
    for (const int zero : {0, 1, 2, 3}) {
      program::Setting s;
      s.mesh[mesh::Axis::kDpShard] = ranks;
      s.zero = ranks == 1 ? 0 : zero, s.micro_batch = 2, s.global_batch = 16 * ranks, s.sequence = 64;
      s.reduce = DType::kBF16;
      const Bytes whole = program::plan_memory(program::build(a, s)).peak;
      EXPECT_EQ(memory_needs(a, s).front().total(), whole) << ranks << " ranks, ZeRO-" << zero;
    }
}

// The fullest stage counts, also where it is the first one.
TEST(MemoryNeed, WhatIsKeptIsThatOfTheFullestStage) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.vocabulary = 32;  // an embedding or a head counts for little beside a layer
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = 2;
  s.global_batch = 2, s.sequence = 64;
  const auto kept = [&](std::vector<std::int64_t> layers) {
    s.pipeline.layers = std::move(layers);
    return kept_need(a, s).total().value;
  };
  const std::int64_t many = a.layers - 1;
  arch::Architecture more = a;
  more.layers += 1;
  const std::int64_t of_layer = 16 * (arch::num_parameters(more) - arch::num_parameters(a));  // fp32, with two moments
  EXPECT_GT(many, 1);
  EXPECT_GE(kept({many, 1}), many * of_layer);
  EXPECT_GE(kept({1, many}), many * of_layer);
}

}  // namespace
}  // namespace molen::plan
