#include "train/state/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/error.h"

namespace molen::train {
namespace {

// The norms that the two batches have in expectation: E|G_B|^2 = |G|^2 + tr(Sigma) / B (eq. A.1).
NoisePair expected(double small, double large, double squares, double noise) {
  return {small, large, std::sqrt(squares + noise / small), std::sqrt(squares + noise / large)};
}

TEST(NoiseScales, AreTheNoiseOverTheSquaredGradient) {
  NoiseScale scale;
  EXPECT_FALSE(scale.estimate());
  // Batches of any sizes give the same scale: 3000 / 0.25 tokens.
  for (const auto& [small, large] : {std::pair(64.0, 512.0), {100.0, 4096.0}, {1.0, 2.0}, {512.0, 700.0}}) {
    scale.add(expected(small, large, 0.25, 3000.0));
    const auto estimate = scale.estimate();
    ASSERT_TRUE(estimate);
    EXPECT_NEAR(estimate->tokens, 12000.0, 12000.0 * 1e-9);
    EXPECT_EQ(estimate->measurements, static_cast<std::int64_t>(scale.pairs().size()));
    EXPECT_EQ(estimate->high.has_value(), scale.pairs().size() >= 3);
  }
  EXPECT_NEAR(*scale.estimate()->low, 12000.0, 1e-3);
  EXPECT_NEAR(*scale.estimate()->high, 12000.0, 1e-3);
}

// The ratio of means is weighed by neither the number of measurements nor their order.
TEST(NoiseScales, AreRatiosOfMeans) {
  NoiseScale scale;
  scale.add(expected(8.0, 64.0, 1.0, 100.0));
  scale.add(expected(8.0, 64.0, 3.0, 500.0));
  EXPECT_NEAR(scale.estimate()->tokens, 600.0 / 4.0, 1e-9);
}

TEST(NoiseScales, AreNotGuessed) {
  NoiseScale only_noise;  // the larger batch has no larger part of the gradient
  only_noise.add({8.0, 64.0, std::sqrt(8.0), std::sqrt(0.9)});
  EXPECT_FALSE(only_noise.estimate());
  NoiseScale no_noise;
  no_noise.add({8.0, 64.0, 1.0, 1.5});
  EXPECT_FALSE(no_noise.estimate());
}

TEST(NoiseScales, ForgetOldMeasurements) {
  NoiseScale scale;
  for (std::size_t i = 0; i < NoiseScale::kKept; ++i) scale.add(expected(8.0, 64.0, 1.0, 1e6));
  for (std::size_t i = 0; i < NoiseScale::kKept; ++i) scale.add(expected(8.0, 64.0, 1.0, 50.0));
  EXPECT_EQ(scale.pairs().size(), NoiseScale::kKept);
  EXPECT_NEAR(scale.estimate()->tokens, 50.0, 1e-6);
}

// Gradients of tokens are drawn around a known one: the interval of 95 % holds the truth about as often as it says.
TEST(NoiseScales, IntervalsHoldTheTruth) {
  constexpr int kDimensions = 60, kTrials = 300, kMeasurements = 24;
  constexpr double kDeviation = 2.0, kSquares = kDimensions * 0.3 * 0.3;
  constexpr double kTruth = kDimensions * kDeviation * kDeviation / kSquares;
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  int held = 0;
  double mean = 0.0;
  for (int trial = 0; trial < kTrials; ++trial) {
    NoiseScale scale;
    for (int m = 0; m < kMeasurements; ++m) {
      // The mean of 8 tokens, and of these with 56 others.
      double small = 0.0, large = 0.0;
      for (int d = 0; d < kDimensions; ++d) {
        const double first = 0.3 + kDeviation / std::sqrt(8.0) * normal(random);
        const double others = 0.3 + kDeviation / std::sqrt(56.0) * normal(random);
        const double all = (8.0 * first + 56.0 * others) / 64.0;
        small += first * first;
        large += all * all;
      }
      scale.add({8.0, 64.0, std::sqrt(small), std::sqrt(large)});
    }
    const auto e = scale.estimate();
    ASSERT_TRUE(e && e->high);
    mean += e->tokens / kTrials;
    held += *e->low <= kTruth && kTruth <= *e->high ? 1 : 0;
  }
  EXPECT_NEAR(mean, kTruth, 0.03 * kTruth);
  EXPECT_GE(held, kTrials * 90 / 100);
  EXPECT_LE(held, kTrials * 99 / 100);
}

TEST(NoiseScales, SmallBatchesAreAnEighth) {
  for (const auto& [global, small] : {std::pair(2, 1), {7, 1}, {8, 1}, {15, 1}, {16, 2}, {1024, 128}})
    EXPECT_EQ(small_batch_of(global), small) << global;
}

TEST(NoiseScales, AreReadAsTheyWereWritten) {
  NoiseScale scale;
  for (int i = 1; i < 9; ++i) scale.add(expected(i, 64.0, 1.0 / i, 100.0));
  EXPECT_EQ(NoiseScale::from_json(Json::parse(scale.to_json().dump()), "here").pairs(), scale.pairs());
  const Json good = scale.to_json();
  for (const auto& [key, value] : std::map<std::string, Json>{
           {"small_tokens", 0.0}, {"large_tokens", 1.0}, {"small_norm", -1.0}, {"large_norm", "2"}}) {
    Json bad = good;
    bad[3][key] = value;
    EXPECT_THROW(NoiseScale::from_json(bad, "here"), UsageError) << key;
    bad[3].erase(key);
    EXPECT_THROW(NoiseScale::from_json(bad, "here"), UsageError) << key;
  }
  EXPECT_THROW(NoiseScale::from_json(Json::object(), "here"), UsageError);
  EXPECT_THROW(NoiseScale::from_json(Json(std::vector<Json>(NoiseScale::kKept + 1, good[0])), "here"), UsageError);
}

}  // namespace
}  // namespace molen::train
