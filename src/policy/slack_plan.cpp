#include "policy/slack_plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace molen::policy {
namespace {

Outcome filled(const Order& order, const Outcome& plan, double deadline_s) {
  const TaskGraph& graph = order.graph();
  Outcome better;
  better.choices = fill_slack(graph, plan.choices, deadline_s);
  better.seconds = order.earliest(seconds_of(graph, better.choices)).end_s;
  better.joules = joules_of(graph, better.choices, better.seconds);
  return better;
}

// Returns the plan of the solver. Where waiting for the deadline costs more than the clocks save, the best plan ends
// earlier: it is the last point of the frontier.
Plan solved(const TaskGraph& graph, double deadline_s) {
  Plan plan = plan_within(graph, deadline_s);
  if (plan.slope_watts <= 0.0) return plan;
  Plan last = std::move(frontier(graph).back());
  return last.seconds <= deadline_s && last.bound_joules < plan.bound_joules ? last : plan;
}

}  // namespace

SlackPlan slack_plan(const TaskGraph& graph, double slowdown) {
  if (!(slowdown >= 0.0) || !std::isfinite(slowdown))
    throw UsageError("a slowdown of {} is no share of a step; expected 0 or more", slowdown);
  const Order order(graph);
  SlackPlan plans;
  plans.highest = at_highest_clocks(graph);
  plans.deadline_s = plans.highest.seconds * (1.0 + slowdown);
  plans.single = single_clock_plan(graph, plans.deadline_s);
  plans.envpipe = envpipe_plan(graph);
  Plan plan = solved(graph, plans.deadline_s);
  plans.bound_joules = plan.bound_joules;
  plans.operations = plan.operations;
  plans.slack = {plan.seconds, joules_of(graph, plan.choices, plan.seconds), std::move(plan.choices)};
  // The solver's durations lie between those of the choices. Where choices are few, another plan may be better.
  for (const Outcome* other : {&plans.single, &plans.envpipe})
    for (const Outcome& candidate : {*other, filled(order, *other, plans.deadline_s)})
      if (candidate.joules < plans.slack.joules) plans.slack = candidate;
  return plans;
}

std::vector<ClocksOfKind> clocks_of_kinds(const StepGraph& step, const Choices& choices) {
  std::vector<ClocksOfKind> rows;
  std::map<std::pair<int, std::string>, std::vector<double>> clocks;
  for (std::size_t t = 0; t < choices.size(); ++t) {
    const Activity& a = step.activities[t];
    if (a.stage < 0 || step.graph.tasks[t].choices.size() < 2) continue;
    auto& of_kind = clocks[{a.stage, a.kind}];
    if (of_kind.empty()) rows.push_back({.stage = a.stage, .kind = a.kind});
    of_kind.push_back(chosen(step.graph, choices, t).clock_hz);
  }
  for (ClocksOfKind& row : rows) {
    auto& of_kind = clocks.at({row.stage, row.kind});
    std::sort(of_kind.begin(), of_kind.end());
    row.tasks = static_cast<int>(of_kind.size());
    row.least_hz = of_kind.front(), row.median_hz = of_kind[of_kind.size() / 2], row.most_hz = of_kind.back();
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.stage < b.stage; });
  return rows;
}

std::vector<ClockChanges> clock_changes(const StepGraph& step, const Choices& choices) {
  const auto times = Order(step.graph).earliest(seconds_of(step.graph, choices));
  struct Last {
    double clock_hz = 0.0, since_s = 0.0;
  };
  std::map<int, Last> last;
  std::map<int, ClockChanges> changes;
  for (std::size_t t = 0; t < choices.size(); ++t) {  // the tasks of a stage stand in the order in which they run
    const int stage = step.activities[t].stage;
    if (stage < 0 || step.graph.tasks[t].choices.size() < 2) continue;
    const double clock = chosen(step.graph, choices, t).clock_hz;
    ClockChanges& row = changes.try_emplace(stage, ClockChanges{.stage = stage}).first->second;
    const auto [found, fresh] = last.try_emplace(stage, Last{clock, times.start_s[t]});
    if (fresh || found->second.clock_hz == clock) continue;
    const double held = times.start_s[t] - found->second.since_s;
    row.shortest_s = row.changes == 0 ? held : std::min(row.shortest_s, held);
    ++row.changes;
    found->second = {clock, times.start_s[t]};
  }
  std::vector<ClockChanges> rows;
  for (const auto& [stage, row] : changes) rows.push_back(row);
  return rows;
}

}  // namespace molen::policy
