#include "sim/longest_paths.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "program/schedule/schedule.h"
#include "sim/simulate.h"
#include "sim/test_costs.h"

namespace molen::sim {
namespace {

// Work of each op between 0 and 1 s; every fifth op takes no time.
std::vector<std::vector<double>> random_work(const program::Stages& stages, std::uint64_t seed) {
  std::vector<std::vector<double>> work(stages.size());
  std::uint64_t i = 0;
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (std::size_t k = 0; k < stages.ops(s).size(); ++k, ++i)
      work[s].push_back(i % 5 == 0 ? 0.0 : uniform_at(seed, i));
  return work;
}

void expect_the_same(const program::Stages& stages, std::uint64_t seed, bool in_turn) {
  const auto work = random_work(stages, seed);
  CoreContention sharing;
  sharing.one_at_a_time = in_turn;
  const auto walked = longest_paths(stages, work, in_turn);
  ASSERT_TRUE(walked.has_value());
  const auto events = simulate_events(stages, work, sharing);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    EXPECT_NEAR((*walked)[s].total_s, events[s].total_s, 1e-9);
    for (std::size_t k = 0; k < stages.ops(s).size(); ++k) {
      const auto& a = (*walked)[s].ops[k];
      const auto& b = events[s].ops[k];
      ASSERT_NEAR(a.start_s, b.start_s, 1e-9) << "stage " << s << ", op " << k;
      ASSERT_NEAR(a.end_s, b.end_s, 1e-9) << "stage " << s << ", op " << k;
      ASSERT_NEAR(a.waited_s, b.waited_s, 1e-9) << "stage " << s << ", op " << k;
    }
  }
}

TEST(LongestPaths, AreTheTimesOfTheEventsForEverySchedule) {
  for (const auto kind : program::kAllScheduleKinds)
    for (const int stages : {2, 4})
      for (const bool in_turn : {false, true}) {
        auto a = arch::preset("llama-tiny");
        const int chunks = kind == program::ScheduleKind::kInterleaved || kind == program::ScheduleKind::kZbV ? 2 : 1;
        a.layers = stages * chunks;
        program::Setting s;
        s.mesh[mesh::Axis::kPp] = stages;
        s.mesh[mesh::Axis::kDpShard] = 2;
        s.zero = 3;
        s.pipeline = program::pipeline_of(kind, chunks);
        s.global_batch = 2 * 2 * stages;
        s.sequence = 32;
        SCOPED_TRACE(std::string(name_of(kind)));
        expect_the_same(program::Stages(program::build_stages(a, s)), 7, in_turn);
      }
}

TEST(LongestPaths, AreTheTimesOfTheEventsOnOneStage) {
  for (const int zero : {0, 1, 2, 3})
    for (const bool in_turn : {false, true}) expect_the_same(program::Stages(program_of(4, zero, 16)), 11, in_turn);
}

TEST(LongestPaths, AreLeftToTheEventsWhereAnOpWaitsForALaterOne) {
  program::Program p = program_of(2, 1, 8);
  // Two ops of different streams change places in the list, so the first waits for the second.
  for (program::Body& body : p.bodies)
    for (std::size_t i = 1; i < body.steps.size(); ++i) {
      auto& after = body.steps[i].after;
      if (std::any_of(after.begin(), after.end(),
                      [&](const program::OpRef& ref) { return ref.body < 0 && ref.op == static_cast<int>(i) - 1; })) {
        after.clear();
        body.steps[i - 1].after = {{-1, static_cast<int>(i)}};
        const program::Stages stages(p);
        EXPECT_FALSE(longest_paths(stages, random_work(stages, 3), false).has_value());
        return;
      }
    }
  FAIL() << "no edge between neighbours";
}

}  // namespace
}  // namespace molen::sim
