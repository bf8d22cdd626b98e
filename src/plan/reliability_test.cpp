#include "plan/reliability.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace molen::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The error of Simpson's rule. Its steps h are 0.018 standard deviations. By Euler and Maclaurin only the ends of a
// range add h^4 / 180 times the third derivative there, which is below 10: 6e-9 of a standard deviation where the
// ranges of slow and of usual nodes overlap, and nothing elsewhere. Jitter is at most 0.11 where they do.
constexpr double kIntegrated = 1e-9;

double maximum_of(int n, double jitter = 1e-3) {
  return (slowest_factor({jitter, 0.0, 1.0, 1, n}) - 1.0) / jitter;
}

TEST(SlowestFactor, IsTheExactMaximumOfFewNormals) {
  EXPECT_NEAR(maximum_of(1), 0.0, kIntegrated);
  EXPECT_NEAR(maximum_of(2), 1.0 / std::sqrt(std::numbers::pi), kIntegrated);
  EXPECT_NEAR(maximum_of(3), 1.5 / std::sqrt(std::numbers::pi), kIntegrated);
  // David and Nagaraja 2003, section 3.2.
  EXPECT_NEAR(maximum_of(4), 3.0 / std::sqrt(std::numbers::pi) * (0.5 + std::asin(1.0 / 3.0) / std::numbers::pi),
              kIntegrated);
}

// Harter 1961 (Expected values of normal order statistics, Biometrika 48) tabulates five decimals.
TEST(SlowestFactor, IsTheTabulatedMaximumOfManyNormals) {
  for (const auto& [n, expected] : {std::pair{10, 1.53875}, {20, 1.86748}, {50, 2.24907}, {100, 2.50759}})
    EXPECT_NEAR(maximum_of(n), expected, 5.1e-6) << n;
}

TEST(SlowestFactor, DevicesOfANodeAreAsGoodAsNodes) {
  const double of_nodes = slowest_factor({0.02, 0.0, 1.0, 1, 64}), of_devices = slowest_factor({0.02, 0.0, 1.0, 8, 8});
  EXPECT_NEAR(of_nodes, of_devices, 1e-12);
}

// Without jitter, a step is slow if any node is: 1 + 0.1 (1 - 0.99^4).
TEST(SlowestFactor, OfSlowNodesAlone) {
  EXPECT_NEAR(slowest_factor({0.0, 0.01, 1.1, 8, 4}), 1.0 + 0.1 * (1.0 - std::pow(0.99, 4)), 1e-15);
  EXPECT_DOUBLE_EQ(slowest_factor({0.0, 1.0, 1.5, 8, 3}), 1.5);
  EXPECT_DOUBLE_EQ(slowest_factor({0.0, 0.5, 1.0, 8, 3}), 1.0);
}

// If the ranges of usual and slow nodes do not overlap, the step is that of the slowest of k slow nodes, or of the
// usual ones. For two nodes: both usual, one slow, or both slow.
TEST(SlowestFactor, MixesSlowAndUsualNodes) {
  const double s = 0.01, p = 0.3, f = 2.0, pair = s / std::sqrt(std::numbers::pi);
  const double expected = (1 - p) * (1 - p) * (1 + pair) + 2 * p * (1 - p) * f + p * p * f * (1 + pair);
  EXPECT_NEAR(slowest_factor({s, p, f, 1, 2}), expected, s * kIntegrated);
}

RC_GTEST_PROP(SlowestFactor, GrowsWithEachOfItsFigures, ()) {
  const auto share = [](int most) { return *rc::gen::inRange(0, most) / 1000.0; };
  StepVariation v{share(100), share(300), 1.0 + share(500), *rc::gen::inRange(1, 9), *rc::gen::inRange(1, 300)};
  const double before = slowest_factor(v);
  RC_ASSERT(before >= 1.0 - kIntegrated);
  const int which = *rc::gen::inRange(0, 5);
  if (which == 0) v.jitter += 0.01;
  if (which == 1) v.slow_share += 0.01;
  if (which == 2) v.slow_factor += 0.1;
  if (which == 3) ++v.devices_of_node;
  if (which == 4) ++v.nodes;
  RC_ASSERT(slowest_factor(v) >= before - kIntegrated);
}

TEST(StretchTime, WithoutFailuresIsTheWork) {
  const StretchTime t = stretch_time(1000.0, kNever, 600.0);
  EXPECT_EQ(t.seconds, 1000.0);
  EXPECT_EQ(t.failures + t.redone_s + t.restarts_s + t.variance, 0.0);
}

// Work as long as the MTBF, and restarts of half of it: M e^(1/2) (e - 1).
TEST(StretchTime, IsDalysExpectation) {
  const StretchTime t = stretch_time(100.0, 100.0, 50.0);
  const double e = std::numbers::e;
  EXPECT_NEAR(t.seconds, 100.0 * std::sqrt(e) * (e - 1.0), 1e-11);
  EXPECT_NEAR(t.failures, t.seconds / 100.0, 1e-13) << "failures come once in an MTBF of the time that passes";
  EXPECT_NEAR(t.redone_s, 100.0 * (e - 1.0) - 100.0, 1e-11);
  EXPECT_NEAR(t.restarts_s, 100.0 * (e - 1.0) * (std::sqrt(e) - 1.0), 1e-11);
}

// Rare failures cost half of the stretch and a restart each, which is exact to first order in work / M.
TEST(StretchTime, OfRareFailuresIsHalfAStretchAndARestart) {
  const double work = 1e3, m = 1e9, restart = 600.0;
  const StretchTime t = stretch_time(work, m, restart);
  EXPECT_NEAR(t.failures, work / m, 2e-6 * work / m);
  EXPECT_NEAR(t.seconds - work, work / m * (work / 2.0 + restart), 2e-6 * work / m * (work + restart));
  EXPECT_NEAR(t.variance, work / m * (work * work / 3.0 + work * restart + restart * restart), 1e-4);
}

// On both sides of x = 1e-3, below which a series replaces the cancelling terms. The lost time grows as x^2 and the
// variance as x^3, by 4e-6 and 6e-6 here. The series leaves out 1e-8, the cancellation costs 1e-16 / 1e-6, and both
// growths are exact to 1e-3 of themselves.
TEST(StretchTime, IsContinuousWhereTheSeriesBegins) {
  const StretchTime below = stretch_time(1e-3 * (1 - 1e-6), 1.0, 0.0),
                    above = stretch_time(1e-3 * (1 + 1e-6), 1.0, 0.0);
  EXPECT_NEAR(above.redone_s / below.redone_s, 1.0 + 4e-6, 2e-8);
  EXPECT_NEAR(above.variance / below.variance, 1.0 + 6e-6, 3e-8);
}

TEST(StretchTime, OfAnMtbfFarBelowTheStretchIsInfinite) {
  EXPECT_TRUE(std::isinf(stretch_time(1e6, 1.0, 60.0).seconds));
  EXPECT_TRUE(std::isinf(stretch_time(1.0, 1.0, 1e6).seconds));
  EXPECT_GT(stretch_time(3600.0, 360.0, 60.0).seconds, 1000 * 3600.0) << "ten MTBF without a failure: e^10 attempts";
}

RC_GTEST_PROP(StretchTime, GrowsWithWorkAndRestartAndFailures, ()) {
  const double work = *rc::gen::inRange(1, 100000), m = *rc::gen::inRange(20000, 10000000),
               restart = *rc::gen::inRange(0, 5000);
  const StretchTime t = stretch_time(work, m, restart);
  RC_ASSERT(t.seconds > work && t.variance > 0.0);
  RC_ASSERT(std::abs(t.failures * m / t.seconds - 1.0) < 1e-9);
  RC_ASSERT(stretch_time(work * 1.01, m, restart).seconds > t.seconds);
  RC_ASSERT(stretch_time(work, m * 0.99, restart).seconds > t.seconds);
  RC_ASSERT(stretch_time(work, m, restart + 1.0).seconds > t.seconds);
  // Two stretches with a checkpoint between them lose less than one.
  RC_ASSERT(2.0 * stretch_time(work / 2.0, m, restart).seconds < t.seconds);
}

// The renewal process itself, event by event: the time of a stretch with its failures and restarts.
double drawn_stretch(double work, double m, double restart, std::mt19937_64& random) {
  std::exponential_distribution<double> failure(1.0 / m);
  const auto without_failure = [&](double wanted) {
    double lost = 0.0;
    for (double at = failure(random); at < wanted; at = failure(random)) lost += at;
    return lost + wanted;
  };
  double passed = 0.0;
  for (;;) {
    const double at = failure(random);
    if (at >= work) return passed + work;
    passed += at + without_failure(restart);
  }
}

// The mean of n draws is within 5 standard errors, by the model's own variance; the sample's variance is within 5 of
// its standard errors, sqrt((fourth moment - variance^2) / n), which the sample gives. A draw beyond either has a
// probability of 6e-7.
TEST(StretchTime, IsThatOfTheRenewalProcess) {
  constexpr int kDraws = 50000;
  for (const auto& [work, m, restart] :
       {std::array{1.0, 1.0, 0.5}, {3.0, 1.0, 0.2}, {0.2, 1.0, 2.0}, {0.05, 1.0, 0.01}}) {
    std::mt19937_64 random(7);
    const StretchTime t = stretch_time(work, m, restart);
    std::vector<double> draws(kDraws);
    double mean = 0.0, second = 0.0, fourth = 0.0;
    for (double& draw : draws) mean += (draw = drawn_stretch(work, m, restart, random)) / kDraws;
    for (const double draw : draws) {
      const double square = (draw - mean) * (draw - mean);
      second += square / kDraws, fourth += square * square / kDraws;
    }
    EXPECT_NEAR(mean, t.seconds, 5.0 * std::sqrt(t.variance / kDraws)) << work;
    EXPECT_NEAR(second, t.variance, 5.0 * std::sqrt((fourth - second * second) / kDraws)) << work;
  }
}

double per_second_of_work(double interval, double save, double m) {
  return stretch_time(interval + save, m, 0.0).seconds / interval;
}

RC_GTEST_PROP(BestInterval, IsTheMinimumOfTheModel, ()) {
  const double save = *rc::gen::inRange(1, 3600), m = *rc::gen::inRange(600, 1000000);
  const double best = best_interval(save, m), there = per_second_of_work(best, save, m);
  RC_ASSERT(best > 0.0 && best < m);
  for (const double factor : {0.5, 0.9, 0.99, 1.01, 1.1, 2.0})
    RC_ASSERT(per_second_of_work(best * factor, save, m) > there * (1.0 - 1e-12));
}

// Daly 2006 approximates the minimum by sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d for d < 2M;
// the next term of the series is of the order (d / 2M)^(3/2).
TEST(BestInterval, IsDalysAndYoungsForShortSaves) {
  for (const double save : {1.0, 10.0, 100.0}) {
    const double m = 10000.0, root = std::sqrt(save / (2.0 * m));
    const double daly = young_interval(save, m) * (1.0 + root / 3.0 + root * root / 9.0) - save;
    EXPECT_NEAR(best_interval(save, m) / daly, 1.0, root * root * root) << save;
    EXPECT_NEAR(best_interval(save, m) / young_interval(save, m), 1.0, 2.0 * root) << save;
  }
  EXPECT_DOUBLE_EQ(young_interval(50.0, 10000.0), 1000.0);
  EXPECT_EQ(best_interval(0.0, 100.0), 0.0);
  EXPECT_EQ(best_interval(5.0, kNever), kNever);
  // A save far longer than the MTBF leaves only the MTBF itself.
  EXPECT_NEAR(best_interval(1e6, 100.0), 100.0, 1e-9);
}

TEST(RunFigures, AreTheDescriptionsOrAssumptionsThatSaySo) {
  cluster::Cluster c = cluster::find("dgx-h100");
  c.reliability = {}, c.storage = {};
  const RunFigures assumed = run_figures(c);
  for (const cluster::Figure* figure : {&assumed.step_jitter, &assumed.slow_node_share, &assumed.slow_node_factor,
                                        &assumed.node_mtbf, &assumed.restart, &assumed.node_bandwidth}) {
    EXPECT_EQ(figure->source.rfind("assumption: ", 0), 0U) << figure->source;
    EXPECT_GT(figure->spread, 0.0) << figure->source;
  }
  EXPECT_FALSE(assumed.write_bandwidth || assumed.read_bandwidth);
  c.reliability.restart = cluster::Figure{30.0, 0.1, "measured"};
  c.storage.write_bandwidth = cluster::Figure{1e11, 0.2, "IOR"};
  const RunFigures figures = run_figures(c);
  EXPECT_EQ(figures.restart.value, 30.0);
  EXPECT_EQ(figures.restart.source, "measured");
  EXPECT_EQ(figures.write_bandwidth.value().source, "IOR");
  EXPECT_EQ(figures.node_mtbf.value, assumed.node_mtbf.value);
  // A node with fewer devices fails less often: 50,676 device-hours each.
  EXPECT_NEAR(assumed.node_mtbf.value, 50676.3 * 3600.0 / 8.0, 360.0);
}

}  // namespace
}  // namespace molen::plan
