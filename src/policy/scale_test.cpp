// The work of the solver on large pipelines, as a count: CI does not judge seconds.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/test_sanitized.h"
#include "policy/slack_plan.h"
#include "policy/test_graphs.h"

namespace molen::policy {
namespace {

TEST(Scale, PipelinesOf64StagesAnd256MicroBatches) {
  const int stages = kSanitized ? 16 : 64, micro_batches = kSanitized ? 64 : 256;
  std::vector<double> spread;  // stages that differ by up to 10 %
  for (int s = 0; s < stages; ++s) spread.push_back(0.1 * ((7 * s) % 11) / 10.0);
  const auto schedule = program::make_schedule(program::ScheduleKind::k1f1b, stages, 1, micro_batches);
  const StepGraph step = graph_of(schedule, uneven_choices(schedule, spread, 30), 85.0);
  const auto begin = std::chrono::steady_clock::now();
  const Plan plan = plan_within(step.graph, fastest_seconds(step.graph));
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double tasks = static_cast<double>(step.graph.tasks.size());
  fmt::print("{} tasks: {} operations of the solver, {:.2f} s, {:.2f} % above the bound\n", tasks, plan.operations,
             took, 100.0 * (plan.joules / plan.bound_joules - 1.0));
  // An operation takes some 50 ns. Ten seconds for 32,768 tasks are 6000 of them for each.
  EXPECT_LT(static_cast<double>(plan.operations), 6000.0 * tasks);
  // The distance of two clocks is 17 MHz of 1400, which changes the joules of a task by 3 % at most, half of that on
  // average; slack that one task cannot use goes to another.
  EXPECT_LT(plan.joules, 1.01 * plan.bound_joules);
}

}  // namespace
}  // namespace molen::policy
