#include "plan/clock_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "policy/clock_ops.h"
#include "sim/simulate.h"

namespace molen::plan {
namespace {

// A clock that holds for less than so many changes is not worth one.
constexpr double kChangesAHold = 4.0;
constexpr double kLonger = 2.0;  // from one try to the next
constexpr double kSums = 1e-9;   // relative: sums of doubles in another order

// Finds the programs that set the plan's clocks, and end by its deadline. The last try has one clock for each stage and
// no change, which takes no longer than the plan.
void set_clocks(ClockPlan& plan, const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                const policy::StepGraph& step, const policy::ClockModel& model, const sim::CoreContention& sharing) {
  policy::StageSeconds work;
  double all_s = 0.0;
  for (const program::Timeline& t : timelines) {
    work.push_back(policy::works_of(t));
    all_s = std::max(all_s, t.total_s);
  }
  double least_s = kChangesAHold * plan.change_s;
  for (;; least_s = std::max(least_s * kLonger, kSums * all_s)) {
    policy::Choices choices = policy::hold_for_instances(stages, step, plan.plans.slack.choices, work, least_s);
    std::vector<program::Program> programs = policy::with_clock_ops(stages, step, choices);
    const program::Stages with(programs);
    policy::StageSeconds spread = policy::with_ops_between(with, work);
    plan.set_changes = policy::changes_of_clock(with);
    plan.set.seconds = sim::step_seconds(
        sim::simulate(with, policy::work_with_clock_ops(with, std::move(spread), model, plan.change_s), sharing));
    plan.programs = std::move(programs);
    plan.set.choices = std::move(choices);
    const bool changes = std::ranges::any_of(plan.set_changes, [](int n) { return n > 0; });
    if (!changes || plan.set.seconds <= plan.plans.deadline_s * (1.0 + kSums)) break;
  }
  plan.set.joules = policy::joules_of(step.graph, plan.set.choices, plan.set.seconds);
}

}  // namespace

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
  const auto& change = cluster.clocks.change;
  plan.change_s = change ? change->value : 0.0;
  set_clocks(plan, stages, timelines, step, model, costs.core_contention());
  plan.assumptions = model.assumptions();
  plan.assumptions.push_back(
      change ? fmt::format("time of a change of the clock: {:.3g} ms ({})", 1e3 * change->value, change->source)
             : "assumption: a clock changes at once (the description has no clocks.change_s)");
  plan.assumptions.emplace_back("assumption: while its clock changes, a device waits");
  plan.assumptions.emplace_back(
      "assumption: ops take the seconds that the step is predicted with, and communication slows compute by as much "
      "with a plan as without one");
  return plan;
}

}  // namespace molen::plan
