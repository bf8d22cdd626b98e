#include "plan/carbon_window.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace molen::plan {
namespace {

constexpr double kHourOfGrid = 3600.0;
constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// Values for hours from 0 on.
cluster::IntensitySeries hourly(const std::vector<double>& kg_per_j) {
  std::vector<cluster::IntensitySeries::Value> values;
  for (std::size_t i = 0; i < kg_per_j.size(); ++i)
    values.push_back({kHourOfGrid * static_cast<double>(i), kg_per_j[i]});
  return {values, "hourly.csv"};
}

std::string window_refusal(const cluster::IntensitySeries& s, double duration, double earliest, double deadline) {
  try {
    carbon_windows(s, duration, earliest, deadline);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CarbonWindows, TheBestWindowMayBeginBetweenTwoValues) {
  // Hour 3 is the cleanest, and hour 2 is cleaner than hour 4: a run of an hour and a half ends when hour 3 does.
  const auto w = carbon_windows(hourly({5, 9, 2, 1, 3, 4, 4}), 1.5 * kHourOfGrid, 0.0, kNoDeadline);
  EXPECT_EQ(w.best.start_s, 2.5 * kHourOfGrid);
  EXPECT_EQ(w.best.end_s, 4.0 * kHourOfGrid);
  EXPECT_DOUBLE_EQ(w.best.kg_per_j, (0.5 * 2 + 1) / 1.5);
  EXPECT_DOUBLE_EQ(w.at_once.kg_per_j, (5 + 0.5 * 9) / 1.5);
  EXPECT_EQ(w.worst.start_s, 0.5 * kHourOfGrid);
  EXPECT_DOUBLE_EQ(w.worst.kg_per_j, (0.5 * 5 + 9) / 1.5);
  EXPECT_EQ(w.latest_start_s, 5.5 * kHourOfGrid);
}

TEST(CarbonWindows, KeepTheDeadlineAndTheEarliestStart) {
  const auto s = hourly({5, 9, 2, 1, 3, 4, 4});
  const auto early = carbon_windows(s, 1.5 * kHourOfGrid, 0.0, 3.25 * kHourOfGrid);
  EXPECT_EQ(early.latest_start_s, 1.75 * kHourOfGrid);
  EXPECT_EQ(early.best.start_s, 1.75 * kHourOfGrid);  // still in hour 1 when the deadline leaves no more room
  const auto late = carbon_windows(s, 1.5 * kHourOfGrid, 4.0 * kHourOfGrid, kNoDeadline);
  EXPECT_EQ(late.best.start_s, 4.0 * kHourOfGrid);
  EXPECT_DOUBLE_EQ(late.best.kg_per_j, late.at_once.kg_per_j);
}

TEST(CarbonWindows, TheFirstOfEqualWindowsIsTaken) {
  const auto w = carbon_windows(hourly({2, 1, 2, 1, 2}), kHourOfGrid, 0.0, kNoDeadline);
  EXPECT_EQ(w.best.start_s, kHourOfGrid);
  EXPECT_EQ(w.worst.start_s, 0.0);
}

TEST(CarbonWindows, RefuseRunsThatDoNotFit) {
  const auto s = hourly({1, 2, 3});
  EXPECT_NE(window_refusal(s, 2 * kHourOfGrid, 0.0, kHourOfGrid).find("the run takes"), std::string::npos);
  EXPECT_NE(window_refusal(s, 4 * kHourOfGrid, 0.0, kNoDeadline).find("a longer forecast is needed"),
            std::string::npos);
  EXPECT_NE(window_refusal(s, kHourOfGrid, -1.0, kNoDeadline).find("the forecast is for 1970-01-01T00:00:00Z"),
            std::string::npos);
  EXPECT_NE(window_refusal(s, kHourOfGrid, 3 * kHourOfGrid, kNoDeadline).find("the earliest start is"),
            std::string::npos);
  EXPECT_EQ(window_refusal(s, 3 * kHourOfGrid, 0.0, 3 * kHourOfGrid), "accepted");
}

// No start of a fine grid is better than the best one or worse than the worst one.
RC_GTEST_PROP(CarbonWindowLaws, NoStartBeatsTheBest, ()) {
  const auto count = *rc::gen::inRange(2, 40);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(*rc::gen::inRange(0, 1000));
  const auto s = hourly(values);
  const double duration = s.end_s() * *rc::gen::inRange(1, 1000) / 1000.0;
  const double earliest = (s.end_s() - duration) * *rc::gen::inRange(0, 1000) / 1000.0;
  const double deadline = earliest + duration + (s.end_s() - earliest - duration) * *rc::gen::inRange(0, 1001) / 1000.0;
  const auto w = carbon_windows(s, duration, earliest, deadline);
  // A mean is a difference of two sums of `count` terms, each rounded relative to the whole sum.
  const double rounding = 4e-16 * (count + 4) * 1000.0 * s.end_s() / duration;
  RC_ASSERT(w.best.start_s >= earliest && w.best.end_s <= deadline + 1e-9 * deadline);
  constexpr int kStarts = 500;
  for (int i = 0; i <= kStarts; ++i) {
    const double start = earliest + (w.latest_start_s - earliest) * i / kStarts;
    const double mean = s.mean(start, std::min(start + duration, s.end_s()));
    RC_ASSERT(mean >= w.best.kg_per_j - rounding);
    RC_ASSERT(mean <= w.worst.kg_per_j + rounding);
  }
}

}  // namespace
}  // namespace molen::plan
