#include "policy/step_graph.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "policy/test_graphs.h"

namespace molen::policy {
namespace {

// The simulation of schedules has the same rules, written apart.
TEST(ScheduleGraph, TakesTheTimeOfTheSchedule) {
  for (const auto kind : program::kAllScheduleKinds)
    for (const auto& [stages, chunks, micro_batches] : {std::tuple{2, 1, 3}, {4, 2, 8}, {3, 3, 7}, {4, 2, 2}}) {
      const bool one = kind == program::ScheduleKind::k1f1b || kind == program::ScheduleKind::kZbH1;
      const int of_kind = kind == program::ScheduleKind::kZbV ? 2 : one ? 1 : chunks;
      const auto schedule = program::make_schedule(kind, stages, of_kind, micro_batches);
      const ActionChoices choices = uneven_choices(schedule, {0.0, 0.3, 0.1}, 1);
      program::ScheduleCosts costs;
      const auto seconds = [](const auto& all) {
        std::vector<double> s;
        for (const auto& one_stage : all) s.push_back(one_stage.front().seconds);
        return s;
      };
      costs.forward_s = seconds(choices.forward), costs.backward_s = seconds(choices.backward);
      costs.backward_input_s = seconds(choices.backward_input);
      costs.backward_weight_s = seconds(choices.backward_weights);
      costs.transfer_s = choices.transfer_s;
      const StepGraph step = graph_of(schedule, choices, 85.0);
      const auto times = Order(step.graph).earliest(seconds_of(step.graph, fastest_choices(step.graph)));
      const auto simulated = program::simulate(schedule, costs);
      EXPECT_NEAR(times.end_s, simulated.total_s, 1e-12) << name_of(kind) << stages;
      std::size_t task = 0;
      for (const auto& of_stage : simulated.actions)
        for (const auto& action : of_stage) EXPECT_NEAR(times.start_s[task++], action.start_s, 1e-12);
    }
}

TEST(ScheduleGraph, NamesItsActions) {
  const auto schedule = program::make_schedule(program::ScheduleKind::kZbH1, 2, 1, 2);
  const StepGraph step = graph_of(schedule, uneven_choices(schedule, {0.0}, 2), 85.0);
  EXPECT_EQ(step.graph.devices, 2.0);
  EXPECT_EQ(step.activities.size(), 12u);
  int weights = 0;
  for (const Activity& a : step.activities) weights += a.kind == program::name_of(program::Pass::kBackwardWeights);
  EXPECT_EQ(weights, 4);
  ActionChoices none;
  EXPECT_THROW(graph_of(schedule, none, 85.0), UsageError);
}

}  // namespace
}  // namespace molen::policy
