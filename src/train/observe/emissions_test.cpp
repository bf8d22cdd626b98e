#include "train/observe/emissions.h"

#include <gtest/gtest.h>

namespace molen::train {
namespace {

cluster::RunSite test_site(bool series) {
  cluster::RunSite site;
  site.name = "test";
  site.pue = {1.5, 0.0, "test"}, site.intensity = {8.0, 0.0, "test"};
  if (series) site.series.emplace(std::vector<cluster::IntensitySeries::Value>{{100.0, 1.0}, {200.0, 3.0}}, "s.csv");
  return site;
}

TEST(Emissions, EachJouleHasTheIntensityOfItsTime) {
  Emissions e(test_site(true), 100.0);
  EXPECT_DOUBLE_EQ(e.so_far(10.0, 150.0), 1.5 * 10.0 * 1.0);
  EXPECT_DOUBLE_EQ(e.so_far(10.0, 190.0), 1.5 * 10.0) << "no more joules";
  EXPECT_DOUBLE_EQ(e.so_far(30.0, 210.0), 1.5 * (10.0 + 20.0 * 2.0)) << "half before the change, half after it";
  EXPECT_TRUE(e.follows_series());
  EXPECT_DOUBLE_EQ(e.of_earlier(4.0, 250.0), 1.5 * 4.0 * 3.0);
  EXPECT_DOUBLE_EQ(e.so_far(40.0, 301.0), 1.5 * (50.0 + 10.0 * 8.0)) << "after the last value, the site's own figure";
  EXPECT_FALSE(e.follows_series());
  EXPECT_DOUBLE_EQ(e.so_far(), 1.5 * (50.0 + 10.0 * 8.0));
}

TEST(Emissions, WithoutASeriesTheyAreInProportion) {
  Emissions e(test_site(false), 100.0);
  EXPECT_DOUBLE_EQ(e.so_far(10.0, 150.0), 1.5 * 10.0 * 8.0);
  EXPECT_DOUBLE_EQ(e.so_far(30.0, 120.0), 1.5 * 30.0 * 8.0) << "a clock that was set back";
  EXPECT_TRUE(e.follows_series());
}

}  // namespace
}  // namespace molen::train
