// The frontier of step time and energy of a graph of tasks whose clocks can be chosen (Perseus, SOSP'24, section 4).
//
// With durations that may lie anywhere between those of the choices, the least energy within a deadline is the linear
// time-cost problem of project planning (Kelley, Operations Research 9, 1961; Fulkerson, Management Science 7, 1961):
// each task has a convex piecewise linear energy, the lower hull of its choices. Its dual is a circulation of least
// cost, which is solved for each deadline (policy/circulation.h). docs/decisions/0016-clocks.md says why not step by
// step as Perseus does. A device has only the clocks of the choices, so a plan takes for each task a choice that is no
// slower, and then gives the time that is left to the tasks that save most with it. `bound_joules` tells what that
// costs.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/task_graph.h"

namespace molen::policy {

struct Plan {
  double seconds = 0.0;  // of the step with these choices
  double joules = 0.0;   // of all devices, when the step takes the deadline
  Choices choices;
  // No plan that ends at the deadline takes fewer joules, and with durations between those of the choices it would be
  // reached, up to the rounding of seconds and watts to whole numbers (about 1e-8).
  double bound_joules = 0.0;
  double slope_watts = 0.0;     // of the bound over the deadline: joules that a second more changes it by
  std::int64_t operations = 0;  // of the solver
};

// Returns the step time with the fastest choice of every task. No plan is faster.
double fastest_seconds(const TaskGraph& graph);

// Returns the plan of least energy that ends by the deadline. Throws UsageError for a deadline below fastest_seconds()
// and for a graph that Order refuses.
Plan plan_within(const TaskGraph& graph, double deadline_s);

struct FrontierLimits {
  double gap = 1e-3;  // between points, the frontier is known up to this share of its energy
  int points = 64;    // at most
};
// Returns plans from the fastest to that of least energy, at growing deadlines. Their bounds are points of the exact
// frontier of piecewise linear energies, which is convex; straight lines between them are above it by `gap` at most,
// unless there are more points than the limit.
std::vector<Plan> frontier(const TaskGraph& graph, const FrontierLimits& limits = {});

// Returns the choices that use what a plan leaves: each task takes a slower choice where the time until the deadline
// allows it, those that save the most joules a second first. The joules never grow. `choices` must end by the deadline.
Choices fill_slack(const TaskGraph& graph, Choices choices, double deadline_s);

}  // namespace molen::policy
