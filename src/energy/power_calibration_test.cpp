#include "energy/power_calibration.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "energy/power_model.h"
#include "energy/test_processors.h"

namespace molen::energy {
namespace {

// A package of 40 W, and 25 W more for each processor that is busy, and a memory of 5 W. In each round all takes 2 W
// more than in the one before.
class Calibration : public ::testing::Test {
 protected:
  Calibration() {
    package = new SteadyMeter("cpu-package0");
    memory = new SteadyMeter("dram0");
    gpu = new SteadyMeter("gpu0");
    for (Meter* m : {package, memory, gpu}) meters.meters.emplace_back(m);
    loads.load = [this](int busy) {
      loaded.push_back(busy);
      now_busy = busy;
    };
    f.machine.tick = [this] {
      const double s = f.machine.time - last_s;
      last_s = f.machine.time;
      std::vector<double> busy(4, 0.0);
      for (int i = 0; i < std::max(now_busy, others); ++i) busy[static_cast<std::size_t>(i)] = 1.0;
      f.pass(0.0, busy, s);
      const double drift = 2.0 * static_cast<double>((loaded.size() - 1) / 5);
      if (reads_package) package->joules += Joules(s * (40.0 + 25.0 * now_busy + drift));
      if (reads_memory) memory->joules += Joules(s * 5.0);
      gpu->joules += Joules(s * 70.0);
    };
  }
  PowerCalibration calibrate() { return calibrate_power(std::move(meters), f.machine.machine, loads, true); }

  FakeProcessors f;
  Meters meters;
  SteadyMeter *package, *memory, *gpu;
  bool reads_package = true, reads_memory = true;
  CalibrationLoads loads;
  std::vector<int> loaded;
  int now_busy = 0, others = 0;  // processors that are loaded, and that other work keeps busy
  double last_s = f.machine.time;
};

TEST_F(Calibration, MeasuresThePowerOfEachLoadWithTheSpreadOfItsRounds) {
  const PowerCalibration c = calibrate();
  EXPECT_EQ(loaded, (std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0})) << "and idle at the end";
  EXPECT_EQ(c.processor, "Test 1");
  EXPECT_EQ(c.cpus, 4);
  ASSERT_EQ(c.parts.size(), 2u) << "a GPU does not follow the processors";
  EXPECT_EQ(c.parts[0].scope, "cpu-package0");
  EXPECT_EQ(c.parts[0].source, "counter");
  ASSERT_EQ(c.parts[0].points.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    const PowerPoint& p = c.parts[0].points[i];
    EXPECT_NEAR(p.utilisation, 0.25 * static_cast<double>(i), 1e-9);
    EXPECT_NEAR(p.watts.value, 42.0 + 25.0 * static_cast<double>(i), 1e-6);
    EXPECT_NEAR(p.watts.least, p.watts.value - 2.0, 1e-6);
    EXPECT_NEAR(p.watts.most, p.watts.value + 2.0, 1e-6);
  }
  EXPECT_NEAR(c.parts[1].points[4].watts.value, 5.0, 1e-6);
}

TEST_F(Calibration, ItsFileModelsAMachineWithoutMeters) {
  PowerCalibration c = calibrate();
  c.host = "n1";
  const PowerCalibration read = power_calibration_from_json(Json::parse(to_json(c).dump()), "power.json");
  EXPECT_EQ(to_json(read), to_json(c));
  const PowerFigures figures = figures_of(read, "power.json");
  EXPECT_EQ(figures.by_cpus[0].source.rfind("power.json: measured on n1 at ", 0), 0u) << figures.by_cpus[0].source;
  FakeProcessors other;
  PowerModel model(figures, {}, {other.machine.machine, {}, {}, 0.0, "energy.model"});
  other.pass(10.0, 0.3);
  const auto joules = model.so_far();
  EXPECT_NEAR(joules.scopes.at("cpu-package0")->value, 720.0, 1e-6);
  EXPECT_NEAR(joules.scopes.at("cpu-package0")->least, 650.0, 1e-6);
  EXPECT_NEAR(joules.scopes.at("cpu-package0")->most, 940.0, 1e-6);
  EXPECT_NEAR(joules.scopes.at("dram0")->value, 50.0, 1e-6);
}

TEST_F(Calibration, ScopesThatLackReadingsAreLeftOutWithTheReason) {
  reads_memory = false;
  const PowerCalibration c = calibrate();
  ASSERT_EQ(c.left_out.size(), 1u);
  EXPECT_EQ(c.left_out[0], "dram0: the counter did not change in this time");
  ASSERT_EQ(c.parts.size(), 1u);
}

TEST_F(Calibration, OtherWorkOnTheMachineIsAnError) {
  others = 1;
  try {
    calibrate();
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("busy for 0.25 of the time without a load"), std::string::npos) << what;
    EXPECT_NE(what.find("end other work"), std::string::npos) << what;
  }
  EXPECT_EQ(now_busy, 0) << "the load ends";
}

TEST_F(Calibration, NothingToMeasureIsAnError) {
  reads_package = reads_memory = false;
  try {
    calibrate();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no meter of processors"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("cpu-package0: the counter did not change"), std::string::npos);
  }
}

TEST_F(Calibration, AShareOfTheProcessorsIsAnError) {
  f.allow("0-2");
  try {
    calibrate();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("3 of 4 processors"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(loaded.empty());
}

TEST_F(Calibration, DamagedFilesAreRefusedWithTheirKey) {
  const Json good = to_json(calibrate());
  const auto refused = [&](const std::string& said, const std::function<void(Json&)>& damage) {
    Json bad = good;
    damage(bad);
    try {
      power_calibration_from_json(bad, "power.json");
      FAIL() << "no error: " << said;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("power.json: ", 0), 0u) << error.what();
      EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
    }
  };
  const auto point = [](Json& j) -> Json& { return j["scopes"]["cpu-package0"]["points"][1]; };
  refused("power_format", [](Json& j) { j.erase("power_format"); });
  refused("power_format is 2", [](Json& j) { j["power_format"] = 2; });
  refused("processor", [](Json& j) { j["processor"] = 7; });
  refused("cpus", [](Json& j) { j["cpus"] = 0; });
  refused("scopes has no scope", [](Json& j) { j["scopes"] = Json::object(); });
  refused("no such scope", [](Json& j) { j["scopes"]["kettle"] = j["scopes"]["dram0"]; });
  refused("points is no list", [](Json& j) { j["scopes"]["dram0"]["points"] = Json::array(); });
  refused("utilisation 1.5", [&](Json& j) { point(j)["utilisation"] = 1.5; });
  refused("utilisation 0", [&](Json& j) { point(j)["utilisation"] = 0; });
  refused("not between least_w", [&](Json& j) { point(j)["least_w"] = 1e6; });
  refused("watts is no amount", [&](Json& j) { point(j)["watts"] = -3; });
}

}  // namespace
}  // namespace molen::energy
