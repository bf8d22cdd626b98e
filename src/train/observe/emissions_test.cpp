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
  const auto kg = [&](double joules, double time) { return e.so_far(joules, 0.0, time).kg_co2e.value(); };
  EXPECT_DOUBLE_EQ(kg(10.0, 150.0), 1.5 * 10.0 * 1.0);
  EXPECT_DOUBLE_EQ(kg(10.0, 190.0), 1.5 * 10.0) << "no more joules";
  EXPECT_DOUBLE_EQ(kg(30.0, 210.0), 1.5 * (10.0 + 20.0 * 2.0)) << "half before the change, half after it";
  EXPECT_TRUE(e.follows_series());
  EXPECT_DOUBLE_EQ(e.of_earlier(4.0, 0.0, 250.0).kg_co2e.value(), 1.5 * 4.0 * 3.0);
  // 90 s with the last value, and 30 s after it with the site's own figure.
  EXPECT_DOUBLE_EQ(kg(40.0, 330.0), 1.5 * (50.0 + 10.0 * (0.75 * 3.0 + 0.25 * 8.0)));
  EXPECT_FALSE(e.follows_series());
  EXPECT_DOUBLE_EQ(kg(50.0, 340.0), 1.5 * (92.5 + 10.0 * 8.0));
  EXPECT_EQ(e.so_far().kg_co2e, kg(50.0, 340.0));
}

TEST(Emissions, AClockThatIsSetBack) {
  Emissions e(test_site(true), 150.0);
  EXPECT_DOUBLE_EQ(e.so_far(10.0, 0.0, 160.0).kg_co2e.value(), 1.5 * 10.0);
  EXPECT_DOUBLE_EQ(e.so_far(20.0, 0.0, 110.0).kg_co2e.value(), 1.5 * 20.0);
  EXPECT_DOUBLE_EQ(e.so_far(30.0, 0.0, 50.0).kg_co2e.value(), 1.5 * (20.0 + 10.0 * 8.0)) << "before the series";
}

TEST(Emissions, WhatElseTheSiteHasFiguresOf) {
  cluster::RunSite site = test_site(false);
  Emissions plain(site, 0.0);
  const auto unknown = plain.so_far(2.0, 40.0, 10.0);
  EXPECT_EQ(unknown.site_j, 3.0);
  EXPECT_EQ(unknown.kg_co2e, 24.0);
  EXPECT_FALSE(unknown.water_l || unknown.eur || unknown.market_kg_co2e || unknown.embodied_kg_co2e);
  site.water = {0.5, 0.0, "test"}, site.price = {0.25, 0.0, "test"};
  site.market_intensity = {2.0, 0.0, "test"}, site.embodied = {0.125, 0.0, "test"};
  Emissions known(site, 0.0);
  const auto all = known.so_far(2.0, 40.0, 10.0);
  EXPECT_EQ(all.water_l, 1000.0) << "of the computers' energy";
  EXPECT_EQ(all.eur, 0.75) << "of the site's energy";
  EXPECT_EQ(all.kg_co2e, 24.0) << "by location, as without contracts";
  EXPECT_EQ(all.market_kg_co2e, 6.0) << "of the site's energy";
  EXPECT_EQ(all.embodied_kg_co2e, 5.0) << "of the devices' seconds";
  EXPECT_EQ(known.so_far().embodied_kg_co2e, 5.0);
  EXPECT_EQ(known.of_earlier(2.0, 8.0, 10.0).embodied_kg_co2e, 1.0);
}

}  // namespace
}  // namespace molen::train
