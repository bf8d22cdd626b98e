#include "energy/uncertainty.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "energy/accountant.h"
#include "energy/commands.h"
#include "energy/totals.h"

namespace molen::energy {
namespace {

MeterInfo nvml_counter() {
  return {"nvml", "gpu0", Source::kCounter, "a GPU", Seconds(0), true, 1e-3, Seconds(0.1)};
}

class CounterOf : public Meter {
 public:
  explicit CounterOf(MeterInfo info) : Meter(std::move(info)) {}
  Result<Reading> read() override { return Reading{joules, 0, 0}; }
  Joules joules{0};
};

TEST(Uncertainty, ACounterIsOffByOneUpdateAtTheEnds) {
  EXPECT_DOUBLE_EQ(resolution_j(nvml_counter(), 1400.0, 2.0).value(), 700.0 * 0.1 + 1e-3) << "70 J at 700 W";
  EXPECT_DOUBLE_EQ(resolution_j(nvml_counter(), 700.0 * 3600, 3600.0).value(), 70.001)
      << "a longer time has no other ends";
}

// A counter that shows, every 0.1 s, the joules until then: whatever the phase of a time against its updates, the
// joules that it shows are off by no more.
TEST(Uncertainty, BoundsTheErrorOfASimulatedCounter) {
  constexpr double kWatts = 350.0, kUpdate = 0.1, kTick = 0.5;
  const MeterInfo info{"nvml", "gpu0", Source::kCounter, "", Seconds(0), true, kTick, Seconds(kUpdate)};
  const auto shown = [&](double t) { return kTick * std::floor(kWatts * kUpdate * std::floor(t / kUpdate) / kTick); };
  double worst = 0.0;
  for (int i = 0; i < 1000; ++i) {
    const double begin = 10.0 + 0.0137 * i, seconds = 0.35 + 0.0071 * (i % 97);
    const double joules = shown(begin + seconds) - shown(begin);
    const double off = std::abs(joules - kWatts * seconds),
                 bound = resolution_j(info, kWatts * seconds, seconds).value();
    EXPECT_LE(off, bound) << i;
    worst = std::max(worst, off / bound);
  }
  EXPECT_GT(worst, 0.9) << "and the bound is no wider than it has to be";
}

TEST(Uncertainty, WhatIsNotKnownIsSaidToBeUnknown) {
  const MeterInfo power{"hwmon", "module0", Source::kPower, "", Seconds(0.1), true};
  EXPECT_FALSE(resolution_j(power, 100.0, 1.0)) << "nobody counted between two samples";
  MeterInfo irregular = nvml_counter();
  irregular.changes_every = Seconds(0);
  EXPECT_FALSE(resolution_j(irregular, 100.0, 1.0));
  EXPECT_FALSE(resolution_j(nvml_counter(), 100.0, 0.0));
  EXPECT_EQ(uncertainty_text(nvml_counter()).rfind("+- 0.001 J and 0.1 s of power; accuracy unknown: ", 0), 0u);
  EXPECT_EQ(uncertainty_text(power).rfind("power sampled every 0.1 s; accuracy unknown: ", 0), 0u);
  const Json json = uncertainty_json(nvml_counter());
  EXPECT_EQ(json["tick_j"], 1e-3);
  EXPECT_EQ(json["changes_every_s"], 0.1);
  EXPECT_TRUE(json["samples_every_s"].is_null());
  EXPECT_TRUE(json["accuracy"].is_null());
  EXPECT_TRUE(uncertainty_json(power)["tick_j"].is_null());
  EXPECT_EQ(uncertainty_json(power)["samples_every_s"], 0.1);
}

TEST(Uncertainty, SumsOverMetersAddUpLinearlyAndOneUnknownMakesTheSumUnknown) {
  const auto step = [](bool with_power) {
    Meters meters;
    auto gpu0 = std::make_unique<CounterOf>(nvml_counter());
    MeterInfo second = nvml_counter();
    second.scope = "gpu1";
    auto gpu1 = std::make_unique<CounterOf>(second);
    auto module = std::make_unique<CounterOf>(MeterInfo{"hwmon", "dram0", Source::kPower, "", Seconds(0), true});
    CounterOf *a = gpu0.get(), *b = gpu1.get(), *c = module.get();
    meters.meters.push_back(std::move(gpu0));
    meters.meters.push_back(std::move(gpu1));
    if (with_power) meters.meters.push_back(std::move(module));
    double time = 5.0;
    Accountant accountant(std::move(meters), Seconds(0), [&] { return time; });
    accountant.begin_step();
    time += 2.0;
    a->joules = Joules(1400), b->joules = Joules(200), c->joules = Joules(10);
    return std::pair(accountant.end_step(), accountant.so_far());
  };
  const auto [counters, so_far] = step(false);
  EXPECT_DOUBLE_EQ(counters.scopes.at("gpu0").resolution_j.value(), 70.001);
  EXPECT_DOUBLE_EQ(counters.scopes.at("gpu1").resolution_j.value(), 10.001);
  EXPECT_DOUBLE_EQ(counters.total_resolution_j.value(), 80.002);
  EXPECT_DOUBLE_EQ(so_far.resolution_j.at("gpu0").value(), 70.001);
  const auto [all, all_so_far] = step(true);
  EXPECT_EQ(all.scopes.at("dram0").resolution_j, std::nullopt);
  EXPECT_EQ(all.total_j, 1610.0);
  EXPECT_EQ(all.total_resolution_j, std::nullopt);
  EXPECT_EQ(all_so_far.resolution_j.at("dram0"), std::nullopt);
  LiveReading::Line line;
  line.seconds = 2.0, line.energy = all;
  EXPECT_EQ(live_json(line)["energy_resolution_j"]["gpu0"], 70.001);
  EXPECT_TRUE(live_json(line)["energy_resolution_j"]["dram0"].is_null());
}

TEST(Uncertainty, TotalsAddThatOfTheirAttempts) {
  const auto used = [](std::optional<double> resolution) {
    EnergySoFar e;
    e.joules = {{"gpu0", 1000.0}, {"gpu1", 500.0}};
    e.resolution_j = {{"gpu0", resolution}, {"gpu1", 2.0}};
    e.total_j = 1500.0;
    return e;
  };
  Coverage c;
  c.hosts = 1, c.summed = {"gpu0", "gpu1"};
  const RunTotals one = add({}, 1, 10, used(3.0), c), two = add(one, 1, 10, used(4.0), c);
  EXPECT_DOUBLE_EQ(two.resolution_j.at("gpu0").value(), 7.0);
  EXPECT_DOUBLE_EQ(two.total_resolution_j().value(), 11.0);
  EXPECT_NE(two.text().find("3000 J +- 11 J of resolution"), std::string::npos) << two.text();
  const RunTotals back = totals_from_json(to_json(two), 2, "here");
  EXPECT_EQ(back.resolution_j, two.resolution_j);
  EXPECT_EQ(to_json(two)["total_resolution_j"], 11.0);
  const RunTotals unknown = add(one, 1, 10, used(std::nullopt), c);
  EXPECT_EQ(unknown.resolution_j.at("gpu0"), std::nullopt);
  EXPECT_EQ(unknown.total_resolution_j(), std::nullopt);
  EXPECT_TRUE(to_json(unknown)["resolution_j"]["gpu0"].is_null());
  EXPECT_EQ(add(unknown, 1, 10, used(4.0), c).resolution_j.at("gpu0"), std::nullopt) << "for good";
  // Totals of a checkpoint from before resolutions were kept.
  Json old = to_json(two);
  old.erase("resolution_j");
  EXPECT_EQ(totals_from_json(old, 2, "here").total_resolution_j(), std::nullopt);
  EXPECT_EQ(add(totals_from_json(old, 2, "here"), 1, 10, used(4.0), c).resolution_j.at("gpu0"), std::nullopt);
  Json bad = to_json(two);
  bad["resolution_j"]["gpu0"] = "x";
  EXPECT_THROW(totals_from_json(bad, 2, "here"), UsageError);
}

}  // namespace
}  // namespace molen::energy
