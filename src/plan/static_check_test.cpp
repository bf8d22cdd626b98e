#include "plan/static_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/test_sanitized.h"
#include "plan/layouts.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/provenance/provenance.h"
#include "program/values/optimizer.h"

namespace molen::plan {
namespace {

arch::Architecture model_of_layers(std::int64_t layers) {
  auto a = arch::preset("llama-tiny");
  a.layers = layers;
  return a;
}

// In every layout, including schedules of four stages, the counts from few micro-batches equal those from building all
// micro-batches. The full programs are sound too.
TEST(StaticCheck, CountsWhatIsLeftOut) {
  const auto a = model_of_layers(8);
  std::size_t left_out = 0, turn = 0;
  for (const int ranks : {1, 4}) {
    program::Setting base;
    base.micro_batch = 1;
    base.sequence = 16;
    base.global_batch = 32;
    for (const Layout& l : layouts_of(a, base, ranks, {})) {
      if (turn++ % kStride != 0) continue;
      SCOPED_TRACE(l.name);
      const StaticCheck check = check_statically(a, l.setting);
      EXPECT_TRUE(check.findings.empty()) << check.findings.front();
      left_out += check.micro_batches < l.setting.micro_batches();
      const auto stages = program::build_stages(a, l.setting);
      Bytes peak;
      std::int64_t ops = 0;
      for (const auto& p : stages) {
        peak = std::max(peak, program::plan_memory(p).peak);
        ops = std::max<std::int64_t>(ops, p.num_ops());
        EXPECT_TRUE(program::check(p).empty());
      }
      EXPECT_TRUE(program::check_world(stages).empty());
      EXPECT_EQ(check.peak, peak);
      EXPECT_EQ(check.ops, ops);
    }
  }
  EXPECT_GT(left_out * kStride, 50u);
}

// Checks states of every shape in layouts that cover all pairs of choices: each optimizer's own states decide the parts
// of units, the memory and the types.
TEST(StaticCheck, LayoutsOfEveryOptimizerAreSound) {
  const auto a = model_of_layers(4);
  for (const program::Optimizer& optimizer : program::optimizers()) {
    program::Setting base;
    base.optimizer = optimizer.name;
    base.micro_batch = 1;
    base.sequence = 16;
    base.global_batch = 32;
    base.offload.optimizer = true;
    std::size_t turn = 0, on_host = 0, tensor = 0, stages = 0;
    for (const Layout& l : covering_pairs(layouts_of(a, base, 4, {}))) {
      on_host += l.setting.offload.optimizer, tensor += l.setting.tensor(), stages += l.setting.pipelined();
      if (turn++ % kStride != 0) continue;
      SCOPED_TRACE(fmt::format("{}: {}", optimizer.name, l.name));
      const StaticCheck check = check_statically(a, l.setting);
      EXPECT_TRUE(check.findings.empty()) << check.findings.front();
    }
    EXPECT_GT(tensor, 5u) << optimizer.name;
    EXPECT_GT(stages, 5u) << optimizer.name;
    EXPECT_EQ(on_host > 0, optimizer.whole_matrices == nullptr) << optimizer.name;
  }
}

// Removes the attribute that gives the size of the global batch.
void drop_positions(program::Program& p) {
  for (program::Body& body : p.bodies)
    for (program::Step& step : body.steps) step.attributes.positions = 0;
}

// The order of instances really repeats: a program of more micro-batches has the same bodies. Only the number of
// positions in the mean of the loss differs.
TEST(StaticCheck, MoreMicroBatchesHaveTheSameBodies) {
  const auto a = model_of_layers(8);
  for (const auto kind :
       {program::ScheduleKind::kGpipe, program::ScheduleKind::k1f1b, program::ScheduleKind::kInterleaved,
        program::ScheduleKind::kZbH1, program::ScheduleKind::kZbV}) {
    program::Setting s;
    s.mesh[mesh::Axis::kPp] = 4;
    s.pipeline = program::pipeline_of(kind, kind == program::ScheduleKind::kInterleaved ? 2 : 1);
    s.sequence = 16;
    s.global_batch = 32;
    const std::int64_t few = repeating_micro_batches(s);
    ASSERT_LT(few, 32);
    auto shorter = s;
    shorter.global_batch = few;
    auto all = program::build_stages(a, s), some = program::build_stages(a, shorter);
    for (auto* stages : {&all, &some})
      for (program::Program& p : *stages) drop_positions(p);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].bodies.size(), some[i].bodies.size());
      EXPECT_EQ(all[i].bodies, some[i].bodies) << name_of(kind) << " stage " << i;
      EXPECT_EQ(all[i].buffers, some[i].buffers);
    }
  }
}

// The check of built programs leaves out micro-batches, gives the programs back as they were, and still finds a mistake
// in any body.
TEST(StaticCheck, BuiltProgramsAreCheckedOnFewMicroBatches) {
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = 4;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.pipeline = program::pipeline_of(program::ScheduleKind::k1f1b, 1);
  s.sequence = 16;
  s.global_batch = 63;  // the last micro-batch of some ranks is empty
  const auto built = program::build_stages(model_of_layers(8), s, nullptr, false, 3);
  EXPECT_EQ(built, program::build_stages(model_of_layers(8), s, nullptr, false)) << "threads change nothing";
  auto stages = built;
  EXPECT_NO_THROW(require_sound(stages, 3));
  EXPECT_EQ(stages, built);
  std::size_t bodies = 0;
  for (std::size_t b = 0; b < built[1].bodies.size(); ++b) {
    auto& steps = stages[1].bodies[b].steps;
    const auto with_operand = std::find_if(steps.begin(), steps.end(), [](const auto& step) {
      return std::holds_alternative<program::Compute>(step.op) && step.operands.size() > 1;
    });
    if (with_operand == steps.end()) continue;
    with_operand->operands.pop_back();
    EXPECT_THROW(require_sound(stages, 3), UsageError) << built[1].bodies[b].name;
    EXPECT_EQ(stages[1].schedule, built[1].schedule);
    EXPECT_EQ(stages[1].setting, built[1].setting);
    stages[1].bodies[b] = built[1].bodies[b];
    ++bodies;
  }
  EXPECT_GE(bodies, 4u);
  // A stage that sends less often than the next one receives is refused too.
  const auto send = std::find_if(stages[0].schedule.rbegin(), stages[0].schedule.rend(), [&](const auto& instance) {
    return std::holds_alternative<program::Send>(
        stages[0].bodies[static_cast<std::size_t>(instance.body)].steps.front().op);
  });
  stages[0].schedule.erase(std::next(send).base());
  EXPECT_ANY_THROW(require_sound(stages));
}

TEST(StaticCheck, LeavesNothingOutWhereNothingRepeats) {
  const auto a = model_of_layers(2);
  program::Setting s;
  s.sequence = 16;
  s.global_batch = 4;
  EXPECT_EQ(check_statically(a, s).micro_batches, 4);
  s.mesh[mesh::Axis::kPp] = 2;
  s.pipeline = program::pipeline_of(program::ScheduleKind::kInterleaved, 1);
  s.global_batch = 33;  // no whole groups, so nothing is left out
  EXPECT_EQ(repeating_micro_batches(s), 33);
}

}  // namespace
}  // namespace molen::plan
