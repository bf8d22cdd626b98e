// Plans that others make, with which the slack plan is compared.
#pragma once

#include "policy/task_graph.h"

namespace molen::policy {

// A clock for each task, and what the step takes with it.
struct Outcome {
  double seconds = 0.0, joules = 0.0;
  Choices choices;
};

// Every task as fast as it can be.
Outcome at_highest_clocks(const TaskGraph& graph);

// The rule of EnvPipe (ATC'23, section 4) on any graph. Its outer envelope are the tasks that have no slack at their
// highest clocks; they keep these. All others take the clock at which the task itself takes the fewest joules. While
// the step is longer than the envelope, the tasks of its longest path that are not at their fastest take one clock
// more. EnvPipe ends after ten such rounds, by then about as fast as the envelope; here they go on until it is reached.
Outcome envpipe_plan(const TaskGraph& graph);

// The lowest-energy plan in which all tasks have the same clock, among those that end by the deadline. A task that has
// not the clock itself, such as a message, takes its fastest choice.
Outcome single_clock_plan(const TaskGraph& graph, double deadline_s);

}  // namespace molen::policy
