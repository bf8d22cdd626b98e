// Compares the simulator with the executor where nothing but waiting differs: every op sleeps for a given time instead
// of running, and ops that communicate first wait for the other ranks of their group. So the test depends on no cost
// model. It covers the order on streams, edges, messages between stages, and what overlaps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "plan/layouts.h"
#include "program/build/build.h"
#include "prove/layouts_suite.h"
#include "sim/simulate.h"

namespace molen::prove {
namespace {

using namespace suite;
using program::Compute;

// Messages take equally long on both ends. A third of the other ops take a time that depends on what they are. The rest
// take none, which leaves enough ops whose time is that of the executor itself to be seen if it mattered.
double waits_seconds(const program::Step& step) {
  if (std::holds_alternative<program::Send>(step.op) || std::holds_alternative<program::Receive>(step.op)) return 4e-3;
  std::string name = program::kind_of(step.op);
  if (const auto* part = std::get_if<Compute>(&step.op)) name += fmt::format(" {} {}", part->layer, part->portion);
  const std::uint64_t drawn = stream_key(7, name);
  if (drawn % 3 != 0) return 0.0;
  return 4e-3 + 1e-3 * static_cast<double>(drawn / 3 % 13);
}

std::vector<program::Timeline> simulate_waits(const program::Stages& stages, int ranks, double factor) {
  std::vector<std::vector<double>> work(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const auto& op : stages.ops(s)) work[s].push_back(factor * waits_seconds(*op.step));
  return sim::simulate(stages, work, sim::CoreContention{.ranks = ranks});
}

// Returns the largest relative difference between the simulated and the executed step over all ranks. The executor
// takes some 50 us for each op where the threads of all ranks share a few quiet cores. So the sleeps of a program with
// more ops are longer: the step takes at least `seconds_of_an_op` for each op.
double largest_difference(const program::Stages& stages, int ranks, double seconds_of_an_op) {
  std::size_t ops = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) ops = std::max(ops, stages.ops(s).size());
  const double once = sim::step_seconds(simulate_waits(stages, ranks, 1.0));
  const double factor = std::max(1.0, seconds_of_an_op * static_cast<double>(ops) / once);
  const auto simulated = simulate_waits(stages, ranks, factor);
  std::vector<double> off(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](comm::Communicator& world) {
    const auto& setting = stages.program(0).setting;
    const auto stage = static_cast<std::size_t>(program::at_rank(setting, world.rank()).pipeline.stage);
    bool warm = false;
    exec::Options options;
    options.sleep = [&](const program::Step& step) { return warm ? factor * waits_seconds(step) : 0.0; };
    options.sleep_together = true;
    exec::Executor executor(stages.program(stage), world.rank(), &world, options);
    exec::StepInput input;
    input.load = [](const exec::MicroBatch&) { return std::int64_t{1}; };
    executor.run(input);
    warm = true;
    world.barrier();
    const double executed = executor.run(input).timeline.total_s;
    off[static_cast<std::size_t>(world.rank())] = simulated[stage].total_s / executed - 1.0;
  });
  return *std::ranges::max_element(off, {}, [](double x) { return std::abs(x); });
}

class SimulatedWaits : public testing::TestWithParam<int> {};

TEST_P(SimulatedWaits, AreThoseOfTheExecutor) {
  constexpr double kBound = 0.03;
  constexpr double kSecondsOfAnOp = 4e-3;
  const int ranks = GetParam();
  auto a = llama(false);
  a.layers = 4;
  program::Setting base = setting_of(1, 0, false, DType::kF32, 1);
  base.global_batch = 2 * ranks;
  base.sequence = 4 * ranks;
  auto layouts = plan::covering_pairs(plan::layouts_of(a, base, ranks, {}));
  ASSERT_GT(layouts.size(), 20u);
  const std::size_t every = exhaustive() ? 1 : 4 * static_cast<std::size_t>(ranks);
  double largest = 0.0;
  std::size_t compared = 0;
  for (std::size_t i = 0; i < layouts.size(); i += every) {
    const program::Stages stages(program::build_stages(a, layouts[i].setting));
    // The executor's own time of an op grows with the other work on this machine, but not with the sleeps, while a
    // wrong order costs a share of the sleeps. So each repetition sleeps for twice as long: only the wrong order stays.
    double off = largest_difference(stages, ranks, kSecondsOfAnOp);
    for (int times = 2; times <= 16 && std::abs(off) > kBound; times *= 2)
      off = largest_difference(stages, ranks, times * kSecondsOfAnOp);
    EXPECT_NEAR(off, 0.0, kBound) << layouts[i].name;
    if (std::abs(off) > std::abs(largest)) largest = off;
    ++compared;
  }
  fmt::print("{} ranks: {} of {} layouts, largest difference {:+.2f} %\n", ranks, compared, layouts.size(),
             100 * largest);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SimulatedWaits, testing::Values(4, 8));

}  // namespace
}  // namespace molen::prove
