// The slack plan of a step: the clocks with which it takes the least energy and, apart from the slowdown that is
// allowed, no more time, beside the plans of others.
#pragma once

#include <string>
#include <vector>

#include "policy/baselines.h"
#include "policy/frontier.h"
#include "policy/step_graph.h"

namespace molen::policy {

struct SlackPlan {
  double deadline_s = 0.0;
  Outcome highest;              // all tasks at their highest clocks
  Outcome slack;                // the plan: no worse than the others of the same deadline
  Outcome single, envpipe;      // baselines.h
  double bound_joules = 0.0;    // no plan within the deadline takes less (Plan::bound_joules)
  std::int64_t operations = 0;  // of the solver
};

// Returns the plans for a step that may take `slowdown` (0: no) longer than with the highest clocks, relative to that.
// Throws UsageError for a slowdown that is negative or not finite, and as plan_within does.
SlackPlan slack_plan(const TaskGraph& graph, double slowdown);

// The clocks that a plan gives to the tasks of a stage of one kind.
struct ClocksOfKind {
  int stage = 0;
  std::string kind;
  int tasks = 0;
  double least_hz = 0.0, median_hz = 0.0, most_hz = 0.0;
};
// Returns them by stage, in the order in which the stage first runs the kinds. Tasks without a choice are left out.
std::vector<ClocksOfKind> clocks_of_kinds(const StepGraph& step, const Choices& choices);

// How often the clock of a stage changes in a step, and the shortest time for which it stays.
struct ClockChanges {
  int stage = 0, changes = 0;
  double shortest_s = 0.0;  // between two changes; 0 without any
};
// Counts the changes between the tasks of each stage, in the order in which they run. The step begins with the clock of
// the stage's first task.
std::vector<ClockChanges> clock_changes(const StepGraph& step, const Choices& choices);

}  // namespace molen::policy
