// Tasks whose clocks can be chosen, the order in which they must run, and what a choice of clocks costs.
#pragma once

#include <cstddef>
#include <vector>

namespace molen::policy {

// One way to run a task: at this clock it takes these seconds and joules.
struct Choice {
  double clock_hz = 0.0, seconds = 0.0, joules = 0.0;
};

struct Task {
  std::vector<Choice> choices;  // at least one, in any order
  // Devices that the task keeps busy. A message between devices, which waits on both, has 0.
  double devices = 1.0;
};

// `to` starts `lag_s` after `from` ends, or later. The lag may be negative: then `to` may start before `from` ends,
// when a part of `from` suffices.
struct Edge {
  int from = 0, to = 0;
  double lag_s = 0.0;
};

// A device that runs none of its tasks waits, with `wait_watts`, from the start of the step to its end.
struct TaskGraph {
  std::vector<Task> tasks;
  std::vector<Edge> edges;
  double devices = 0.0, wait_watts = 0.0;
};

// The number of a choice for each task.
using Choices = std::vector<int>;

// The graph in an order in which each task comes after those that it waits for.
class Order {
 public:
  // Throws UsageError for an edge that joins no two tasks, a task without choices, times or energies that are negative
  // or not finite, and for tasks that wait for each other in a circle.
  explicit Order(const TaskGraph& graph);

  const TaskGraph& graph() const { return graph_; }
  const std::vector<int>& tasks() const { return order_; }
  // The edges that lead to a task, and those that leave it.
  struct Range {
    const int *first = nullptr, *last = nullptr;
    const int* begin() const { return first; }
    const int* end() const { return last; }
  };
  Range into(int task) const { return of(into_, first_into_, task); }
  Range out_of(int task) const { return of(out_, first_out_, task); }

  // Returns the earliest start of each task when tasks take `seconds`, and the end of the last one.
  struct Times {
    std::vector<double> start_s;
    double end_s = 0.0;
  };
  Times earliest(const std::vector<double>& seconds) const;
  // Returns the latest end of each task with which all end by `deadline_s`.
  std::vector<double> latest_ends(const std::vector<double>& seconds, double deadline_s) const;

 private:
  static Range of(const std::vector<int>& all, const std::vector<std::size_t>& first, int task) {
    const auto t = static_cast<std::size_t>(task);
    return {all.data() + first[t], all.data() + first[t + 1]};
  }

  const TaskGraph& graph_;
  std::vector<int> order_, into_, out_;
  std::vector<std::size_t> first_into_, first_out_;
};

const Choice& chosen(const TaskGraph& graph, const Choices& choices, std::size_t task);
std::vector<double> seconds_of(const TaskGraph& graph, const Choices& choices);
// Returns the choice of each task that takes the fewest seconds; of two with the same seconds, that of fewer joules.
Choices fastest_choices(const TaskGraph& graph);
// Returns the joules of all devices in a step that takes `seconds`.
double joules_of(const TaskGraph& graph, const Choices& choices, double seconds);
// Returns the joules of a choice beyond those of a device that waits for as long: e' = e - P_wait t (Perseus, SOSP'24,
// section 4). The joules of a step are the sum of these and of what all devices take that wait for the whole step.
double effective_joules(const TaskGraph& graph, const Task& task, const Choice& choice);

}  // namespace molen::policy
