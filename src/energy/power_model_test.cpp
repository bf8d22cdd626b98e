#include "energy/power_model.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "energy/commands.h"
#include "energy/cpu_busy.h"
#include "energy/open.h"
#include "energy/power_calibration.h"
#include "energy/test_processors.h"

namespace molen::energy {
namespace {

PowerFigures package_figures(std::vector<PowerPoint> points) {
  PowerFigures figures;
  figures.by_cpus.push_back({"cpu-package0", PowerCurve(std::move(points)), "file: measured"});
  figures.lacking = "a calibration would give some";
  return figures;
}

const std::vector<PowerPoint> kTwo{{0.0, {40, 38, 42}}, {1.0, {140, 130, 150}}};

TEST(PowerCurve, IdleAtNoneAndPeakAtAllAndBetweenThemWithin) {
  const PowerCurve curve({{0.0, {40, 38, 42}}, {0.5, {100, 95, 105}}, {1.0, {140, 130, 150}}});
  EXPECT_EQ(curve.watts_at(0.0).value, 40.0);
  EXPECT_EQ(curve.watts_at(1.0).value, 140.0);
  EXPECT_EQ(curve.watts_at(0.5).value, 100.0);
  EXPECT_EQ(curve.watts_at(0.5).least, 95.0) << "at a point, its own bounds";
  const Estimate between = curve.watts_at(0.25);
  EXPECT_DOUBLE_EQ(between.value, 70.0);
  EXPECT_EQ(between.least, 38.0) << "between points only their powers are known";
  EXPECT_EQ(between.most, 105.0);
  double before = 0.0;
  for (int i = 0; i <= 100; ++i) {
    const Estimate e = curve.watts_at(i / 100.0);
    EXPECT_GE(e.value, before) << i;
    EXPECT_LE(e.least, e.value) << i;
    EXPECT_GE(e.most, e.value) << i;
    before = e.value;
  }
}

TEST(PowerCurve, BeyondThePointsItIsThatOfTheLastOne) {
  const PowerCurve curve({{0.02, {40, 38, 42}}, {0.98, {140, 130, 150}}});
  EXPECT_EQ(curve.watts_at(0.0).value, 40.0);
  EXPECT_EQ(curve.watts_at(1.0).most, 150.0);
}

TEST(PowerCurve, NoiseThatLetsPowerFallIsPooled) {
  const PowerCurve curve({{0.0, {50, 48, 52}}, {0.5, {44, 43, 45}}, {1.0, {90, 89, 91}}});
  EXPECT_DOUBLE_EQ(curve.watts_at(0.0).value, 47.0);
  EXPECT_DOUBLE_EQ(curve.watts_at(0.5).value, 47.0);
  EXPECT_EQ(curve.watts_at(0.25).least, 43.0) << "the widest bounds of the two";
  EXPECT_EQ(curve.watts_at(0.25).most, 52.0);
  EXPECT_EQ(curve.watts_at(1.0).value, 90.0);
}

TEST(ModelledJoules, TheTotalAddsSummedScopesAndTheirBounds) {
  ModelledJoules j;
  EXPECT_FALSE(j.total());
  j.scopes = {
      {"cpu", Estimate{10, 8, 12}}, {"dram", Estimate{1, 0.5, 2}}, {"node", Estimate{100, 90, 110}}, {"gpu0", {}}};
  j.summed = {"cpu", "dram", "gpu0"};
  EXPECT_DOUBLE_EQ(j.total()->value, 11.0);
  EXPECT_DOUBLE_EQ(j.total()->least, 8.5);
  EXPECT_DOUBLE_EQ(j.total()->most, 14.0);
}

class Model : public ::testing::Test {
 protected:
  FakeProcessors f;
  ModelOptions options() { return {f.machine.machine, {"no such library", {}, Seconds(0.1)}, {}, 0.0, "energy.model"}; }
};

TEST_F(Model, JoulesFollowTheUtilisation) {
  PowerModel model(package_figures(kTwo), {}, options());
  ASSERT_EQ(model.parts().size(), 1u);
  EXPECT_EQ(model.parts()[0]->figures().scope, "cpu-package0");
  model.begin_step();
  f.pass(10.0, 0.0);
  EXPECT_DOUBLE_EQ(model.end_step().scopes.at("cpu-package0")->value, 400.0) << "idle";
  f.pass(10.0, 1.0);
  const Estimate busy = *model.end_step().scopes.at("cpu-package0");
  EXPECT_DOUBLE_EQ(busy.value, 1400.0);
  EXPECT_DOUBLE_EQ(busy.least, 1300.0);
  EXPECT_DOUBLE_EQ(busy.most, 1500.0);
  f.pass(10.0, 0.5);
  EXPECT_DOUBLE_EQ(model.end_step().scopes.at("cpu-package0")->value, 900.0);
  EXPECT_DOUBLE_EQ(model.so_far().scopes.at("cpu-package0")->value, 2700.0);
}

TEST_F(Model, JoulesNeverFallHoweverOftenTheyAreRead) {
  PowerModel model(package_figures(kTwo), {}, options());
  double before = 0.0;
  for (int i = 0; i < 200; ++i) {
    f.pass(0.03, (i % 7) / 6.0);
    const auto e = model.so_far().scopes.at("cpu-package0");
    if (!e) continue;
    EXPECT_GE(e->value, before) << i;
    EXPECT_LE(e->least, e->value) << i;
    EXPECT_GE(e->most, e->value) << i;
    before = e->value;
  }
  EXPECT_GT(before, 40.0 * 5.9) << "at least idle power all the time";
  EXPECT_LT(before, 140.0 * 6.0);
}

TEST_F(Model, AStepShorterThanAWindowHasNoEstimate) {
  PowerModel model(package_figures(kTwo), {}, options());
  model.begin_step();
  f.pass(0.06, 1.0);
  const Modelled m = model.end_step();
  EXPECT_FALSE(m.scopes.at("cpu-package0"));
  EXPECT_NE(m.reasons.at("cpu-package0").find("0.1 s"), std::string::npos);
  f.pass(0.06, 1.0);
  EXPECT_NEAR(model.end_step().scopes.at("cpu-package0")->value, 0.12 * 140.0, 1e-9) << "the next one has its joules";
}

TEST_F(Model, AJobHasTheShareOfItsProcessors) {
  ModelOptions o = options();
  o.cpus = "0";
  PowerModel model(package_figures(kTwo), {}, o);
  EXPECT_DOUBLE_EQ(model.parts()[0]->share(), 0.25);
  f.pass(10.0, {1.0, 0.0, 0.0, 0.0});
  EXPECT_DOUBLE_EQ(model.so_far().scopes.at("cpu-package0")->value, 0.25 * 1400.0)
      << "by its own processor, whatever the others do";
  f.allow("1-2");
  PowerModel own(package_figures(kTwo), {}, options());
  EXPECT_DOUBLE_EQ(own.parts()[0]->share(), 0.5) << "where none are named, those of this process";
}

TEST_F(Model, WhatAMeterReadsIsNotModelled) {
  PowerFigures figures = package_figures(kTwo);
  figures.by_cpus.push_back({"dram0", PowerCurve({{0.0, {5, 4, 6}}, {1.0, {9, 8, 10}}}), "file"});
  figures.by_cpus.push_back({"psys", PowerCurve(std::vector<PowerPoint>{{0.0, {60, 50, 70}}}), "file"});
  Meters measured;
  measured.meters.push_back(std::make_unique<SteadyMeter>("dram0"));
  measured.meters.push_back(std::make_unique<NullMeter>("cpu-package", "Permission denied"));
  PowerModel model(figures, measured, options());
  ASSERT_EQ(model.parts().size(), 1u);
  EXPECT_EQ(model.parts()[0]->figures().scope, "cpu-package0");
  ASSERT_EQ(model.unavailable().size(), 2u);
  EXPECT_EQ(model.unavailable()[1].scope, "psys") << "it contains the memory that a meter reads";
  EXPECT_NE(model.unavailable()[1].reason.find("dram0"), std::string::npos);
  PowerModel all(figures, {}, options());
  std::map<std::string, bool> counted;
  for (const auto& part : all.parts()) counted[part->figures().scope] = part->counted;
  EXPECT_EQ(counted, (std::map<std::string, bool>{{"cpu-package0", true}, {"dram0", true}, {"psys", false}}))
      << "no two scopes of a sum share a part";
}

TEST_F(Model, MissingTimesAreReasonsAndNotIdle) {
  PowerModel model(package_figures(kTwo), {}, options());
  f.machine.time += 5.0;  // the kernel counts nothing
  Modelled m = model.so_far();
  EXPECT_FALSE(m.scopes.at("cpu-package0"));
  EXPECT_NE(m.reasons.at("cpu-package0").find("counted no time"), std::string::npos);
  f.pass(5.0, 1.0);
  EXPECT_DOUBLE_EQ(model.so_far().scopes.at("cpu-package0")->value, 1400.0) << "the next reading covers it";
  f.machine.write("proc/stat", "cpu0 0 0 0 0 0 0 0 0\n");
  PowerModel none(package_figures(kTwo), {}, options());
  EXPECT_TRUE(none.parts().empty());
  f.machine.write("proc/stat", "intr 5\n");
  EXPECT_NE(read_cpu_times(f.machine.machine, {0}).reason().find("no line of a processor"), std::string::npos);
}

TEST_F(Model, FiguresOfAnotherProcessorAreRefused) {
  PowerFigures figures = package_figures(kTwo);
  figures.processor = "Another 9000", figures.cpus = 4;
  try {
    PowerModel model(figures, {}, options());
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("energy.model: file: measured"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("'Test 1'"), std::string::npos) << error.what();
  }
  figures.processor = "Test 1";
  EXPECT_EQ(PowerModel(figures, {}, options()).parts().size(), 1u);
  figures.cpus = 8;
  EXPECT_THROW(PowerModel(figures, {}, options()), UsageError);
}

TEST_F(Model, NoFiguresForWhatIsNotMeasuredIsAnError) {
  PowerFigures figures;
  figures.lacking = "a calibration would give some";
  try {
    open_model(figures, {}, false, options());
    FAIL() << "no error";
  } catch (const UsageError& error) {
    const std::string what = error.what();
    for (const char* said : {"energy.model", "cpu, dram", "a calibration would give some"})
      EXPECT_NE(what.find(said), std::string::npos) << what;
  }
  Meters node;
  node.meters.push_back(std::make_unique<SteadyMeter>("node"));
  EXPECT_EQ(open_model(figures, node, false, options()), nullptr) << "nothing is left to estimate";
  EXPECT_NE(open_model(package_figures(kTwo), {}, false, options()), nullptr);
}

TEST_F(Model, ReadByAThread) {
  ModelOptions o = options();
  o.machine = Machine();
  o.machine.proc = f.machine.machine.proc;
  o.read_every_s = 0.02;
  PowerModel model(package_figures(kTwo), {}, o);
  const double until = o.machine.clock() + 10.0;
  std::optional<Estimate> joules;
  while (!joules && o.machine.clock() < until) {
    f.pass(0.0, 1.0, 1.0);  // the kernel's times alone; the clock is the real one
    o.machine.sleep(0.05);
    joules = model.so_far().scopes.at("cpu-package0");
  }
  ASSERT_TRUE(joules);
  EXPECT_GT(joules->value, 0.0);
}

TEST_F(Model, ListedAndShownLive) {
  PowerModel model(package_figures(kTwo), {}, options());
  EXPECT_NE(model_text(&model).find("cpu-package0     model          model    file: measured"), std::string::npos)
      << model_text(&model);
  EXPECT_NE(model_text(nullptr).find("nothing"), std::string::npos);
  EXPECT_EQ(model_json(&model)["modelled"][0]["source"], "model");
  EXPECT_EQ(model_json(&model)["modelled"][0]["summed"], true);
  f.pass(2.0, 1.0);
  const Modelled m = model.end_step();
  EXPECT_EQ(modelled_live_text(m, 2.0), "model: cpu-package0 ~140.0 W (130.0 to 150.0)");
  EXPECT_EQ(modelled_live_json(m, 2.0)["cpu-package0"]["power_w"], 140.0);
  const Modelled none = model.end_step();
  EXPECT_NE(modelled_live_text(none, 2.0).find("cpu-package0 - ("), std::string::npos);
  EXPECT_TRUE(modelled_live_json(none, 2.0)["cpu-package0"].contains("reason"));
}

class ModelOfGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    handle_ = ::dlopen(MOLEN_FAKE_NVML, RTLD_NOW);
    ASSERT_NE(handle_, nullptr) << ::dlerror();
    reset = reinterpret_cast<decltype(reset)>(::dlsym(handle_, "fake_nvml_reset"));
    busy = reinterpret_cast<decltype(busy)>(::dlsym(handle_, "fake_nvml_busy"));
    reset(2, 0);
    figures.of_each_gpu = PartFigures{"gpu", PowerCurve({{0.0, {70, 60, 80}}, {1.0, {700, 690, 710}}}), "described"};
  }
  void TearDown() override { ::dlclose(handle_); }
  ModelOptions options() { return {f.machine.machine, {MOLEN_FAKE_NVML, {}, Seconds(0.1)}, {}, 0.0, "energy.model"}; }

  void (*reset)(unsigned, int) = nullptr;
  void (*busy)(unsigned, unsigned) = nullptr;
  void* handle_ = nullptr;
  FakeProcessors f;
  PowerFigures figures;
};

TEST_F(ModelOfGpus, IdleAndPeakByTheUtilisationOfNvml) {
  PowerModel model(figures, {}, options());
  ASSERT_EQ(model.parts().size(), 2u);
  model.begin_step();
  busy(0, 100);
  f.machine.time += 1.0;
  const Modelled m = model.end_step();
  EXPECT_DOUBLE_EQ(m.scopes.at("gpu0")->value, 700.0);
  EXPECT_DOUBLE_EQ(m.scopes.at("gpu0")->most, 710.0);
  EXPECT_DOUBLE_EQ(m.scopes.at("gpu1")->value, 70.0);
  f.machine.time += 10.0;
  const Estimate blind = *model.end_step().scopes.at("gpu0");
  EXPECT_DOUBLE_EQ(blind.least, 600.0) << "nobody asked for 10 s, so it may have been idle";
  EXPECT_DOUBLE_EQ(blind.most, 7100.0);
}

TEST_F(ModelOfGpus, MeasuredOnesAndThoseThatDoNotTellAreLeftOut) {
  busy(1, 101);
  Meters measured;
  measured.meters.push_back(std::make_unique<SteadyMeter>("gpu0"));
  PowerModel model(figures, measured, options());
  EXPECT_TRUE(model.parts().empty());
  std::map<std::string, std::string> reasons;
  for (const auto& u : model.unavailable()) reasons[u.scope] = u.reason;
  EXPECT_NE(reasons["gpu0"].find("a meter reads gpu0"), std::string::npos);
  EXPECT_NE(reasons["gpu1"].find("Not Supported"), std::string::npos);
}

}  // namespace
}  // namespace molen::energy
