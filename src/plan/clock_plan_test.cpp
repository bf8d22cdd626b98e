#include "plan/clock_plan.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/rng.h"
#include "policy/clock_ops.h"
#include "program/build/build.h"
#include "program/schedule/schedule.h"
#include "sim/described_costs.h"
#include "sim/described_energy.h"
#include "sim/simulate.h"

namespace molen::plan {
namespace {

constexpr double kClockSums = 1e-9;  // relative: sums of doubles in another order

program::Stages stages_of(program::ScheduleKind kind, int stages, const std::vector<std::int64_t>& layers,
                          const std::function<void(program::Setting&)>& change = {}) {
  auto a = arch::preset("llama-tiny");
  a.hidden = 1024, a.ffn = 2816, a.heads = 16, a.kv_heads = 4;  // large enough that products take most of the time
  a.layers = 0;
  for (const std::int64_t n : layers) a.layers += n;
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = stages;
  if (stages > 1) {
    s.pipeline = program::pipeline_of(kind, static_cast<int>(layers.size()) / stages);
    s.pipeline.layers = layers;
  }
  s.compute = DType::kBF16, s.kernels = arch::Kernels::kAten;
  s.sequence = 1024;
  s.global_batch = 2 * stages;
  if (change) change(s);
  return program::Stages(program::build_stages(a, s));
}

struct Predicted {
  explicit Predicted(program::Stages of) : stages(std::move(of)) { timelines = sim::simulate(stages, costs); }

  policy::ClockModel model() const {
    return {costs.cluster(), {factors.of("power_products"), factors.of("power_memory"), factors.of("power_waiting")}};
  }
  ClockPlan plan(double slowdown) const {
    return clock_plan(stages, timelines, costs.cluster(), factors, costs, slowdown);
  }
  double step_s() const { return sim::step_seconds(timelines); }

  program::Stages stages;
  const sim::Factors& factors = sim::Factors::shipped();
  sim::DescribedCosts costs{cluster::find("dgx-a100"), factors};
  std::vector<program::Timeline> timelines;
};

void expect_sound(const Predicted& p) {
  const ClockPlan plan = p.plan(0.0);
  // At the highest clocks, the graph takes the time that the simulator predicts, and the energy of sim::energy_of.
  EXPECT_NEAR(plan.plans.highest.seconds, p.step_s(), kClockSums * p.step_s());
  const auto energy = sim::energy_of(p.stages, p.timelines, p.costs.cluster(), p.factors, 0.1);
  EXPECT_NEAR(plan.devices_j(plan.plans.highest), energy.devices.value, kClockSums * energy.devices.value);
  EXPECT_LE(plan.simulated_s, plan.plans.deadline_s * (1.0 + kClockSums));
  EXPECT_LE(plan.plans.slack.joules, plan.plans.envpipe.joules * (1.0 + kClockSums));
  EXPECT_LE(plan.plans.slack.joules, plan.plans.single.joules * (1.0 + kClockSums));
  EXPECT_GE(plan.saving(plan.plans.slack), 0.0);
}

TEST(ClockPlan, IsInTimeForEverySchedule) {
  for (const auto kind : program::kAllScheduleKinds) {
    SCOPED_TRACE(std::string(name_of(kind)));
    const bool two = kind == program::ScheduleKind::kZbV || kind == program::ScheduleKind::kInterleaved;
    const std::vector<std::int64_t> layers =
        two ? std::vector<std::int64_t>{1, 2, 1, 2, 1, 1} : std::vector<std::int64_t>{1, 3, 2};
    expect_sound(Predicted(stages_of(kind, 3, layers)));
  }
}

TEST(ClockPlan, IsInTimeWithEveryKindOfCommunication) {
  const auto with = [](const std::function<void(program::Setting&)>& change) {
    expect_sound(Predicted(stages_of(program::ScheduleKind::k1f1b, 2, {1, 2}, change)));
  };
  with([](program::Setting& s) { s.mesh[mesh::Axis::kTp] = 2; });
  with([](program::Setting& s) { s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true; });
  with([](program::Setting& s) { s.mesh[mesh::Axis::kCp] = 2; });
  with([](program::Setting& s) { s.mesh[mesh::Axis::kDpShard] = 2, s.global_batch = 8, s.zero = 1; });
  with([](program::Setting& s) { s.mesh[mesh::Axis::kDpShard] = 2, s.global_batch = 8, s.zero = 3; });
  with([](program::Setting& s) { s.recompute = program::Recompute::full(); });
}

// Whatever clocks are chosen, the simulator takes no longer than the graph.
TEST(ClockPlan, TheGraphIsNeverFasterThanTheSimulator) {
  for (const auto kind : program::kAllScheduleKinds) {
    const bool two = kind == program::ScheduleKind::kZbV || kind == program::ScheduleKind::kInterleaved;
    const Predicted p(
        stages_of(kind, 2, two ? std::vector<std::int64_t>{1, 2, 1, 1} : std::vector<std::int64_t>{1, 2},
                  [](program::Setting& s) { s.mesh[mesh::Axis::kDpShard] = 2, s.global_batch = 16, s.zero = 3; }));
    const auto model = p.model();
    const auto step = policy::graph_of(p.stages, p.timelines, model, true);
    const policy::Order order(step.graph);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      policy::Choices choices;
      for (std::size_t t = 0; t < step.graph.tasks.size(); ++t)
        choices.push_back(
            static_cast<int>(uniform_at(seed, t) * static_cast<double>(step.graph.tasks[t].choices.size())));
      const double graph_s = order.earliest(policy::seconds_of(step.graph, choices)).end_s;
      const double simulated_s = sim::step_seconds(sim::simulate(
          p.stages, policy::work_with(step, p.stages, p.timelines, model, choices), p.costs.core_contention()));
      EXPECT_LE(simulated_s, graph_s * (1.0 + kClockSums)) << name_of(kind) << " " << seed;
      EXPECT_GT(simulated_s, p.step_s());
    }
  }
}

TEST(ClockPlan, ALighterStageRunsSlower) {
  const Predicted p(
      stages_of(program::ScheduleKind::k1f1b, 2, {1, 4}, [](program::Setting& s) { s.global_batch = 16; }));
  const ClockPlan plan = p.plan(0.0);
  EXPECT_GT(plan.saving(plan.plans.slack), 0.02);
  double light = 0.0, heavy = 0.0;
  for (const auto& row : plan.clocks)
    if (row.kind == "forward") (row.stage == 0 ? light : heavy) = row.median_hz;
  EXPECT_LT(light, heavy);
}

TEST(ClockPlan, ASlowdownSavesMore) {
  const Predicted p(stages_of(program::ScheduleKind::k1f1b, 2, {2, 2}));
  const ClockPlan now = p.plan(0.0), later = p.plan(0.1);
  EXPECT_LT(later.plans.slack.joules, now.plans.slack.joules);
  EXPECT_LE(later.simulated_s, 1.1 * p.step_s() * (1.0 + kClockSums));
  EXPECT_GT(later.simulated_s, 1.05 * p.step_s());
  // Without slack anywhere, one lower clock within the slowdown saves as well.
  EXPECT_LT(later.plans.single.joules, now.plans.single.joules);
}

TEST(ClockPlan, OneStageHasNoSlack) {
  const Predicted p(stages_of(program::ScheduleKind::k1f1b, 1, {2}));
  const ClockPlan plan = p.plan(0.0);
  EXPECT_NEAR(plan.saving(plan.plans.slack), 0.0, 1e-6);
  EXPECT_NEAR(plan.simulated_s, p.step_s(), kClockSums * p.step_s());
}

// With programs that set the plan's clocks themselves. They are simulated anew from the costs of their own ops.
TEST(ClockPlan, ItsProgramsKeepTheDeadlineWhateverAChangeTakes) {
  const Predicted p(
      stages_of(program::ScheduleKind::k1f1b, 3, {1, 3, 2}, [](program::Setting& s) { s.global_batch = 12; }));
  int changes_before = 0;
  double joules_before = 0.0;
  for (const double change_s : {0.0, 1e-5, 1e-3, 0.02, 10.0}) {
    SCOPED_TRACE(change_s);
    cluster::Cluster with_change = p.costs.cluster();
    if (change_s > 0.0) with_change.clocks.change = cluster::Figure{change_s, 0.0, "measured here"};
    const ClockPlan plan = clock_plan(p.stages, p.timelines, with_change, p.factors, p.costs, 0.0);
    EXPECT_EQ(plan.change_s, change_s);
    EXPECT_LE(plan.set.seconds, plan.plans.deadline_s * (1.0 + kClockSums));
    EXPECT_GE(plan.set.joules, plan.plans.slack.joules * (1.0 - kClockSums));
    EXPECT_LE(plan.set.joules, plan.plans.highest.joules * (1.0 + kClockSums));
    int changes = 0;
    for (const int n : plan.set_changes) changes += n;
    if (change_s == 0.0) {
      EXPECT_GT(changes, 3);
      EXPECT_LT(plan.set.joules, 0.99 * plan.plans.highest.joules);
    } else {
      EXPECT_LE(changes, changes_before);
      EXPECT_GE(plan.set.joules, joules_before * (1.0 - kClockSums));
    }
    changes_before = changes, joules_before = plan.set.joules;

    const program::Stages with(plan.programs);
    policy::StageSeconds costs;
    for (std::size_t s = 0; s < with.size(); ++s) {
      costs.emplace_back();
      for (const auto& e : with.ops(s))
        costs.back().push_back(
            std::holds_alternative<program::SetClock>(e.step->op) ? 0.0 : p.costs.seconds(with.program(s), *e.step));
    }
    const double again = sim::step_seconds(
        sim::simulate(with, policy::work_with_clock_ops(with, costs, p.model(), change_s), p.costs.core_contention()));
    // These costs leave out that communication slows compute, which the plan's seconds include.
    EXPECT_LE(again, plan.set.seconds * (1.0 + kClockSums));
    EXPECT_NEAR(again, plan.set.seconds, 0.01 * again);
  }
  EXPECT_EQ(changes_before, 0) << "no change is worth ten seconds";
}

TEST(ClockPlan, NeedsTheClocksOfTheDescription) {
  const auto stages = stages_of(program::ScheduleKind::k1f1b, 2, {1, 1});
  const sim::Factors& factors = sim::Factors::shipped();
  const sim::DescribedCosts costs(cluster::find("lumi-g"), factors);
  const auto timelines = sim::simulate(stages, costs);
  EXPECT_THROW(clock_plan(stages, timelines, costs.cluster(), factors, costs, 0.0), UsageError);
}

}  // namespace
}  // namespace molen::plan
