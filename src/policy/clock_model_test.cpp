#include "policy/clock_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "policy/test_perseus_profile.h"

namespace molen::policy {
namespace {

const PowerShares kPowerShares{.products = 0.85, .memory = 0.5, .waiting = 0.2};

TEST(ClockModel, AtTheHighestClockAnOpTakesWhatThePlannerSays) {
  const cluster::Cluster c = cluster::find("dgx-a100");
  const ClockModel model(c, kPowerShares);
  EXPECT_EQ(model.clocks_hz().front(), 1.41e9);
  EXPECT_EQ(model.clocks_hz().back(), 855e6);
  EXPECT_EQ(model.clocks_hz().size(), 38u);
  for (const Load load : {Load::kProducts, Load::kMemory, Load::kWaiting})
    EXPECT_DOUBLE_EQ(model.stretch(load, 1.41e9), 1.0);
  const double range = c.device.peak_power.value - c.device.idle_power.value;
  EXPECT_DOUBLE_EQ(model.watts(Load::kProducts, 1.41e9).value, c.device.idle_power.value + 0.85 * range);
  EXPECT_DOUBLE_EQ(model.watts(Load::kMemory, 1.41e9).value, c.device.idle_power.value + 0.5 * range);
  EXPECT_DOUBLE_EQ(model.watts(Load::kWaiting, 855e6).value, c.device.idle_power.value + 0.2 * range);
  EXPECT_DOUBLE_EQ(model.stretch(Load::kWaiting, 855e6), 1.0);
}

// The figures of an A100 are fitted to a published profile. The sources in the description say how well: 2.2 % of the
// power. The fit's time is up to 6 % off relative to the highest clocks, at which a power limit throttles the device.
TEST(ClockModel, FollowsThePublishedProfileOfAnA100) {
  const cluster::Cluster c = cluster::find("dgx-a100");
  const ClockModel model(c, kPowerShares);
  const double idle = c.device.idle_power.value;
  const ProfiledClock& at =
      *std::find_if(kProfile.begin(), kProfile.end(), [](const auto& p) { return p.megahertz == 1095; });
  const auto power = [](const ProfiledClock& p) { return p.forward_j / p.forward_s; };
  for (const ProfiledClock& p : kProfile) {
    if (p.megahertz > 1335) continue;
    const double hz = p.megahertz * 1e6, reference = 1095e6;
    const double predicted =
        (model.watts(Load::kProducts, hz).value - idle) / (model.watts(Load::kProducts, reference).value - idle);
    EXPECT_NEAR(predicted * (power(at) - idle), power(p) - idle, 0.05 * (power(p) - idle)) << p.megahertz;
    if (p.megahertz > 1290) continue;
    const double stretched = model.stretch(Load::kProducts, hz) / model.stretch(Load::kProducts, reference);
    EXPECT_NEAR(stretched * at.forward_s, p.forward_s, 0.02 * p.forward_s) << p.megahertz;
    EXPECT_NEAR(stretched * at.backward_s, p.backward_s, 0.02 * p.backward_s) << p.megahertz;
  }
}

TEST(ClockModel, BelowTheKneePowerIsLinearInTheClock) {
  const cluster::Cluster c = cluster::find("dgx-a100");
  const ClockModel model(c, kPowerShares);
  const double idle = c.device.idle_power.value;
  const auto active = [&](double hz) { return model.watts(Load::kProducts, hz).value - idle; };
  EXPECT_NEAR(active(900e6) / active(1000e6), 0.9, 1e-12);
  EXPECT_GT(active(1400e6) / active(1200e6), 1400.0 / 1200.0);
}

TEST(ClockModel, NamesTheFiguresThatAreMissing) {
  cluster::Cluster c = cluster::find("dgx-a100");
  c.clocks.knee.reset();
  c.clocks.low.reset();
  try {
    const ClockModel model(c, kPowerShares);
    FAIL();
  } catch (const UsageError& error) {
    const std::string text = error.what();
    for (const char* part : {"dgx-a100", "clocks.low_hz, clocks.knee_hz", "docs/formats/cluster.md"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(text.find("clocks.high_hz"), std::string::npos) << text;
  }
}

TEST(ClockModel, StatesAllThatItAssumes) {
  const cluster::Cluster c = cluster::find("dgx-a100");
  const ClockModel model(c, kPowerShares);
  std::string all;
  for (const std::string& line : model.assumptions()) all += line + "\n";
  for (const auto* figure : {&c.clocks.high, &c.clocks.knee, &c.clocks.exponent, &c.clocks.share})
    EXPECT_NE(all.find((*figure)->source), std::string::npos) << all;
  for (const char* part : {c.device.idle_power.source.c_str(), "348 W in products", "124 W while it waits"})
    EXPECT_NE(all.find(part), std::string::npos) << all;
}

TEST(ClockModel, RefusesMoreClocksThanCanBePlanned) {
  cluster::Cluster c = cluster::find("dgx-a100");
  c.clocks.step->value = 1e5;
  EXPECT_THROW(ClockModel(c, kPowerShares), UsageError);
}

}  // namespace
}  // namespace molen::policy
