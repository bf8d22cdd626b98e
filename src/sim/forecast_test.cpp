#include "sim/forecast.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "program/build/build.h"
#include "sim/simulate.h"
#include "sim/test_costs.h"

namespace molen::sim {
namespace {

// Seconds by kind of op and by stage.
class MadeUpCosts : public Costs {
 public:
  std::uint64_t seed = 1;
  double of_messages = 1.0;  // scale of messages over that of compute
  bool stages_differ = false;
  Interference beside{};
  CoreContention sharing;
  bool reduces_at_end = false;

  double seconds(const program::Program& p, const program::Step& step) const override {
    const std::string kind = program::kind_of(step.op);
    const auto of_kind = static_cast<std::uint64_t>(std::hash<std::string>{}(kind));
    const double stage = stages_differ ? program::stage_shown(p) : 0;
    const double one = uniform_at(seed, of_kind) + uniform_at(seed + 1, of_kind + static_cast<std::uint64_t>(stage));
    const auto axis = program::axis_of(step.op);
    return axis && *axis == program::Axis::kPp ? of_messages * one : one;
  }
  std::vector<double> epilogue_seconds(const program::Step& step) const override {
    return std::vector<double>(step.epilogues.size(), 0.0);
  }
  const CoreContention& core_contention() const override { return sharing; }
  Interference interference() const override { return beside; }
  bool reduces_last() const override { return reduces_at_end; }
};

struct Case {
  arch::Architecture arch = arch::preset("llama-tiny");
  program::Setting setting;
  MadeUpCosts costs;
};

Case pipeline_of(program::ScheduleKind kind, int stages, std::int64_t micro_batches) {
  Case c;
  const int chunks = kind == program::ScheduleKind::kInterleaved || kind == program::ScheduleKind::kZbV ? 2 : 1;
  c.arch.layers = stages * chunks;
  c.setting.mesh[mesh::Axis::kPp] = stages;
  if (stages > 1) c.setting.pipeline = program::pipeline_of(kind, chunks);
  c.setting.mesh[mesh::Axis::kDpShard] = 2;
  c.setting.zero = 1;
  c.setting.global_batch = 2 * micro_batches;
  c.setting.sequence = 32;
  return c;
}

// Compares all figures of a forecast of few micro-batches with those of every op. Throws Error where they differ.
void expect_equal(const Forecast& few, const Forecast& all) {
  const auto same = [&](double a, double b) {
    MOLEN_CHECK(std::abs(a - b) <= 1e-9 * (std::abs(b) + 1e-3 * all.seconds()), "{} and {}", a, b);
  };
  same(few.seconds(), all.seconds());
  MOLEN_CHECK(few.busiest_stage() == all.busiest_stage(), "another busiest stage");
  const cluster::Cluster on = cluster::find("dgx-a100");
  const StepEnergy a = few.energy(on, Factors::shipped(), 0.1), b = all.energy(on, Factors::shipped(), 0.1);
  same(a.devices.value / b.devices.value * all.seconds(), all.seconds());
  same(a.hosts.value / b.hosts.value * all.seconds(), all.seconds());
  same(a.kg_co2e / b.kg_co2e * all.seconds(), all.seconds());
  for (std::size_t s = 0; s < all.size(); ++s) {
    const auto phases = few.phases(s).values(), wanted = all.phases(s).values();
    for (std::size_t i = 0; i < wanted.size(); ++i) same(phases[i], wanted[i]);
    const auto sums = [&](const program::Stages& stages, const std::vector<program::Timeline>& timelines) {
      std::vector<double> seconds{timelines[s].total_s};
      for (const program::Stream stream : program::kCommStreams)
        seconds.push_back(program::exposed_seconds(stages.ops(s), timelines[s], stream));
      return seconds;
    };
    const auto x = few.sum(sums), y = all.sum(sums);
    for (std::size_t i = 0; i < y.size(); ++i) same(x[i], y[i]);
    const auto of_ops = [&](const Forecast& step) {
      std::vector<double> ops(3, 0.0);
      std::int64_t count = 0;
      step.each_op(s, [&](const program::Expanded&, const program::OpTime& time, std::int64_t times) {
        const auto n = static_cast<double>(times);
        count += times, ops[0] += n * time.waited_s, ops[1] += n * time.cpu_s, ops[2] += n * time.seconds();
      });
      return std::pair{count, ops};
    };
    const auto u = of_ops(few), v = of_ops(all);
    MOLEN_CHECK(u.first == v.first, "{} and {} ops", u.first, v.first);
    for (std::size_t i = 0; i < v.second.size(); ++i) same(u.second[i], v.second[i]);
  }
  const auto where = [&](const Forecast& step) {
    const WhereJoules joules = step.sum([&](const auto& stages, const auto& timelines) {
      return where_joules(stages, timelines, on, Factors::shipped());
    });
    std::vector<double> values = joules.phase_j;
    values.insert(values.end(), joules.exposed_j.begin(), joules.exposed_j.end());
    return values;
  };
  const auto x = where(few), y = where(all);
  for (std::size_t i = 0; i < y.size(); ++i)
    same(x[i] / b.devices.value * all.seconds(), y[i] / b.devices.value * all.seconds());
}

// Every figure of a forecast of few micro-batches is that of every op, for all schedules and random costs.
TEST(Forecast, FewMicroBatchesGiveTheFiguresOfAll) {
  int few_enough = 0, all_ops = 0;
  const bool holds = rc::check("few micro-batches give the figures of all", [&] {
    const auto kind =
        *rc::gen::elementOf(std::vector(program::kAllScheduleKinds.begin(), program::kAllScheduleKinds.end()));
    Case c = pipeline_of(kind, *rc::gen::inRange(1, 5), *rc::gen::inRange(20, 70));
    c.setting.zero = *rc::gen::inRange(0, 4);
    if (kind == program::ScheduleKind::kInterleaved && c.setting.stages() > 1)
      c.setting.global_batch = 2 * c.setting.stages() * *rc::gen::inRange(8, 14);
    c.setting.global_batch -= *rc::gen::inRange(0, 2);  // a rank may have an empty micro-batch
    if (*rc::gen::arbitrary<bool>()) c.setting.recompute = program::Recompute::full();
    c.costs.seed = *rc::gen::inRange<std::uint64_t>(1, 1'000'000);
    c.costs.of_messages = *rc::gen::element(0.0, 0.01, 1.0, 10.0);
    c.costs.stages_differ = *rc::gen::arbitrary<bool>();
    c.costs.sharing.one_at_a_time = *rc::gen::arbitrary<bool>();
    if (*rc::gen::arbitrary<bool>()) c.costs.beside.fill(0.25);
    const auto programs = program::build_stages(c.arch, c.setting, nullptr, false);
    const Forecast few(programs, c.costs), all(programs, c.costs, true);
    RC_ASSERT(all.has_every_op());
    ++(few.has_every_op() ? all_ops : few_enough);
    expect_equal(few, all);
  });
  EXPECT_TRUE(holds);
  EXPECT_GT(few_enough, all_ops / 2) << "hardly any step repeats itself";
}

// The same for deep pipelines, offloaded values, sparse layers over expert ranks, tensor ranks and prefetched units.
TEST(Forecast, FewMicroBatchesGiveTheFiguresOfDeepPipelinesOffloadAndExperts) {
  int few_enough = 0;
  for (int i = 0; i < 20; ++i) {
    const int stages = std::array{5, 2, 8, 6}[static_cast<std::size_t>(i % 4)], axis = i % 3, host = i / 2 % 3;
    Case c = pipeline_of(program::kAllScheduleKinds[static_cast<std::size_t>(i % 5)], stages, stages * 10);
    auto& s = c.setting;
    c.arch.tied = false;  // stages that share a table do not offload its gradients
    if (stages == 2) c.arch.layers *= 2;
    s.zero = i % 4;
    s.prefetch = i % 3;
    if (axis == 1) s.mesh[mesh::Axis::kTp] = 2, s.sequence_parallel = true;
    if (axis == 2) {
      s.mesh[mesh::Axis::kEp] = 2;
      s.global_batch *= 2;
      c.arch.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 64, .balance_loss = 0.01};
    }
    if (host == 1) s.offload.optimizer = s.offload.gradients = true;
    if (host == 2 && stages == 2) s.offload.activations = true;
    if (host == 1) s.offload.parameters = s.zero == 3;
    c.costs.seed = static_cast<std::uint64_t>(i + 1);
    c.costs.of_messages = std::array{0.0, 0.1, 3.0}[static_cast<std::size_t>(i / 4 % 3)];
    c.costs.stages_differ = i % 2 == 1;
    const auto programs = program::build_stages(c.arch, s, nullptr, false);
    const Forecast few(programs, c.costs), all(programs, c.costs, true);
    few_enough += few.has_every_op() ? 0 : 1;
    EXPECT_NO_THROW(expect_equal(few, all)) << i;
  }
  EXPECT_GE(few_enough, 10);
}

// The busiest stage decides, so its micro-batches come back one by one, whatever the number of them is.
TEST(Forecast, TakesFewMicroBatchesWhereOneStageIsSlowest) {
  for (const auto kind : {program::ScheduleKind::k1f1b, program::ScheduleKind::kZbH1, program::ScheduleKind::kZbV,
                          program::ScheduleKind::kInterleaved}) {
    Case c = pipeline_of(kind, 4, 96);
    c.costs.of_messages = 0.0;
    const auto programs = program::build_stages(c.arch, c.setting, nullptr, false);
    const Forecast few(programs, c.costs);
    EXPECT_FALSE(few.has_every_op()) << name_of(kind);
    EXPECT_LT(few.program(0).schedule.size(), programs[0].schedule.size() / 2) << name_of(kind);
    EXPECT_THROW(few.stages(), Error);
    EXPECT_THROW(few.timelines(), Error);
  }
}

// What does not follow from ends of ops is simulated op by op: reductions that are moved, and threads that share cores.
TEST(Forecast, SimulatesEveryOpWhereNothingProvesARepetition) {
  Case c = pipeline_of(program::ScheduleKind::k1f1b, 4, 64);
  const auto programs = program::build_stages(c.arch, c.setting, nullptr, false);
  EXPECT_FALSE(Forecast(programs, c.costs).has_every_op());
  EXPECT_TRUE(Forecast(programs, c.costs, true).has_every_op());
  c.costs.sharing = {.cores = 2, .ranks = 8, .threads = 1};
  const Forecast shared(programs, c.costs);
  EXPECT_TRUE(shared.has_every_op());
  EXPECT_EQ(shared.program(0).schedule, programs[0].schedule);
  c.costs.sharing = {};
  c.costs.reduces_at_end = true;
  EXPECT_TRUE(Forecast(programs, c.costs).has_every_op());
  // A step of few micro-batches has nothing to leave out.
  c = pipeline_of(program::ScheduleKind::k1f1b, 4, 6);
  EXPECT_TRUE(Forecast(program::build_stages(c.arch, c.setting, nullptr, false), c.costs).has_every_op());
}

// An op that takes longer in one micro-batch alone breaks the repetition: no period is found where it is in the blocks
// that the proof looks at, and the figures are those of every op elsewhere.
TEST(Forecast, APeriodIsProvedAndNotGuessed) {
  Case c = pipeline_of(program::ScheduleKind::k1f1b, 3, 24);
  const program::Stages stages(program::build_stages(c.arch, c.setting, nullptr, false));
  std::vector<program::Program> programs;
  for (std::size_t s = 0; s < stages.size(); ++s) programs.push_back(stages.program(s));
  const auto blocks = blocks_of(programs);
  ASSERT_TRUE(blocks);
  std::vector<std::vector<double>> work(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const auto& op : stages.ops(s)) work[s].push_back(c.costs.seconds(stages.program(s), *op.step));
  const auto prove = [&] { return period_of(stages, *blocks, 1, simulate(stages, work, c.costs.sharing), false); };
  const auto proved = prove();
  ASSERT_TRUE(proved);
  EXPECT_GT(proved->seconds, 0.0);
  const auto [first, end] = proved->ops[1];
  for (std::size_t i = first; i < end; ++i) {
    if (stages.ops(1)[i].step->stream != program::Stream::kCompute) continue;
    work[1][i] += 100.0;
    EXPECT_FALSE(prove()) << i;
    work[1][i] -= 100.0;
  }
  EXPECT_TRUE(prove());
  EXPECT_FALSE(period_of(stages, *blocks, 0, simulate(stages, work, c.costs.sharing), false));
  EXPECT_FALSE(period_of(stages, *blocks, blocks->count(), simulate(stages, work, c.costs.sharing), false));
}

TEST(Forecast, SumsGrowByTheirPeriods) {
  EXPECT_EQ(with_periods(10.0, 2.0, 3), 16.0);
  EXPECT_EQ(with_periods(std::vector{10.0, 1.0}, std::vector{2.0, 0.0}, 3), (std::vector{16.0, 1.0}));
  EXPECT_THROW(with_periods(std::vector{10.0}, std::vector{8.0, 1.0}, 3), Error);
  const StepEnergy e = with_periods(StepEnergy{Joules(5.0), Joules(3.0), 8.0, 4.0, 0.1},
                                    StepEnergy{Joules(1.0), Joules(2.0), 3.0, 2.0, 0.1}, 2);
  EXPECT_EQ(e.devices.value, 7.0);
  EXPECT_EQ(e.hosts.value, 7.0);
  EXPECT_EQ(e.site, 14.0);
  EXPECT_EQ(e.kg_co2e, 8.0);
  EXPECT_EQ(e.spread, 0.1);
}

}  // namespace
}  // namespace molen::sim
