#include "policy/step_graph.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/error.h"

namespace molen::policy {
namespace {

constexpr int kNone = -1;

// Returns the ops that each op of a stage waits for: `after`, the op before it on its stream, and the one that
// communicates before it.
std::vector<std::vector<int>> waits_of(const std::vector<program::Expanded>& ops, bool one_at_a_time, int stage) {
  const std::vector<int> in_turn =
      one_at_a_time ? program::communication_before(ops) : std::vector<int>(ops.size(), kNone);
  program::OpPerStream last = program::kNoOps;
  std::vector<std::vector<int>> waits(ops.size());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    waits[i] = ops[i].after;
    int& before = last[static_cast<std::size_t>(ops[i].step->stream)];
    if (before >= 0) waits[i].push_back(before);
    if (in_turn[i] >= 0) waits[i].push_back(in_turn[i]);
    before = static_cast<int>(i);
    for (const int w : waits[i])
      if (w >= static_cast<int>(i))
        throw UsageError(
            "stage {}: op {} waits for op {}, which the program lists later; clocks are planned for programs "
            "in which ops wait for earlier ones",
            stage, i, w);
  }
  return waits;
}

// Returns the group of each op of a stage. Groups are numbered in list order.
class Grouping {
 public:
  Grouping(const program::Stages& stages, std::size_t stage, const std::vector<std::vector<int>>& waits)
      : ops_(stages.ops(stage)), group_(ops_.size(), kNone) {
    std::vector<int> across(ops_.size(), kNone);  // the latest group that an op waits for by way of another stage
    std::vector<int> until(ops_.size(), kNone);   // the latest group that an op waits for
    int instance = kNone;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const bool meets = stages.meeting_of(stage, i) >= 0;
      for (const int w : waits[i]) {
        const auto before = static_cast<std::size_t>(w);
        until[i] = std::max(until[i], until[before]);
        across[i] = std::max(across[i], across[before]);
      }
      if (meets) across[i] = std::max(across[i], until[i]);
      if (ops_[i].step->stream != program::Stream::kCompute || meets) continue;
      if (count_ == 0 || ops_[i].instance != instance || across[i] == count_ - 1) ++count_;
      instance = ops_[i].instance;
      group_[i] = until[i] = count_ - 1;
    }
    add_collectives(stages, stage, waits, until);
  }

  int of(std::size_t op) const { return group_[op]; }
  int count() const { return count_; }

 private:
  // An op between two ops of a group belongs to it.
  void add_collectives(const program::Stages& stages, std::size_t stage, const std::vector<std::vector<int>>& waits,
                       const std::vector<int>& until) {
    std::vector<int> from(ops_.size(), count_);  // the first group that waits for an op
    for (std::size_t i = ops_.size(); i-- > 0;) {
      if (group_[i] != kNone)
        from[i] = group_[i];
      else if (stages.meeting_of(stage, i) < 0 && until[i] == from[i])
        group_[i] = until[i];
      for (const int w : waits[i]) {
        int& first = from[static_cast<std::size_t>(w)];
        first = std::min(first, from[i]);
      }
    }
  }

  const std::vector<program::Expanded>& ops_;
  std::vector<int> group_;
  int count_ = 0;
};

// A group of ops: a task that has choices.
struct Group {
  std::vector<int> ops;
  // For each of its ops: the seconds from the task's start to the op's, and from the op's end to the task's, at the
  // highest clock.
  std::map<int, std::pair<double, double>> around;
};

class StageTasks {
 public:
  StageTasks(const program::Stages& stages, std::size_t stage, const program::Timeline& timeline,
             const ClockModel& clocks, bool one_at_a_time)
      : ops(stages.ops(stage)),
        works(works_of(timeline)),
        waits(waits_of(ops, one_at_a_time, static_cast<int>(stage))),
        clocks_(clocks),
        grouping_(stages, stage, waits),
        groups_(static_cast<std::size_t>(grouping_.count())) {
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (const int g = grouping_.of(i); g != kNone)
        groups_[static_cast<std::size_t>(g)].ops.push_back(static_cast<int>(i));
    for (std::size_t g = 0; g < groups_.size(); ++g) measure(g);
  }

  int group_of(std::size_t op) const { return grouping_.of(op); }
  std::size_t groups() const { return groups_.size(); }
  // The seconds from the start of the op's task to the op, and from the op to the end of the task.
  double before(int op) const { return around(op).first; }
  double after(int op) const { return around(op).second; }

  Task task(std::size_t group) const {
    Task task;
    for (const double clock : clocks_.clocks_hz()) {
      double busy = 0.0, joules = 0.0;
      for (const int op : groups_[group].ops) {
        const program::Step& step = *ops[static_cast<std::size_t>(op)].step;
        const Load load = load_of(step);
        if (load == Load::kWaiting) continue;
        const double seconds = works[static_cast<std::size_t>(op)] * clocks_.stretch(load, clock);
        busy += seconds;
        joules += clocks_.watts(load, clock).value * seconds;
      }
      const double seconds = span(group, clock);
      joules += clocks_.watts(Load::kWaiting, clock).value * std::max(0.0, seconds - busy);
      task.choices.push_back({clock, seconds, joules});
    }
    return task;
  }

  Activity activity(std::size_t group, int stage) const {
    std::map<std::string, double> seconds;
    for (const int op : groups_[group].ops) {
      const program::Expanded& e = ops[static_cast<std::size_t>(op)];
      const auto* compute = std::get_if<program::Compute>(&e.step->op);
      const bool action = compute && e.micro_batch >= 0 && compute->pass != program::Pass::kRecompute;
      seconds[std::string(action ? program::name_of(compute->pass) : program::name_of(e.step->phase))] +=
          works[static_cast<std::size_t>(op)];
    }
    const auto most = std::max_element(seconds.begin(), seconds.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return {stage, most->first, ops[static_cast<std::size_t>(groups_[group].ops.front())].micro_batch};
  }

  const std::vector<program::Expanded>& ops;
  std::vector<double> works;
  std::vector<std::vector<int>> waits;

 private:
  const std::pair<double, double>& around(int op) const {
    return groups_[static_cast<std::size_t>(grouping_.of(static_cast<std::size_t>(op)))].around.at(op);
  }

  double seconds_at(int op, double clock) const {
    const auto i = static_cast<std::size_t>(op);
    return works[i] * clocks_.stretch(load_of(*ops[i].step), clock);
  }

  // The longest path through the ops of a group, whose list order no edge contradicts.
  double span(std::size_t group, double clock) const {
    std::map<int, double> ends;
    double span = 0.0;
    for (const int op : groups_[group].ops) {
      double start = 0.0;
      for (const int w : waits[static_cast<std::size_t>(op)])
        if (const auto end = ends.find(w); end != ends.end()) start = std::max(start, end->second);
      span = std::max(span, ends[op] = start + seconds_at(op, clock));
    }
    return span;
  }

  void measure(std::size_t group) {
    const double clock = clocks_.clocks_hz().front();
    auto& around = groups_[group].around;
    for (const int op : groups_[group].ops) {
      double start = 0.0;
      for (const int w : waits[static_cast<std::size_t>(op)])
        if (const auto found = around.find(w); found != around.end())
          start = std::max(start, found->second.first + seconds_at(w, clock));
      around[op] = {start, 0.0};
    }
    for (auto op = groups_[group].ops.rbegin(); op != groups_[group].ops.rend(); ++op) {
      const double through = around[*op].second + seconds_at(*op, clock);
      for (const int w : waits[static_cast<std::size_t>(*op)])
        if (const auto found = around.find(w); found != around.end())
          found->second.second = std::max(found->second.second, through);
    }
  }

  const ClockModel& clocks_;
  Grouping grouping_;
  std::vector<Group> groups_;
};

// Gives each op of all stages a task, and joins the tasks by what the ops wait for.
class StepBuilder {
 public:
  StepBuilder(const program::Stages& stages, const std::vector<program::Timeline>& timelines, const ClockModel& clocks,
              bool one_at_a_time)
      : stages_(stages), meeting_(stages.meetings(), kNone) {
    tasks_.reserve(stages.size());
    for (std::size_t s = 0; s < stages.size(); ++s)
      tasks_.emplace_back(stages, s, timelines.at(s), clocks, one_at_a_time);
    step_.graph.devices = static_cast<double>(stages.size());
    step_.graph.wait_watts = clocks.watts(Load::kWaiting, clocks.clocks_hz().front()).value;
  }

  StepGraph build() {
    for (std::size_t s = 0; s < stages_.size(); ++s) add_tasks(s);
    for (std::size_t s = 0; s < stages_.size(); ++s) add_edges(s);
    for (const auto& [ends, lag] : lags_) step_.graph.edges.push_back({ends.first, ends.second, lag});
    for (std::size_t s = 0; s < stages_.size(); ++s)
      for (std::size_t i = 0; i < stages_.ops(s).size(); ++i)
        if (tasks_[s].group_of(i) == kNone || load_of(*stages_.ops(s)[i].step) == Load::kWaiting)
          step_.task_of_op[s][i] = kNone;
    return std::move(step_);
  }

 private:
  int add(Task task, Activity activity) {
    step_.graph.tasks.push_back(std::move(task));
    step_.activities.push_back(std::move(activity));
    return static_cast<int>(step_.graph.tasks.size()) - 1;
  }

  void add_tasks(std::size_t s) {
    const StageTasks& stage = tasks_[s];
    std::vector<int> of_group;
    for (std::size_t g = 0; g < stage.groups(); ++g)
      of_group.push_back(add(stage.task(g), stage.activity(g, static_cast<int>(s))));
    std::vector<int> of_op(stage.ops.size(), kNone);
    for (std::size_t i = 0; i < stage.ops.size(); ++i) {
      const int group = stage.group_of(i), meeting = stages_.meeting_of(s, i);
      int* shared = meeting >= 0 ? &meeting_[static_cast<std::size_t>(meeting)] : nullptr;
      if (group != kNone)
        of_op[i] = of_group[static_cast<std::size_t>(group)];
      else if (shared && *shared != kNone)
        of_op[i] = *shared;
      else
        of_op[i] = add({.choices = {{0.0, stage.works[i], 0.0}}, .devices = 0.0}, {});
      if (!shared) continue;
      *shared = of_op[i];
      double& seconds = step_.graph.tasks[static_cast<std::size_t>(of_op[i])].choices.front().seconds;
      seconds = std::max(seconds, stage.works[i]);
    }
    step_.task_of_op.push_back(std::move(of_op));
  }

  void add_edges(std::size_t s) {
    const StageTasks& stage = tasks_[s];
    for (std::size_t i = 0; i < stage.ops.size(); ++i)
      for (const int w : stage.waits[i]) {
        const int from = step_.task_of_op[s][static_cast<std::size_t>(w)], to = step_.task_of_op[s][i];
        if (from == to) continue;
        double lag = 0.0;
        if (stage.group_of(static_cast<std::size_t>(w)) != kNone) lag -= stage.after(w);
        if (stage.group_of(i) != kNone) lag -= stage.before(static_cast<int>(i));
        const auto [found, fresh] = lags_.try_emplace({from, to}, lag);
        if (!fresh) found->second = std::max(found->second, lag);
      }
  }

  const program::Stages& stages_;
  std::vector<StageTasks> tasks_;
  std::vector<int> meeting_;  // the task of each meeting
  std::map<std::pair<int, int>, double> lags_;
  StepGraph step_;
};

}  // namespace

std::vector<double> works_of(const program::Timeline& timeline) {
  std::vector<double> works;
  works.reserve(timeline.ops.size());
  for (const program::OpTime& op : timeline.ops) works.push_back(std::max(0.0, op.seconds() - op.waited_s));
  return works;
}

Load load_of(const program::Step& step) {
  if (step.stream != program::Stream::kCompute || program::is_communication(step.op) ||
      std::holds_alternative<program::SetClock>(step.op))
    return Load::kWaiting;
  return step.hardware_flops.value > 0.0 ? Load::kProducts : Load::kMemory;
}

StepGraph graph_of(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                   const ClockModel& clocks, bool one_at_a_time) {
  return StepBuilder(stages, timelines, clocks, one_at_a_time).build();
}

std::vector<std::vector<double>> work_with(const StepGraph& step, const program::Stages& stages,
                                           const std::vector<program::Timeline>& timelines, const ClockModel& clocks,
                                           const Choices& choices) {
  std::vector<std::vector<double>> work;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    work.push_back(works_of(timelines.at(s)));
    for (std::size_t i = 0; i < work.back().size(); ++i) {
      const int task = step.task_of_op.at(s)[i];
      if (task == kNone) continue;
      const double clock = chosen(step.graph, choices, static_cast<std::size_t>(task)).clock_hz;
      work.back()[i] *= clocks.stretch(load_of(*stages.ops(s)[i].step), clock);
    }
  }
  return work;
}

}  // namespace molen::policy
