#include "plan/step_prediction.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "plan/trial.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "sim/simulate.h"
#include "sim/test_costs.h"

namespace molen::plan {
namespace {

config::Config small(const std::string& layout, const std::string& precision = "fp32") {
  return config::parse(
      fmt::format("[model]\npreset = \"llama-tiny\"\n[data]\nsequence_length = 64\n[batch]\nglobal = 8\nmicro = 2\n"
                  "[precision]\ncompute = \"{}\"\n[math]\nthreads = 1\n[parallel]\n{}\n",
                  precision, layout),
      "trial.toml");
}

Machine ranks_here(int ranks) {
  Machine machine;
  machine.ranks = machine.local_ranks = ranks;
  return machine;
}

const char* const kLayouts[] = {"zero = 0", "zero = 1", "zero = 3", "tensor = 2", "pipeline = 2"};

// A calibration that has measured the ops of two ranks in all of these layouts, on as many cores as they want.
sim::Calibration calibration_of(const std::string& compute = "fp32", double slow = 1.0) {
  std::vector<program::Program> programs;
  std::optional<program::Setting> setting;
  for (const char* layout : kLayouts) {
    const StepPrograms built = step_programs(small(layout, compute), ranks_here(2));
    programs.insert(programs.end(), built.stages.begin(), built.stages.end());
    setting = built.setting;
  }
  auto samples = sim::samples_from(programs, 0.1);
  for (sim::Sample& s : samples) s.seconds *= slow;
  sim::Calibration calibration{"host", "cpu", "2026-01-01T00:00:00Z", "", {}};
  calibration.replace({sim::conditions_of(*setting, "threads"), {8, 8, "0-7"}, sim::CostModel::fit(samples)});
  return calibration;
}

PredictedOn on_calibration(const sim::Calibration& calibration) {
  return {"here.json", "", "", calibration};
}

// Whatever else a command wants to know of a step, its figures are the same to the last digit, and they are those of
// the simulator for the programs of the layout.
TEST(PredictedStep, ATrialHasTheFiguresOfASimulation) {
  const sim::Calibration calibration = calibration_of();
  for (const char* layout : kLayouts) {
    const Outcome trial = predict(small(layout), on_calibration(calibration), ranks_here(2));
    ASSERT_EQ(trial.kind, Outcome::Kind::kStep) << trial.why;
    const auto shown = predict_step(small(layout), ranks_here(2), {calibration, "here.json"},
                                    {.verified = true, .documents = true, .every_op = false});
    ASSERT_TRUE(shown.ok()) << shown.reason();
    const StepFigures& f = trial.figures;
    EXPECT_EQ(f.step_s, shown.value().step.seconds()) << layout;
    EXPECT_EQ(std::pair(f.low_s, f.high_s), shown.value().interval()) << layout;
    EXPECT_LT(f.low_s, f.step_s);
    const StepPrograms programs = step_programs(small(layout), ranks_here(2));
    EXPECT_EQ(*trial.memory, program::peak_of(programs.stages)) << layout;
    const auto costs = calibration.costs(sim::conditions_of(programs.setting, "threads"), "here.json");
    EXPECT_NEAR(f.step_s, sim::step_seconds(sim::simulate(program::Stages(programs.stages), costs)), 1e-9 * f.step_s);
    EXPECT_EQ(f.tokens, 8 * 64);
    EXPECT_EQ(f.ranks, 2);
    EXPECT_FALSE(f.mfu || f.step_j) << "a calibration has neither a peak nor joules";
  }
  const auto on = cluster::find("dgx-h100");
  const PredictedOn described = predicted_on("dgx-h100");
  for (const char* layout : kLayouts) {
    const auto machine = machine_on(on, 2);
    const Outcome trial = predict(small(layout), described, machine);
    ASSERT_EQ(trial.kind, Outcome::Kind::kStep) << trial.why;
    const StepDetail all{.verified = true, .documents = true, .every_op = false};
    const auto shown = predict_step(step_programs(small(layout), machine, all), on, all);
    EXPECT_EQ(trial.figures.step_s, shown.step.seconds()) << layout;
    EXPECT_EQ(std::pair(trial.figures.low_s, trial.figures.high_s), shown.interval()) << layout;
    EXPECT_EQ(*trial.figures.step_j, shown.energy->computers().value) << layout;
  }
}

// A measurement that lacks is named with what makes it, and nothing stands in for it.
TEST(PredictedStep, ALackingMeasurementIsAnOutcome) {
  sim::Calibration calibration = calibration_of();
  const auto outcome = [&](const std::string& layout, const std::string& precision = "fp32", int ranks = 2) {
    return predict(small(layout, precision), on_calibration(calibration), ranks_here(ranks));
  };
  const Outcome other = outcome("zero = 0", "bf16");
  EXPECT_EQ(other.kind, Outcome::Kind::kNotCalibrated);
  EXPECT_NE(other.why.find("no measurement with 2 ranks x 1 thread, bf16"), std::string::npos) << other.why;
  EXPECT_NE(other.why.find("`molen calibrate --ranks 2 --threads 1 --compute bf16` measures it"), std::string::npos);
  EXPECT_FALSE(other.memory);
  EXPECT_TRUE(outcome("zero = 0", "fp32", 4).figures.extrapolated.find("2 rank") != std::string::npos);
  // An op of the layout alone was not measured.
  const StepPrograms plain = step_programs(small("zero = 0"), ranks_here(2));
  calibration.entries[0].costs = sim::CostModel::fit(sim::samples_from(plain.stages, 0.0));
  EXPECT_EQ(outcome("zero = 0").kind, Outcome::Kind::kStep);
  const Outcome op = outcome("zero = 3");
  EXPECT_EQ(op.kind, Outcome::Kind::kNotCalibrated);
  EXPECT_NE(op.why.find("the calibration has no measurement of 'all_gather"), std::string::npos) << op.why;
  EXPECT_NE(op.why.find("; `molen calibrate --ranks 2 --threads 1 --compute fp32` measures it"), std::string::npos);
  const Outcome refused = outcome("tensor = 3");
  EXPECT_EQ(refused.kind, Outcome::Kind::kRefused);
  EXPECT_NE(refused.why.find("parallel.tensor"), std::string::npos) << refused.why;
}

// Without the machine, "auto" is the calibrated type that is fastest; with it, the type that a run here would take.
TEST(PredictedStep, AnOpenPrecisionIsOfTheCalibration) {
  sim::Calibration calibration = calibration_of("fp32");
  calibration.replace(calibration_of("bf16", 0.5).entries[0]);
  const auto compute = [&](const Machine& machine) {
    const auto prediction = predict_step(small("zero = 0", "auto"), machine, {calibration, "here.json"});
    EXPECT_TRUE(prediction.ok()) << prediction.reason();
    return prediction.value().config.precision.compute;
  };
  EXPECT_EQ(compute(ranks_here(2)), "bf16");
  calibration.replace(calibration_of("bf16", 4.0).entries[0]);
  EXPECT_EQ(compute(ranks_here(2)), "fp32");
  Machine measured = ranks_here(2);
  measured.measure_precision = [](int) { return PrecisionRates{.fp32 = 1.0, .bf16 = 2.0}; };
  EXPECT_EQ(compute(measured), "bf16") << "as a run on the machine would";
}

TEST(PredictedOn, IsADescriptionOrACalibration) {
  const PredictedOn described = predicted_on("dgx-h100");
  EXPECT_TRUE(described.described() && !described.calibrated());
  EXPECT_EQ(described.name, "dgx-h100");
  EXPECT_EQ(described.text, cluster::shipped_text("dgx-h100"));
  EXPECT_THROW(predicted_on("dgx-h100", "mpi"), UsageError);
  EXPECT_THROW(predicted_on("no-such-cluster"), UsageError);
  EXPECT_THROW(predicted_on("no-such-file.json"), UsageError);
  const fs::path path = fs::temp_directory_path() / fmt::format("molen_predicted_on_{}.json", ::getpid());
  sim::write_calibration(path, calibration_of());
  const PredictedOn calibrated = predicted_on(path.string(), "mpi");
  fs::remove(path);
  ASSERT_TRUE(calibrated.calibrated() && !calibrated.described());
  EXPECT_EQ(calibrated.calibrated()->entries.size(), 1U);
  EXPECT_EQ(calibrated.communicator, "mpi");
  EXPECT_THROW(require_device(config::parse("[device]\nkind = \"cuda\"\n", "t.toml"), calibrated), UsageError);
  EXPECT_THROW(require_device(config::parse("[device]\nkind = \"cpu\"\n", "t.toml"), described), UsageError);
  EXPECT_NO_THROW(require_device(config::parse("[device]\nkind = \"cpu\"\n", "t.toml"), calibrated));
}

}  // namespace
}  // namespace molen::plan
