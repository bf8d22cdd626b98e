// Graphs of tasks for tests.
#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "policy/step_graph.h"
#include "policy/task_graph.h"

namespace molen::policy {

// A graph of up to `most` tasks, each of which waits for some of those before it.
inline rc::Gen<TaskGraph> random_graph(int most, int most_choices) {
  return rc::gen::exec([=] {
    TaskGraph graph;
    graph.devices = *rc::gen::inRange(1, 4);
    graph.wait_watts = *rc::gen::inRange(0, 4);
    const int n = *rc::gen::inRange(1, most + 1);
    for (int t = 0; t < n; ++t) {
      Task task;
      const int choices = *rc::gen::inRange(1, most_choices + 1);
      for (int c = 0; c < choices; ++c)
        task.choices.push_back({1e9 + 1e6 * c, 1.0 * *rc::gen::inRange(0, 9), 1.0 * *rc::gen::inRange(0, 40)});
      task.devices = *rc::gen::inRange(0, 2);
      graph.tasks.push_back(task);
      for (int before = 0; before < t; ++before)
        if (*rc::gen::inRange(0, 3) == 0) graph.edges.push_back({before, t, 1.0 * *rc::gen::inRange(-2, 3)});
    }
    return graph;
  });
}

// As above, with a choice for each whole number of seconds of a range and joules that are convex in them, so that the
// relaxed problem has a solution in whole seconds. Fewer joules are worth waiting for.
inline rc::Gen<TaskGraph> convex_graph(int most) {
  return rc::gen::exec([=] {
    TaskGraph graph = *random_graph(most, 1);
    for (Task& task : graph.tasks) {
      std::vector<int> saved =
          *rc::gen::container<std::vector<int>>(*rc::gen::inRange<std::size_t>(0, 4), rc::gen::inRange(1, 20));
      std::sort(saved.begin(), saved.end(), std::greater<>());
      Choice choice = task.choices[0];
      choice.joules = 100.0 + graph.wait_watts * task.devices * choice.seconds;
      task.choices = {choice};
      for (const int joules : saved) {
        choice.clock_hz -= 1e6;
        choice.seconds += 1.0;
        choice.joules += graph.wait_watts * task.devices - joules;
        task.choices.push_back(choice);
      }
    }
    return graph;
  });
}

// Calls `visit` with all choices of all tasks.
template <class Visit>
void each_choice(const TaskGraph& graph, Visit visit) {
  Choices choices(graph.tasks.size(), 0);
  for (;;) {
    visit(choices);
    std::size_t t = 0;
    for (; t < choices.size(); ++t) {
      if (++choices[t] < static_cast<int>(graph.tasks[t].choices.size())) break;
      choices[t] = 0;
    }
    if (t == choices.size()) return;
  }
}

// The choices of a task of so many seconds at the highest of some clocks, with power that grows as the clock to the
// power of 2.5 above an idle one.
inline std::vector<Choice> clocked(double seconds, int clocks) {
  std::vector<Choice> choices;
  for (int c = 0; c < clocks; ++c) {
    const double clock = 1.4e9 - 5e8 * c / std::max(1, clocks - 1), ratio = clock / 1.4e9;
    const double taken = seconds * (0.05 + 0.95 / ratio);
    choices.push_back({clock, taken, (60.0 + 340.0 * std::pow(ratio, 2.5)) * taken});
  }
  return choices;
}

// The choices of the actions of a schedule whose global stages are up to `spread` slower than the fastest one.
inline ActionChoices uneven_choices(const program::Schedule& schedule, const std::vector<double>& spread, int clocks) {
  ActionChoices all;
  for (int g = 0; g < schedule.global_stages(); ++g) {
    const double seconds = 1.0 + spread.at(static_cast<std::size_t>(g) % spread.size());
    all.forward.push_back(clocked(0.05 * seconds, clocks));
    all.backward.push_back(clocked(0.1 * seconds, clocks));
    all.backward_input.push_back(clocked(0.05 * seconds, clocks));
    all.backward_weights.push_back(clocked(0.045 * seconds, clocks));
  }
  all.transfer_s = 0.001;
  return all;
}

}  // namespace molen::policy
