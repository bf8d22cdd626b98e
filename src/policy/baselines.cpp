#include "policy/baselines.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/error.h"

namespace molen::policy {
namespace {

constexpr double kSumRounding = 1e-10;  // sums of doubles in another order, as in frontier.cpp

Outcome outcome_of(const Order& order, Choices choices) {
  const TaskGraph& graph = order.graph();
  const double seconds = order.earliest(seconds_of(graph, choices)).end_s;
  const double joules = joules_of(graph, choices, seconds);
  return {seconds, joules, std::move(choices)};
}

int least_joules(const Task& task) {
  const auto less = [](const Choice& a, const Choice& b) {
    return std::pair(a.joules, a.seconds) < std::pair(b.joules, b.seconds);
  };
  return static_cast<int>(std::min_element(task.choices.begin(), task.choices.end(), less) - task.choices.begin());
}

// Returns the choice that is next faster than `from`, or `from` if there is none.
int faster(const Task& task, int from) {
  int next = from;
  const double now = task.choices[static_cast<std::size_t>(from)].seconds;
  for (std::size_t c = 0; c < task.choices.size(); ++c) {
    const double s = task.choices[c].seconds;
    if (s < now && (next == from || s > task.choices[static_cast<std::size_t>(next)].seconds))
      next = static_cast<int>(c);
  }
  return next;
}

}  // namespace

Outcome at_highest_clocks(const TaskGraph& graph) {
  return outcome_of(Order(graph), fastest_choices(graph));
}

Outcome envpipe_plan(const TaskGraph& graph) {
  const Order order(graph);
  Choices choices = fastest_choices(graph);
  std::vector<double> seconds = seconds_of(graph, choices);
  const double envelope = order.earliest(seconds).end_s, slack = envelope * kSumRounding;
  {
    const auto times = order.earliest(seconds);
    const auto ends = order.latest_ends(seconds, envelope);
    for (std::size_t t = 0; t < choices.size(); ++t)
      if (ends[t] - times.start_s[t] - seconds[t] > slack) choices[t] = least_joules(graph.tasks[t]);
  }
  seconds = seconds_of(graph, choices);
  for (auto times = order.earliest(seconds); times.end_s > envelope + slack; times = order.earliest(seconds)) {
    const auto ends = order.latest_ends(seconds, times.end_s);
    bool changed = false;
    for (std::size_t t = 0; t < choices.size(); ++t) {
      if (ends[t] - times.start_s[t] - seconds[t] > slack) continue;
      const int next = faster(graph.tasks[t], choices[t]);
      changed = changed || next != choices[t];
      choices[t] = next;
      seconds[t] = chosen(graph, choices, t).seconds;
    }
    MOLEN_CHECK(changed, "the longest path takes {} s at its highest clocks, and the envelope {} s", times.end_s,
                envelope);
  }
  return outcome_of(order, std::move(choices));
}

Outcome single_clock_plan(const TaskGraph& graph, double deadline_s) {
  const Order order(graph);
  const Choices fastest = fastest_choices(graph);
  std::set<double, std::greater<>> clocks;
  for (const Task& task : graph.tasks)
    for (const Choice& c : task.choices) clocks.insert(c.clock_hz);
  Outcome best = outcome_of(order, fastest);
  for (const double clock : clocks) {
    Choices choices = fastest;
    for (std::size_t t = 0; t < choices.size(); ++t)
      for (std::size_t c = 0; c < graph.tasks[t].choices.size(); ++c)
        if (graph.tasks[t].choices[c].clock_hz == clock) choices[t] = static_cast<int>(c);
    Outcome one = outcome_of(order, std::move(choices));
    if (one.seconds <= deadline_s * (1.0 + kSumRounding) && one.joules < best.joules) best = std::move(one);
  }
  return best;
}

}  // namespace molen::policy
