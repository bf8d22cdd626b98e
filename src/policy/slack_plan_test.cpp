#include "policy/slack_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.h"
#include "policy/test_graphs.h"

namespace molen::policy {
namespace {

constexpr double kSums = 1e-9;  // relative: sums of doubles in another order

rc::Gen<StepGraph> random_pipeline() {
  return rc::gen::exec([] {
    const auto kind = *rc::gen::elementOf(
        std::vector<program::ScheduleKind>(program::kAllScheduleKinds.begin(), program::kAllScheduleKinds.end()));
    const int stages = *rc::gen::inRange(2, 6);
    const int chunks = kind == program::ScheduleKind::kZbV           ? 2
                       : kind == program::ScheduleKind::kInterleaved ? *rc::gen::inRange(1, 4)
                                                                     : 1;
    const auto schedule = program::make_schedule(kind, stages, chunks, *rc::gen::inRange(1, 9));
    const auto percent = *rc::gen::container<std::vector<int>>(4, rc::gen::inRange(0, 40));
    std::vector<double> spread;
    for (const int p : percent) spread.push_back(0.01 * p);
    return graph_of(schedule, uneven_choices(schedule, spread, *rc::gen::inRange(2, 8)), 85.0);
  });
}

RC_GTEST_PROP(SlackPlan, IsNoWorseThanTheOthersAndInTime, ()) {
  const StepGraph step = *random_pipeline();
  const double slowdown = 0.01 * *rc::gen::inRange(0, 20);
  const SlackPlan plans = slack_plan(step.graph, slowdown);
  RC_ASSERT(std::abs(plans.deadline_s - plans.highest.seconds * (1.0 + slowdown)) < kSums);
  RC_ASSERT(plans.slack.seconds < plans.deadline_s * (1.0 + kSums));
  for (const Outcome* other : {&plans.highest, &plans.single, &plans.envpipe}) {
    RC_ASSERT(plans.slack.joules < other->joules * (1.0 + kSums));
    RC_ASSERT(other->seconds < plans.deadline_s * (1.0 + kSums));
  }
  const Order order(step.graph);
  for (const Outcome* one : {&plans.highest, &plans.slack, &plans.single, &plans.envpipe}) {
    RC_ASSERT(std::abs(order.earliest(seconds_of(step.graph, one->choices)).end_s - one->seconds) < kSums);
    RC_ASSERT(std::abs(joules_of(step.graph, one->choices, one->seconds) - one->joules) < kSums * one->joules);
  }
}

// The law of the paper: on the exact frontier no plan of the same time takes less. The bound may exceed the plan only
// where the plan ends before the deadline and saves the wait.
RC_GTEST_PROP(SlackPlan, TheBoundIsBelowAllPlans, ()) {
  const StepGraph step = *random_pipeline();
  const SlackPlan plans = slack_plan(step.graph, 0.0);
  for (const Outcome* one : {&plans.highest, &plans.slack, &plans.single, &plans.envpipe})
    RC_ASSERT(plans.bound_joules < joules_of(step.graph, one->choices, plans.deadline_s) * (1.0 + kSums));
}

TEST(SlackPlan, ASlowdownMustBeAShare) {
  const auto schedule = program::make_schedule(program::ScheduleKind::k1f1b, 2, 1, 2);
  const StepGraph step = graph_of(schedule, uneven_choices(schedule, {0.0}, 3), 85.0);
  EXPECT_THROW(slack_plan(step.graph, -0.1), UsageError);
  EXPECT_THROW(slack_plan(step.graph, std::nan("")), UsageError);
}

// A pipeline of even stages has slack only in its bubbles, so a stage's tasks on the critical path keep the highest
// clock: all of the last stage's, which never waits between its first forward and its last backward.
TEST(SlackPlan, TheLastStageOfAnEvenPipelineKeepsItsClock) {
  const auto schedule = program::make_schedule(program::ScheduleKind::k1f1b, 4, 1, 8);
  const StepGraph step = graph_of(schedule, uneven_choices(schedule, {0.0}, 6), 85.0);
  const SlackPlan plans = slack_plan(step.graph, 0.0);
  EXPECT_LT(plans.slack.joules, plans.highest.joules);
  const auto rows = clocks_of_kinds(step, plans.slack.choices);
  ASSERT_EQ(rows.size(), 8u) << "forward and backward of four stages";
  for (const ClocksOfKind& row : rows) {
    EXPECT_EQ(row.tasks, 8);
    EXPECT_EQ(row.most_hz, 1.4e9) << row.stage << row.kind;
    if (row.stage == 3) EXPECT_EQ(row.least_hz, 1.4e9) << row.kind;
    if (row.stage == 0) EXPECT_LT(row.least_hz, 1.4e9) << row.kind;
  }
}

TEST(SlackPlan, ATaskOfOneChoiceIsNoSlack) {
  const auto schedule = program::make_schedule(program::ScheduleKind::k1f1b, 3, 1, 4);
  const StepGraph step = graph_of(schedule, uneven_choices(schedule, {0.0, 0.2}, 1), 85.0);
  const SlackPlan plans = slack_plan(step.graph, 0.5);
  EXPECT_NEAR(plans.slack.joules, plans.highest.joules, kSums * plans.highest.joules);
  EXPECT_TRUE(clocks_of_kinds(step, plans.slack.choices).empty());
}

// All devices at one lower clock within a slowdown of 20 %: by hand, the lowest of the clocks that stretches a task by
// no more than that.
TEST(SingleClock, IsTheLowestThatTheSlowdownAllows) {
  const auto schedule = program::make_schedule(program::ScheduleKind::kGpipe, 2, 1, 3);
  ActionChoices choices = uneven_choices(schedule, {0.0}, 6);
  choices.transfer_s = 0.0;
  const StepGraph step = graph_of(schedule, choices, 0.0);
  const SlackPlan plans = slack_plan(step.graph, 0.2);
  double lowest = 1.4e9;
  for (const Choice& c : choices.forward[0])
    if (c.seconds <= 1.2 * choices.forward[0][0].seconds) lowest = std::min(lowest, c.clock_hz);
  ASSERT_LT(lowest, 1.4e9);
  const auto rows = clocks_of_kinds(step, plans.single.choices);
  ASSERT_EQ(rows.size(), 4u) << "forward and backward of two stages";
  for (const ClocksOfKind& row : rows) {
    EXPECT_EQ(row.least_hz, lowest);
    EXPECT_EQ(row.most_hz, lowest);
  }
}

// A device may have two clocks alone.
TEST(ClocksOfKinds, AreThoseOfTasksWithAChoice) {
  StepGraph step;
  const std::vector<Choice> two{{2e9, 1.0, 2.0}, {1e9, 2.0, 1.0}};
  step.graph = {.tasks = {{two}, {two}, {{{2e9, 5.0, 0.0}}}, {two}, {two}}, .edges = {}, .devices = 2};
  step.activities = {{1, "forward", 0}, {0, "forward", 0}, {0, "update", 0}, {0, "forward", 1}, {-1, "", -1}};
  const auto rows = clocks_of_kinds(step, {1, 0, 0, 1, 1});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].stage, 0);
  EXPECT_EQ(rows[0].kind, "forward");
  EXPECT_EQ(rows[0].tasks, 2);
  EXPECT_EQ(rows[0].least_hz, 1e9);
  EXPECT_EQ(rows[0].most_hz, 2e9);
  EXPECT_EQ(rows[1].stage, 1);
  EXPECT_EQ(rows[1].tasks, 1);
  EXPECT_EQ(rows[1].median_hz, 1e9);
}

TEST(ClockChanges, AreCountedBetweenTheTasksOfAStage) {
  StepGraph step;
  const std::vector<Choice> two{{2e9, 1.0, 2.0}, {1e9, 2.0, 1.0}};
  step.graph = {
      .tasks = {{two}, {two}, {{{0.0, 5.0, 0.0}}}, {two}, {two}}, .edges = {{0, 1}, {1, 2}, {2, 3}}, .devices = 2};
  step.activities = {{0, "forward", 0}, {0, "forward", 1}, {-1, "", -1}, {0, "backward", 0}, {1, "forward", 0}};
  const auto rows = clock_changes(step, {0, 1, 0, 0, 1});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].changes, 2);
  EXPECT_DOUBLE_EQ(rows[0].shortest_s, 1.0);  // the first forward; the second one's clock stays for 2 + 5 s
  EXPECT_EQ(rows[1].changes, 0);
}

}  // namespace
}  // namespace molen::policy
