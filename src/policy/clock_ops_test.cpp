#include "policy/clock_ops.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "arch/architecture.h"
#include "cluster/cluster.h"
#include "policy/frontier.h"
#include "policy/test_graphs.h"
#include "program/build/build.h"
#include "program/schedule/schedule.h"
#include "program/verify/verify.h"

namespace molen::policy {
namespace {

program::Stages two_stages(program::ScheduleKind kind, std::int64_t micro_batches) {
  arch::Architecture a = arch::preset("llama-tiny");
  const int chunks = kind == program::ScheduleKind::kZbV || kind == program::ScheduleKind::kInterleaved ? 2 : 1;
  a.layers = 2 * chunks;
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = 2;
  s.pipeline = program::pipeline_of(kind, chunks);
  s.sequence = 32;
  s.global_batch = micro_batches;
  return program::Stages(program::build_stages(a, s));
}

ClockModel model() {
  return {cluster::find("dgx-a100"), {.products = 0.8, .memory = 0.5, .waiting = 0.2}};
}

// A step whose ops take between 1 and 5 ms, and its graph. Collectives and messages too.
struct Timed {
  explicit Timed(program::Stages of) : stages(std::move(of)) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      program::Timeline timeline;
      double at = 0.0;
      for (std::size_t i = 0; i < stages.ops(s).size(); ++i) {
        const double seconds = 1e-3 * static_cast<double>(1 + (7 * i + 3 * s) % 5);
        timeline.ops.push_back({at, at + seconds});
        at += seconds;
      }
      timeline.total_s = at;
      timelines.push_back(timeline);
      work.push_back(works_of(timeline));
    }
    step = graph_of(stages, timelines, clocks, true);
  }

  Choices random_choices() const {
    Choices choices;
    for (const Task& task : step.graph.tasks)
      choices.push_back(*rc::gen::inRange(0, static_cast<int>(task.choices.size())));
    return choices;
  }
  // Clocks of the instances that compute, in their order; 0: its tasks have several.
  std::vector<std::pair<double, double>> holds(const Choices& choices, std::size_t s) const {
    std::map<int, std::pair<double, double>> of;  // clock and seconds
    for (std::size_t i = 0; i < stages.ops(s).size(); ++i) {
      const int task = step.task_of_op[s][i];
      if (task < 0) continue;
      const double clock = chosen(step.graph, choices, static_cast<std::size_t>(task)).clock_hz;
      auto& [known, seconds] = of.try_emplace(stages.ops(s)[i].instance, clock, 0.0).first->second;
      if (known != clock) known = 0.0;
      seconds += work[s][i];
    }
    std::vector<std::pair<double, double>> joined;
    for (const auto& [instance, hold] : of) {
      if (joined.empty() || joined.back().first != hold.first)
        joined.push_back(hold);
      else
        joined.back().second += hold.second;
    }
    return joined;
  }

  program::Stages stages;
  ClockModel clocks = model();
  std::vector<program::Timeline> timelines;
  StageSeconds work;
  StepGraph step;
};

const Timed& any_step() {
  static const std::vector<Timed> all = [] {
    std::vector<Timed> steps;
    for (const auto kind : program::kAllScheduleKinds) steps.emplace_back(two_stages(kind, 4));
    return steps;
  }();
  return all.at(*rc::gen::inRange<std::size_t>(0, all.size()));
}

RC_GTEST_PROP(ClockOps, HoldForWholeInstancesAndNeverSlowATask, ()) {
  const Timed& t = any_step();
  const Choices before = t.random_choices();
  const double least_s = 1e-3 * *rc::gen::inRange(0, 60);
  const Choices after = hold_for_instances(t.stages, t.step, before, t.work, least_s);
  for (std::size_t k = 0; k < before.size(); ++k)
    RC_ASSERT(chosen(t.step.graph, after, k).clock_hz >= chosen(t.step.graph, before, k).clock_hz);
  for (std::size_t s = 0; s < t.stages.size(); ++s) {
    const auto holds = t.holds(after, s);
    for (const auto& [clock, seconds] : holds) {
      RC_ASSERT(clock > 0.0);
      RC_ASSERT(holds.size() == 1 || seconds >= least_s);
    }
  }
  RC_ASSERT(hold_for_instances(t.stages, t.step, after, t.work, least_s) == after);
}

RC_GTEST_PROP(ClockOps, ProgramsSetTheChosenClocks, ()) {
  const Timed& t = any_step();
  const Choices choices = hold_for_instances(t.stages, t.step, t.random_choices(), t.work, 0.0);
  const program::Stages with(with_clock_ops(t.stages, t.step, choices));
  const StageSeconds work = with_ops_between(with, t.work);
  const StageSeconds stretched = work_with_clock_ops(with, work, t.clocks, 0.25);
  const StageSeconds wanted = work_with(t.step, t.stages, t.timelines, t.clocks, choices);
  const auto changes = changes_of_clock(with);
  for (std::size_t s = 0; s < with.size(); ++s) {
    std::size_t next = 0;
    double changing_s = 0.0;
    for (std::size_t i = 0; i < with.ops(s).size(); ++i) {
      if (std::holds_alternative<program::SetClock>(with.ops(s)[i].step->op)) {
        RC_ASSERT(with.ops(s)[i].step->phase == with.ops(s).at(i + 1).step->phase);
        changing_s += stretched[s][i];
        continue;
      }
      // A task on which no clock acts, such as a message, has no clock of its own.
      RC_ASSERT(std::abs(stretched[s][i] - wanted[s][next]) <= 1e-12 * wanted[s][next]);
      ++next;
    }
    RC_ASSERT(next == wanted[s].size());
    const auto holds = t.holds(choices, s);
    const int cyclic = holds.size() == 1                           ? 0
                       : holds.front().first == holds.back().first ? static_cast<int>(holds.size()) - 1
                                                                   : static_cast<int>(holds.size());
    RC_ASSERT(changes[s] == cyclic);
    RC_ASSERT(changing_s == 0.25 * cyclic);
  }
}

// The verifier accepts the programs, alone and together, and memory stays as it was.
TEST(ClockOps, MakeSoundPrograms) {
  for (const auto kind : program::kAllScheduleKinds) {
    const Timed t(two_stages(kind, 4));
    Choices choices;
    for (std::size_t k = 0; k < t.step.graph.tasks.size(); ++k)
      choices.push_back(static_cast<int>(k % t.step.graph.tasks[k].choices.size()));
    choices = hold_for_instances(t.stages, t.step, choices, t.work, 0.0);
    const auto programs = with_clock_ops(t.stages, t.step, choices);
    EXPECT_TRUE(program::verify_world(programs).empty());
    for (const auto& p : programs) {
      const auto findings = program::verify(p);
      EXPECT_TRUE(findings.empty()) << findings.front().text;
      EXPECT_GT(p.num_ops(), t.stages.program(static_cast<std::size_t>(p.setting.pipeline.stage)).num_ops());
    }
  }
}

// The stages of a meeting leave it together, when the slowest of them has done its work.
TEST(ClockOps, AMeetingTakesTheLongestWorkOfItsMembers) {
  for (const auto kind : program::kAllScheduleKinds) {
    const program::Stages stages = two_stages(kind, 4);
    ASSERT_GT(stages.meetings(), 0u);
    std::vector<double> seconds;
    for (const std::size_t slow : {0, 1}) {
      std::vector<program::Timeline> timelines(stages.size());
      for (std::size_t s = 0; s < stages.size(); ++s)
        for (std::size_t i = 0; i < stages.ops(s).size(); ++i) {
          const double begin = timelines[s].total_s;
          timelines[s].total_s += stages.meeting_of(s, i) >= 0 && s == slow ? 10.0 : 1.0;
          timelines[s].ops.push_back({begin, timelines[s].total_s});
        }
      seconds.push_back(fastest_seconds(graph_of(stages, timelines, model(), true).graph));
    }
    EXPECT_DOUBLE_EQ(seconds[0], seconds[1]);
  }
}

TEST(ClockOps, RaisesWhatIsTooShortToTheNextClockBesideIt) {
  const Timed t(two_stages(program::ScheduleKind::kGpipe, 2));
  // Stage 0 runs two forwards and two backwards, and then the update.
  const auto holds = t.holds(fastest_choices(t.step.graph), 0);
  ASSERT_EQ(holds.size(), 1u);
  std::map<int, std::vector<std::size_t>> tasks;  // of each instance of stage 0
  for (std::size_t i = 0; i < t.stages.ops(0).size(); ++i)
    if (const int task = t.step.task_of_op[0][i]; task >= 0)
      tasks[t.stages.ops(0)[i].instance].push_back(static_cast<std::size_t>(task));
  ASSERT_GE(tasks.size(), 4u);
  Choices choices = fastest_choices(t.step.graph);
  const auto give = [&](std::size_t instance, int choice) {
    for (const std::size_t task : std::next(tasks.begin(), static_cast<std::ptrdiff_t>(instance))->second)
      choices[task] = choice;
  };
  for (std::size_t k = 0; k < tasks.size(); ++k) give(k, 4);
  give(1, 2);  // a short peak
  constexpr double kForever = std::numeric_limits<double>::infinity();
  const auto one = hold_for_instances(t.stages, t.step, choices, t.work, kForever);
  const double peak = t.clocks.clocks_hz()[2];
  ASSERT_EQ(t.holds(one, 0).size(), 1u);
  EXPECT_EQ(t.holds(one, 0).front().first, peak);
  const auto all = hold_for_instances(t.stages, t.step, choices, t.work, 0.0);
  EXPECT_EQ(all, choices);
  EXPECT_EQ(t.holds(all, 0).size(), 3u);

  // Between two higher clocks, a short one becomes the lower of these.
  for (std::size_t k = 0; k < tasks.size(); ++k) give(k, k < 2 ? 1 : k == 2 ? 6 : 3);
  const auto apart = t.holds(choices, 0);
  ASSERT_EQ(apart.size(), 3u);
  const double short_s = apart[1].second;
  ASSERT_LT(short_s, std::min(apart[0].second, apart[2].second));
  EXPECT_EQ(hold_for_instances(t.stages, t.step, choices, t.work, short_s), choices) << "just long enough";
  const auto two = t.holds(hold_for_instances(t.stages, t.step, choices, t.work, 1.001 * short_s), 0);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0], apart[0]);
  EXPECT_EQ(two[1].first, apart[2].first);
}

TEST(ClockOps, NoClockIsAboveTheHighest) {
  const Timed t(two_stages(program::ScheduleKind::k1f1b, 2));
  const Choices choices = hold_for_instances(t.stages, t.step, fastest_choices(t.step.graph), t.work, 0.0);
  std::vector<program::Program> programs = with_clock_ops(t.stages, t.step, choices);
  for (program::Program& p : programs)
    for (program::Body& body : p.bodies)
      for (program::Step& step : body.steps)
        if (auto* set = std::get_if<program::SetClock>(&step.op)) set->khz = 9'000'000;
  const program::Stages with(programs);
  const StageSeconds work = with_ops_between(with, t.work);
  const StageSeconds same = work_with_clock_ops(with, work, t.clocks, 1.0);
  for (std::size_t s = 0; s < work.size(); ++s)
    for (std::size_t i = 0; i < work[s].size(); ++i) EXPECT_NEAR(same[s][i], work[s][i], 1e-12 * work[s][i]);
}

}  // namespace
}  // namespace molen::policy
