#include "measure/calibrate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "arch/architecture.h"
#include "comm/threads/threads.h"
#include "program/build/build.h"
#include "sim/simulate.h"

namespace molen::measure {
namespace {

std::set<std::string> kinds_of(const program::Program& p) {
  std::set<std::string> kinds;
  for (const program::Body& body : p.bodies)
    for (const program::Step& step : body.steps)
      for (const program::Work& work : program::work_of(step, {})) kinds.insert(work.kind);
  return kinds;
}

// If a preset has a part that none of the calibration's models has, `molen simulate` fails for it, and calibrating
// again does not help. So every kind of op of a preset that can be simulated must be measured.
TEST(Calibrate, MeasuresWhatThePresetsNeed) {
  for (const int ranks : {1, 2})
    for (const std::int64_t widest : {std::int64_t{0}, calibrated_width(1)}) {
      CalibrateOptions options;
      options.widest = widest;
      std::set<std::string> measured;
      for (const auto& p : calibration_programs(options, ranks)) measured.merge(kinds_of(p));
      for (const arch::Architecture& preset : arch::presets())
        for (const int zero : {0, 1, 2, 3}) {
          program::Setting s;
          s.mesh[mesh::Axis::kDpShard] = ranks;
          s.zero = zero;
          s.micro_batch = 1, s.global_batch = 2 * ranks, s.sequence = 64;
          if (zero > 0 && ranks == 1) continue;
          ASSERT_FALSE(sim::unsimulated(s));
          for (const std::string& kind : kinds_of(program::build(preset, s)))
            EXPECT_TRUE(measured.count(kind))
                << preset.name << ", " << ranks << " ranks, zero " << zero << ": " << kind;
        }
    }
}

// Whatever their number, ranks can share the experts of a measured model.
TEST(Calibrate, MeasuresExpertRanks) {
  for (const int ranks : {2, 3, 5, 7, 16}) {
    std::set<std::string> measured;
    for (const auto& p : calibration_programs({}, ranks)) measured.merge(kinds_of(p));
    EXPECT_TRUE(measured.count("all_to_all")) << ranks << " ranks";
  }
}

// Context ranks that apply a capacity together have a part of their own, which no other program has. Whatever their
// number, they can share a sequence of a measured model.
TEST(Calibrate, MeasuresContextRanksWithACapacity) {
  for (const int ranks : {2, 3, 5, 7, 16}) {
    std::set<std::string> measured;
    for (const auto& p : calibration_programs({}, ranks)) measured.merge(kinds_of(p));
    EXPECT_TRUE(measured.count("forward limit")) << ranks << " ranks";
  }
}

TEST(Calibrate, ReportsItsProgressOnRankZeroOnly) {
  CalibrateOptions options;
  options.widest = calibrated_width(1);
  options.rounds = options.repeats = 1;
  comm::ThreadWorld ranks(2);
  std::vector<double> shares[2];  // by rank; each rank's thread writes its own
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r] {
        const auto world = ranks.communicator(r);
        calibrate(options, "threads", *world, [&, r](double share, const std::string&) { shares[r].push_back(share); });
      });
  }
  EXPECT_TRUE(shares[1].empty());
  // Before and after each program.
  ASSERT_EQ(shares[0].size(), 2 * calibration_programs(options, 2).size());
  EXPECT_EQ(shares[0].front(), 0.0);
  EXPECT_EQ(shares[0].back(), 1.0);
  EXPECT_TRUE(std::is_sorted(shares[0].begin(), shares[0].end()));
}

TEST(Cores, AreNamedAsRangesOrAlone) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &before)) ++cpu;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  comm::ThreadWorld ranks(1);
  const auto world = ranks.communicator(0);
  const sim::Cores alone = cores_of(*world);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(alone.affinity, std::to_string(cpu));
  EXPECT_EQ(alone.physical, 1);
  if (CPU_ISSET(cpu + 1, &before)) {
    EXPECT_TRUE(cores_of(*world).affinity.starts_with(std::to_string(cpu) + "-"));
  }
}

}  // namespace
}  // namespace molen::measure
