#include "policy/task_graph.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::policy {
namespace {

void check_task(const Task& task, std::size_t number) {
  const auto bad = [](double value) { return !(std::isfinite(value) && value >= 0.0); };
  if (task.choices.empty()) throw UsageError("task {} has no choice of a clock", number);
  if (bad(task.devices)) throw UsageError("task {} keeps {} devices busy", number, task.devices);
  for (const Choice& c : task.choices)
    if (bad(c.seconds) || bad(c.joules) || bad(c.clock_hz))
      throw UsageError("task {} cannot take {} s and {} J at {} Hz", number, c.seconds, c.joules, c.clock_hz);
}

void check_graph(const TaskGraph& graph) {
  for (std::size_t t = 0; t < graph.tasks.size(); ++t) check_task(graph.tasks[t], t);
  const auto n = static_cast<int>(graph.tasks.size());
  for (const Edge& e : graph.edges)
    if (e.from < 0 || e.from >= n || e.to < 0 || e.to >= n || !std::isfinite(e.lag_s))
      throw UsageError("an edge from task {} to task {} with a lag of {} s, in a graph of {} tasks", e.from, e.to,
                       e.lag_s, n);
  if (!(graph.devices >= 0.0 && graph.wait_watts >= 0.0 && std::isfinite(graph.devices * graph.wait_watts)))
    throw UsageError("{} devices cannot wait with {} W each", graph.devices, graph.wait_watts);
}

// Lists edges by one of their ends.
void list_edges(const TaskGraph& graph, int Edge::*end, std::vector<int>& edges, std::vector<std::size_t>& first) {
  first.assign(graph.tasks.size() + 1, 0);
  for (const Edge& e : graph.edges) ++first[static_cast<std::size_t>(e.*end) + 1];
  for (std::size_t t = 0; t < graph.tasks.size(); ++t) first[t + 1] += first[t];
  edges.resize(graph.edges.size());
  std::vector<std::size_t> next(first.begin(), first.end() - 1);
  for (std::size_t i = 0; i < graph.edges.size(); ++i)
    edges[next[static_cast<std::size_t>(graph.edges[i].*end)]++] = static_cast<int>(i);
}

}  // namespace

Order::Order(const TaskGraph& graph) : graph_(graph) {
  check_graph(graph);
  list_edges(graph, &Edge::to, into_, first_into_);
  list_edges(graph, &Edge::from, out_, first_out_);
  std::vector<std::size_t> waits(graph.tasks.size());
  for (std::size_t t = 0; t < waits.size(); ++t) {
    waits[t] = first_into_[t + 1] - first_into_[t];
    if (waits[t] == 0) order_.push_back(static_cast<int>(t));
  }
  for (std::size_t i = 0; i < order_.size(); ++i)
    for (const int e : out_of(order_[i])) {
      const int to = graph.edges[static_cast<std::size_t>(e)].to;
      if (--waits[static_cast<std::size_t>(to)] == 0) order_.push_back(to);
    }
  if (order_.size() < graph.tasks.size())
    throw UsageError("{} of {} tasks wait for each other in a circle", graph.tasks.size() - order_.size(),
                     graph.tasks.size());
}

Order::Times Order::earliest(const std::vector<double>& seconds) const {
  Times times{std::vector<double>(seconds.size(), 0.0), 0.0};
  for (const int task : order_) {
    const auto t = static_cast<std::size_t>(task);
    double& start = times.start_s[t];
    for (const int e : into(task)) {
      const Edge& edge = graph_.edges[static_cast<std::size_t>(e)];
      const auto from = static_cast<std::size_t>(edge.from);
      start = std::max(start, times.start_s[from] + seconds[from] + edge.lag_s);
    }
    times.end_s = std::max(times.end_s, start + seconds[t]);
  }
  return times;
}

std::vector<double> Order::latest_ends(const std::vector<double>& seconds, double deadline_s) const {
  std::vector<double> ends(seconds.size(), deadline_s);
  for (auto task = order_.rbegin(); task != order_.rend(); ++task)
    for (const int e : out_of(*task)) {
      const Edge& edge = graph_.edges[static_cast<std::size_t>(e)];
      const auto to = static_cast<std::size_t>(edge.to);
      double& end = ends[static_cast<std::size_t>(*task)];
      end = std::min(end, ends[to] - seconds[to] - edge.lag_s);
    }
  return ends;
}

const Choice& chosen(const TaskGraph& graph, const Choices& choices, std::size_t task) {
  return graph.tasks[task].choices[static_cast<std::size_t>(choices[task])];
}

std::vector<double> seconds_of(const TaskGraph& graph, const Choices& choices) {
  std::vector<double> seconds;
  seconds.reserve(choices.size());
  for (std::size_t t = 0; t < choices.size(); ++t) seconds.push_back(chosen(graph, choices, t).seconds);
  return seconds;
}

Choices fastest_choices(const TaskGraph& graph) {
  Choices fastest;
  for (const Task& task : graph.tasks) {
    const auto best = std::min_element(task.choices.begin(), task.choices.end(), [](const Choice& a, const Choice& b) {
      return std::pair(a.seconds, a.joules) < std::pair(b.seconds, b.joules);
    });
    fastest.push_back(static_cast<int>(best - task.choices.begin()));
  }
  return fastest;
}

double effective_joules(const TaskGraph& graph, const Task& task, const Choice& choice) {
  return choice.joules - graph.wait_watts * task.devices * choice.seconds;
}

double joules_of(const TaskGraph& graph, const Choices& choices, double seconds) {
  double joules = graph.wait_watts * graph.devices * seconds;
  for (std::size_t t = 0; t < choices.size(); ++t)
    joules += effective_joules(graph, graph.tasks[t], chosen(graph, choices, t));
  return joules;
}

}  // namespace molen::policy
