#include "plan/clock_plan.h"

#include "sim/simulate.h"

namespace molen::plan {

ClockPlan clock_plan(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                     const cluster::Cluster& cluster, const sim::Factors& factors, const sim::Costs& costs,
                     double slowdown) {
  const policy::ClockModel model(cluster, {.products = factors.of("power_products"),
                                           .memory = factors.of("power_memory"),
                                           .waiting = factors.of("power_waiting")});
  const policy::StepGraph step = policy::graph_of(stages, timelines, model, costs.core_contention().one_at_a_time);
  ClockPlan plan;
  plan.plans = policy::slack_plan(step.graph, slowdown);
  plan.ranks_of_stage = static_cast<double>(stages.program(0).grid.ranks()) / static_cast<double>(stages.size());
  const policy::Choices& choices = plan.plans.slack.choices;
  plan.simulated_s = sim::step_seconds(
      sim::simulate(stages, policy::work_with(step, stages, timelines, model, choices), costs.core_contention()));
  plan.clocks = policy::clocks_of_kinds(step, choices);
  plan.changes = policy::clock_changes(step, choices);
  plan.assumptions = model.assumptions();
  plan.assumptions.emplace_back("assumption: a clock changes at once, and the change takes no energy");
  plan.assumptions.emplace_back(
      "assumption: ops take the seconds that the step is predicted with, and communication slows compute by as much "
      "with a plan as without one");
  return plan;
}

}  // namespace molen::plan
