// The choices of a task that are worth taking.
#pragma once

#include <vector>

#include "policy/task_graph.h"

namespace molen::policy {

struct Option {
  int choice = 0;
  double seconds = 0.0, joules = 0.0;  // effective
};

// Returns the choices that no other one beats in both seconds and effective joules, from the fastest to the slowest.
std::vector<Option> undominated(const TaskGraph& graph, const Task& task);

// Returns those of them that lie on the lower convex hull: the joules that a second saves shrink from each to the next.
std::vector<Option> lower_hull(const std::vector<Option>& options);

}  // namespace molen::policy
