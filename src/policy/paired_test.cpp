#include "policy/paired.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>

#include "base/rng.h"

namespace molen::policy {
namespace {

TEST(StudentQuantile, IsThatOfTheTables) {
  EXPECT_NEAR(student_quantile(0.975, 1), 12.7062047, 1e-6);
  EXPECT_NEAR(student_quantile(0.975, 4), 2.7764451, 1e-6);
  EXPECT_NEAR(student_quantile(0.95, 10), 1.8124611, 1e-6);
  EXPECT_NEAR(student_quantile(0.995, 30), 2.7499957, 1e-6);
  EXPECT_NEAR(student_quantile(0.975, 100000), 1.9599877, 1e-5);
  EXPECT_NEAR(student_quantile(0.025, 4), -2.7764451, 1e-6);
  EXPECT_NEAR(student_quantile(0.5, 7), 0.0, 1e-9);
}

TEST(MeanInterval, CoversTheMeanAsOftenAsItSays) {
  int covered = 0;
  const int trials = 2000;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> values;
    for (int i = 0; i < 6; ++i)
      values.push_back(3.0 + normal_at(stream_key(7, "mean"), static_cast<std::uint64_t>(6 * trial + i)));
    const Interval interval = mean_interval(values, 0.95);
    covered += interval.low <= 3.0 && 3.0 <= interval.high ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(covered) / trials, 0.95, 0.02);
  EXPECT_TRUE(std::isinf(mean_interval({1.0}, 0.95).high));
}

TEST(BlockCollector, LeavesOutWhatSettlesAndWhatStalls) {
  SamplingOptions sampling;
  sampling.settle_steps = 2;
  sampling.block_steps = 5;
  sampling.block_time = Seconds(0.0);
  sampling.settle_time = Seconds(10.0);  // over with the second step
  BlockCollector collector(sampling);
  collector.begin(true);
  for (const double s : {9.0, 9.0, 1.0, 1.01, 30.0, 0.99}) EXPECT_FALSE(collector.add({Seconds(s), Joules(10 * s)}));
  const auto block = collector.add({Seconds(1.0), Joules(10)});
  ASSERT_TRUE(block);
  EXPECT_EQ(block->steps, 4);
  EXPECT_NEAR(block->seconds, 1.0, 1e-12);
  EXPECT_NEAR(*block->joules, 10.0, 1e-12);
  collector.begin(false);
  for (int i = 0; i < 4; ++i)
    EXPECT_FALSE(collector.add({Seconds(1.0), i == 2 ? std::nullopt : std::optional(Joules(1))}));
  EXPECT_FALSE(collector.add({Seconds(0.0), Joules(1)})) << "no step";
  EXPECT_FALSE(collector.add({Seconds(1.0), Joules(1)})->joules) << "one step has no reading";
}

// A counter that changes less often than steps end gives some steps no joules, and others those of several.
TEST(BlockCollector, StepsWithoutAChangeOfTheCounterCount) {
  SamplingOptions sampling;
  sampling.settle_steps = 0;
  sampling.settle_time = Seconds(0.0);
  sampling.block_steps = 4;
  sampling.block_time = Seconds(0.0);
  BlockCollector collector(sampling);
  const auto block_of = [&](const std::vector<double>& joules) {
    collector.begin(false);
    std::optional<Block> block;
    for (const double j : joules) block = collector.add({Seconds(0.02), Joules(j)});
    return block->joules;
  };
  EXPECT_EQ(block_of({0.0, 6.0, 0.0, 6.0}), 3.0);
  EXPECT_EQ(block_of({0.0, 0.0, 0.0, 0.0}), std::nullopt) << "the counter stands still";
}

TEST(BlockCollector, TheSettlingStepsCount) {
  SamplingOptions sampling;
  sampling.settle_steps = 3;
  sampling.settle_time = Seconds(0.0);
  sampling.block_steps = 1;
  sampling.block_time = Seconds(0.0);
  BlockCollector collector(sampling);
  collector.begin(true);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(collector.add({Seconds(5.0), Joules(1)})) << i;
  EXPECT_TRUE(collector.add({Seconds(5.0), Joules(1)}));
  collector.begin(false);
  EXPECT_TRUE(collector.add({Seconds(5.0), Joules(1)})) << "nothing has changed";
}

TEST(BlockCollector, TheSettlingTimeCounts) {
  SamplingOptions sampling;
  sampling.settle_time = Seconds(0.1);
  sampling.block_steps = 1;
  sampling.block_time = Seconds(0.0);
  BlockCollector collector(sampling);
  collector.begin(true);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(collector.add({Seconds(0.02), Joules(1)})) << i;
  EXPECT_TRUE(collector.add({Seconds(0.02), Joules(1)}));
}

// A drift that is linear over the four blocks does not reach the ratio.
TEST(Experiment, ALinearDriftCancels) {
  Experiment experiment(0, 3);
  double drift = 1.0;
  for (int i = 0; i < 16; ++i) {
    const bool candidate = experiment.setting() == 3;
    EXPECT_EQ(candidate, i % 4 == 1 || i % 4 == 2);
    const double s = (candidate ? 1.1 : 1.0) + 0.01 * drift;
    experiment.add({3, s, 100.0 * s});
    drift += 1.0;
  }
  ASSERT_EQ(experiment.pairs().size(), 4u);
  for (const Pair& p : experiment.pairs()) EXPECT_NEAR(p.candidate_s - p.reference_s, 0.1, 1e-12);
}

}  // namespace
}  // namespace molen::policy
