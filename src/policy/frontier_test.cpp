#include "policy/frontier.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "policy/test_graphs.h"

namespace molen::policy {
namespace {

// Seconds and watts of small graphs of whole numbers are rounded by 2^-30 of the step and 2^-42 of all watts, which
// bounds the error of their energies of up to thousands of joules.
constexpr double kWhole = 1e-4;
constexpr double kExact = 1e-9;  // sums of doubles

struct Best {
  double joules = std::numeric_limits<double>::infinity();
  double fastest_s = std::numeric_limits<double>::infinity();
};
Best by_enumeration(const TaskGraph& graph, double deadline_s) {
  const Order order(graph);
  Best best;
  each_choice(graph, [&](const Choices& choices) {
    const double end = order.earliest(seconds_of(graph, choices)).end_s;
    best.fastest_s = std::min(best.fastest_s, end);
    if (end <= deadline_s) best.joules = std::min(best.joules, joules_of(graph, choices, deadline_s));
  });
  return best;
}

RC_GTEST_PROP(PlanWithin, TheBoundIsTheBestOfAllChoicesOfConvexTasks, ()) {
  const TaskGraph graph = *convex_graph(6);
  const double fastest = fastest_seconds(graph), deadline = fastest + *rc::gen::inRange(0, 6);
  const Best best = by_enumeration(graph, deadline);
  const Plan plan = plan_within(graph, deadline);
  RC_ASSERT(std::abs(best.fastest_s - fastest) < kExact);
  RC_ASSERT(std::abs(plan.bound_joules - best.joules) < kWhole);
  RC_ASSERT(plan.joules > best.joules - kExact);
}

RC_GTEST_PROP(PlanWithin, TheBestOfAllChoicesIsBetweenBoundAndPlan, ()) {
  const TaskGraph graph = *random_graph(6, 4);
  const double deadline = fastest_seconds(graph) + *rc::gen::inRange(0, 6);
  const Best best = by_enumeration(graph, deadline);
  const Plan plan = plan_within(graph, deadline);
  RC_ASSERT(plan.bound_joules < best.joules + kWhole);
  RC_ASSERT(plan.joules > best.joules - kExact);
  RC_ASSERT(plan.seconds < deadline + kExact);
  RC_ASSERT(std::abs(joules_of(graph, plan.choices, deadline) - plan.joules) < kExact);
}

RC_GTEST_PROP(Frontier, IsConvexAndFalls, ()) {
  const TaskGraph graph = *random_graph(8, 4);
  const auto plans = frontier(graph, {.gap = 0.0, .points = 12});
  RC_ASSERT(!plans.empty());
  RC_ASSERT(std::abs(plans.front().seconds - fastest_seconds(graph)) < kExact);
  for (std::size_t i = 1; i < plans.size(); ++i) {
    RC_ASSERT(plans[i].bound_joules < plans[i - 1].bound_joules);
    RC_ASSERT(plans[i].slope_watts > plans[i - 1].slope_watts - kWhole);
  }
}

RC_GTEST_PROP(Frontier, BoundsHoldAtEachDeadlineBetween, ()) {
  const TaskGraph graph = *convex_graph(5);
  const double fastest = fastest_seconds(graph);
  for (int more = 0; more < 4; ++more) {
    // A bound is a tangent of the frontier, so it is below the frontier at every other deadline.
    const Plan here = plan_within(graph, fastest + more), there = plan_within(graph, fastest + more + 1);
    RC_ASSERT(here.bound_joules + here.slope_watts < there.bound_joules + kWhole);
    RC_ASSERT(there.bound_joules - there.slope_watts < here.bound_joules + kWhole);
  }
}

RC_GTEST_PROP(FillSlack, NeverTakesLongerOrMore, ()) {
  const TaskGraph graph = *random_graph(8, 4);
  const Choices fastest = fastest_choices(graph);
  const double end = fastest_seconds(graph), deadline = end + *rc::gen::inRange(0, 4);
  const Choices filled = fill_slack(graph, fastest, deadline);
  RC_ASSERT(Order(graph).earliest(seconds_of(graph, filled)).end_s < deadline + kExact);
  RC_ASSERT(joules_of(graph, filled, deadline) < joules_of(graph, fastest, deadline) + kExact);
}

// Two tasks at once, of which one has a second to spare (by hand).
TEST(PlanWithin, GivesTheSpareSecondToTheTaskThatHasIt) {
  TaskGraph graph{.tasks = {{{{2e9, 2, 20}, {1e9, 3, 15}}}, {{{2e9, 3, 30}, {1e9, 4, 10}}}}, .devices = 2};
  const Plan plan = plan_within(graph, 3.0);
  EXPECT_EQ(plan.choices, (Choices{1, 0}));
  EXPECT_DOUBLE_EQ(plan.seconds, 3.0);
  EXPECT_DOUBLE_EQ(plan.joules, 45.0);
  EXPECT_NEAR(plan.bound_joules, 45.0, kWhole);
}

// A chain with one second to give: half of the second task's saving is worth more than the first task's (by hand).
TEST(PlanWithin, GivesTimeWhereASecondSavesMost) {
  TaskGraph graph{
      .tasks = {{{{2e9, 2, 20}, {1e9, 3, 15}}}, {{{2e9, 3, 30}, {1e9, 5, 10}}}}, .edges = {{0, 1}}, .devices = 1};
  const Plan plan = plan_within(graph, 6.0);
  EXPECT_NEAR(plan.bound_joules, 40.0, kWhole);  // the second task takes 4 s, between its clocks
  EXPECT_EQ(plan.choices, (Choices{1, 0}));      // no clock takes 4 s, so the first task gets the second
  EXPECT_DOUBLE_EQ(plan.joules, 45.0);
}

TEST(PlanWithin, ATaskThatWaitsIsWorthWhatItsDeviceWaitsWith) {
  // Slower takes more joules, but fewer than the device that waits instead.
  TaskGraph graph{.tasks = {{{{2e9, 1, 20}, {1e9, 3, 24}}}, {{{2e9, 3, 30}}}}, .devices = 2, .wait_watts = 5.0};
  EXPECT_EQ(plan_within(graph, 3.0).choices, (Choices{1, 0}));
  graph.wait_watts = 1.0;
  EXPECT_EQ(plan_within(graph, 3.0).choices, (Choices{0, 0}));
}

TEST(PlanWithin, ALagBelowZeroLetsATaskStartBeforeAnotherEnds) {
  TaskGraph graph{.tasks = {{{{1e9, 4, 8}}}, {{{2e9, 2, 9}, {1e9, 3, 5}}}}, .edges = {{0, 1, -3.0}}, .devices = 2};
  EXPECT_DOUBLE_EQ(fastest_seconds(graph), 4.0);  // the second task runs from 1 to 3
  const Plan plan = plan_within(graph, 4.0);
  EXPECT_EQ(plan.choices, (Choices{0, 1}));
  EXPECT_DOUBLE_EQ(plan.seconds, 4.0);
}

TEST(PlanWithin, RefusesWhatCannotBe) {
  TaskGraph graph{.tasks = {{{{2e9, 2, 20}}}, {{{2e9, 3, 30}}}}, .edges = {{0, 1}}, .devices = 1};
  EXPECT_THROW(plan_within(graph, 4.9), UsageError);
  EXPECT_THROW(plan_within(graph, std::numeric_limits<double>::infinity()), UsageError);
  graph.edges.push_back({1, 0});
  EXPECT_THROW(plan_within(graph, 9.0), UsageError);
  for (const Edge& edge : {Edge{0, 2}, Edge{2, 0}, Edge{-1, 0}, Edge{0, -1}}) {
    graph.edges = {edge};
    EXPECT_THROW(plan_within(graph, 9.0), UsageError) << edge.from << " to " << edge.to;
  }
  graph.edges = {};
  graph.tasks[0].choices.clear();
  EXPECT_THROW(plan_within(graph, 9.0), UsageError);
  graph.tasks[0].choices = {{1e9, -1.0, 1.0}};
  EXPECT_THROW(plan_within(graph, 9.0), UsageError);
  graph.tasks[0].choices = {{1e9, 1.0, std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_THROW(plan_within(graph, 9.0), UsageError);
}

// Tasks whose choices differ by less than the solver's unit of time, 2^-30 of the step: it cannot tell them apart, and
// a chain of a hundred such tasks at their slower choices would end late by more than a rounding of doubles.
TEST(PlanWithin, IsInTimeWhereChoicesDifferByLessThanAUnit) {
  TaskGraph graph{.devices = 1};
  for (int t = 0; t < 100; ++t) {
    graph.tasks.push_back({{{2e9, 1.0, 20.0 + 0.1 * t}, {1e9, 1.0 + 1e-7, 10.0}}});
    if (t % 10 == 0) graph.tasks.push_back({{{2e9, 0.1, 1.0}}});
  }
  for (int t = 1; t < static_cast<int>(graph.tasks.size()); ++t) graph.edges.push_back({t - 1, t});
  const double fastest = fastest_seconds(graph);
  for (const double more : {0.0, 2.5e-7}) {
    const Plan plan = plan_within(graph, fastest + more);
    EXPECT_LE(plan.seconds, fastest + more + kExact);
    // The tasks that save most are the slower ones: as many as there is time for.
    const auto slower = std::count(plan.choices.begin(), plan.choices.end(), 1);
    EXPECT_EQ(slower, more > 0.0 ? 2 : 0);
    if (more > 0.0) EXPECT_EQ(plan.choices.back() + plan.choices[plan.choices.size() - 2], 2);
  }
}

TEST(PlanWithin, DevicesWithoutTasksWait) {
  const Plan plan = plan_within({.devices = 2, .wait_watts = 5.0}, 3.0);
  EXPECT_DOUBLE_EQ(plan.joules, 30.0);
  EXPECT_DOUBLE_EQ(plan.bound_joules, 30.0);
  EXPECT_DOUBLE_EQ(plan.slope_watts, 10.0);
}

TEST(PlanWithin, AnEmptyGraphTakesNoTime) {
  const Plan plan = plan_within({}, 0.0);
  EXPECT_EQ(plan.seconds, 0.0);
  EXPECT_EQ(plan.joules, 0.0);
}

}  // namespace
}  // namespace molen::policy
