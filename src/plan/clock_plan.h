// The clocks with which a predicted step takes the least energy on described devices, and what they save.
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.h"
#include "policy/slack_plan.h"
#include "program/ir/program.h"
#include "program/ir/stages.h"
#include "program/ir/timeline.h"
#include "sim/costs.h"
#include "sim/factors.h"

namespace molen::plan {

struct ClockPlan {
  // The joules are those of one device of each stage; `ranks_of_stage` have the same plan.
  policy::SlackPlan plans;
  double ranks_of_stage = 1.0;
  double simulated_s = 0.0;  // the step with the plan's clocks, by the simulator
  std::vector<policy::ClocksOfKind> clocks;
  std::vector<policy::ClockChanges> changes;  // of each stage

  // The programs of all stages that set the plan's clocks themselves (policy/clock_ops.h), and the step with them by
  // the simulator: a clock holds for whole instances, and a change takes `change_s`.
  std::vector<program::Program> programs;
  policy::Outcome set;
  std::vector<int> set_changes;  // of each stage in a step
  double change_s = 0.0;

  std::vector<std::string> assumptions;

  // Joules of the devices of all ranks in a step.
  double devices_j(const policy::Outcome& outcome) const { return ranks_of_stage * outcome.joules; }
  // The share of the devices' joules that a plan saves.
  double saving(const policy::Outcome& outcome) const { return 1.0 - outcome.joules / plans.highest.joules; }
};

// Returns the plan of a step that was predicted with these costs, and may take `slowdown` longer. The programs that set
// its clocks keep the same deadline: where changes would take too long, clocks change less often. Throws UsageError
// for a description without [clocks], which names what is missing, and as policy::slack_plan does.
ClockPlan clock_plan(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                     const cluster::Cluster& cluster, const sim::Factors& factors, const sim::Costs& costs,
                     double slowdown);

}  // namespace molen::plan
