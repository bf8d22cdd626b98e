#include "policy/clock_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"

namespace molen::policy {
namespace {

constexpr double kHzOfKhz = 1e3;

// Consecutive instances of a stage with the same clock.
struct Hold {
  double clock_hz = 0.0, seconds = 0.0;
  std::vector<int> tasks;
};

void join_equal(std::vector<Hold>& holds, std::size_t at) {
  for (const std::size_t first : {at, at - 1}) {  // the later pair first, so that the earlier index stays valid
    if (first >= holds.size() || first + 1 >= holds.size() || holds[first].clock_hz != holds[first + 1].clock_hz)
      continue;
    Hold& into = holds[first];
    Hold& from = holds[first + 1];
    into.seconds += from.seconds;
    into.tasks.insert(into.tasks.end(), from.tasks.begin(), from.tasks.end());
    holds.erase(holds.begin() + static_cast<std::ptrdiff_t>(first + 1));
  }
}

// Raises the clock of a hold, or of one beside it, so that two holds become one.
void raise(std::vector<Hold>& holds, std::size_t at) {
  const double own = holds[at].clock_hz;
  std::size_t change = at;
  double to = 0.0;
  const auto consider = [&](std::size_t beside) {
    const double clock = holds[beside].clock_hz;
    if (clock > own && (to == 0.0 || clock < to)) to = clock;
  };
  if (at > 0) consider(at - 1);
  if (at + 1 < holds.size()) consider(at + 1);
  if (to == 0.0) {  // it is higher than both
    to = own;
    const bool earlier = at > 0, later = at + 1 < holds.size();
    change = earlier && (!later || holds[at - 1].seconds <= holds[at + 1].seconds) ? at - 1 : at + 1;
  }
  holds[change].clock_hz = to;
  join_equal(holds, change);
}

// The holds of a stage, in the order in which it runs its instances.
std::vector<Hold> holds_of(const program::Stages& stages, const StepGraph& step, const Choices& choices,
                           const std::vector<double>& work, std::size_t s) {
  std::map<int, Hold> of_instance;
  for (std::size_t i = 0; i < stages.ops(s).size(); ++i) {
    const int task = step.task_of_op.at(s)[i];
    if (task < 0) continue;
    Hold& hold = of_instance[stages.ops(s)[i].instance];
    hold.clock_hz = std::max(hold.clock_hz, chosen(step.graph, choices, static_cast<std::size_t>(task)).clock_hz);
    hold.seconds += work.at(i);
    if (hold.tasks.empty() || hold.tasks.back() != task) hold.tasks.push_back(task);
  }
  std::vector<Hold> holds;
  for (auto& [instance, hold] : of_instance) {
    holds.push_back(std::move(hold));
    if (holds.size() > 1) join_equal(holds, holds.size() - 2);
  }
  return holds;
}

int choice_with(const Task& task, double clock_hz) {
  for (std::size_t c = 0; c < task.choices.size(); ++c)
    if (task.choices[c].clock_hz == clock_hz) return static_cast<int>(c);
  throw Error("a task has no choice with a clock of {} Hz", clock_hz);
}

int body_that_sets(program::Program& p, std::int64_t khz, program::Phase phase) {
  const std::string name = fmt::format("set_clock.{}.{}", khz, program::name_of(phase));
  const auto found = std::ranges::find(p.bodies, name, &program::Body::name);
  if (found != p.bodies.end()) return static_cast<int>(found - p.bodies.begin());
  program::Step step;
  step.op = program::SetClock{khz};
  step.phase = phase;
  step.stream = program::Stream::kCompute;
  p.bodies.push_back({name, {std::move(step)}});
  return static_cast<int>(p.bodies.size()) - 1;
}

std::int64_t khz_of(double hz) {
  return std::llround(hz / kHzOfKhz);
}

// The clock with which a stage begins a step, in kHz; 0: it sets none.
std::int64_t clock_at_begin(const std::vector<program::Expanded>& ops) {
  std::int64_t last = 0;
  for (const program::Expanded& e : ops)
    if (const auto* set = std::get_if<program::SetClock>(&e.step->op)) last = set->khz;
  return last;
}

}  // namespace

Choices hold_for_instances(const program::Stages& stages, const StepGraph& step, Choices choices,
                           const StageSeconds& work, double least_s) {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    std::vector<Hold> holds = holds_of(stages, step, choices, work.at(s), s);
    while (holds.size() > 1) {
      const auto shortest = std::ranges::min_element(holds, {}, &Hold::seconds);
      if (shortest->seconds >= least_s) break;
      raise(holds, static_cast<std::size_t>(shortest - holds.begin()));
    }
    for (const Hold& hold : holds)
      for (const int task : hold.tasks) {
        const auto t = static_cast<std::size_t>(task);
        choices[t] = choice_with(step.graph.tasks[t], hold.clock_hz);
      }
  }
  return choices;
}

std::vector<program::Program> with_clock_ops(const program::Stages& stages, const StepGraph& step,
                                             const Choices& choices) {
  std::vector<program::Program> programs;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    std::map<int, std::int64_t> khz;  // of each instance that computes
    for (std::size_t i = 0; i < stages.ops(s).size(); ++i)
      if (const int task = step.task_of_op.at(s)[i]; task >= 0) {
        const std::int64_t wanted = khz_of(chosen(step.graph, choices, static_cast<std::size_t>(task)).clock_hz);
        const auto [found, fresh] = khz.try_emplace(stages.ops(s)[i].instance, wanted);
        MOLEN_CHECK(fresh || found->second == wanted, "instance {} of stage {} has two clocks", found->first, s);
      }
    program::Program p = stages.program(s);
    const std::vector<program::Instance> schedule = std::exchange(p.schedule, {});
    std::int64_t present = 0;
    for (std::size_t k = 0; k < schedule.size(); ++k) {
      const auto wanted = khz.find(static_cast<int>(k));
      if (wanted != khz.end() && std::exchange(present, wanted->second) != wanted->second) {
        const program::Phase phase = p.bodies.at(static_cast<std::size_t>(schedule[k].body)).steps.front().phase;
        p.schedule.push_back({body_that_sets(p, wanted->second, phase), -1});
      }
      p.schedule.push_back(schedule[k]);
    }
    programs.push_back(std::move(p));
  }
  return programs;
}

StageSeconds with_ops_between(const program::Stages& with_clocks, const StageSeconds& work) {
  StageSeconds all;
  for (std::size_t s = 0; s < with_clocks.size(); ++s) {
    all.emplace_back();
    std::size_t next = 0;
    for (const program::Expanded& e : with_clocks.ops(s))
      all.back().push_back(std::holds_alternative<program::SetClock>(e.step->op) ? 0.0 : work.at(s).at(next++));
    MOLEN_CHECK(next == work.at(s).size(), "stage {} has other ops than before", s);
  }
  return all;
}

StageSeconds work_with_clock_ops(const program::Stages& stages, StageSeconds work, const ClockModel& clocks,
                                 double change_s) {
  const double highest_hz = clocks.clocks_hz().front();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::vector<program::Expanded>& ops = stages.ops(s);
    std::int64_t present = clock_at_begin(ops);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      double& seconds = work.at(s).at(i);
      if (const auto* set = std::get_if<program::SetClock>(&ops[i].step->op))
        seconds = std::exchange(present, set->khz) == set->khz ? 0.0 : change_s;
      else if (present > 0)
        seconds *= clocks.stretch(load_of(*ops[i].step), std::min(highest_hz, kHzOfKhz * static_cast<double>(present)));
    }
  }
  return work;
}

std::vector<int> changes_of_clock(const program::Stages& stages) {
  std::vector<int> changes;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    std::int64_t present = clock_at_begin(stages.ops(s));
    changes.push_back(0);
    for (const program::Expanded& e : stages.ops(s))
      if (const auto* set = std::get_if<program::SetClock>(&e.step->op))
        changes.back() += std::exchange(present, set->khz) == set->khz ? 0 : 1;
  }
  return changes;
}

}  // namespace molen::policy
