#include "plan/whole_run.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "arch/parameters.h"

namespace molen::plan {
namespace {

constexpr double kNoFailure = std::numeric_limits<double>::infinity();

cluster::Figure exact_figure(double value) {
  return {value, 0.0, "test"};
}

// 1,000 steps of 2 s on 10 nodes, with a checkpoint of 1 TB every 100 steps and 5 evaluations of 20 s. All ranks run
// alike and nothing fails.
RunPlan usual_plan() {
  RunPlan p;
  p.steps = 1000, p.save_every = 100, p.evaluations = 5;
  p.step = {2.0, 0.0}, p.evaluation = {20.0, 0.0};
  p.checkpoint = Bytes(1'000'000'000'000), p.batch = Bytes(4'000'000);
  p.devices_of_node = 8, p.nodes = 10;
  p.figures = {exact_figure(0.0),   exact_figure(0.0), exact_figure(1.0), exact_figure(kNoFailure),
               exact_figure(600.0), exact_figure(1e9), std::nullopt,      std::nullopt};
  p.power = {{1000.0, 0.0}, {400.0, 0.0}};
  p.pue = {1.2, 0.0}, p.intensity = {1e-7, 0.0};
  return p;
}

double part_of(const WholeRun& run, RunPart part) {
  return run.of(part).value;
}

TEST(WholeRun, WithoutFailuresIsTheSumOfItsParts) {
  const WholeRun run = whole_run(usual_plan());
  EXPECT_DOUBLE_EQ(part_of(run, RunPart::kUseful), 2000.0);
  EXPECT_DOUBLE_EQ(part_of(run, RunPart::kEvaluation), 100.0);
  EXPECT_DOUBLE_EQ(run.save.value, 100.0);  // 1 TB at 10 x 1 GB/s
  EXPECT_DOUBLE_EQ(part_of(run, RunPart::kCheckpoints), 1000.0);
  EXPECT_EQ(part_of(run, RunPart::kSlowest) + part_of(run, RunPart::kData) + part_of(run, RunPart::kRedone) +
                part_of(run, RunPart::kRestarts) + run.failures.value,
            0.0);
  EXPECT_DOUBLE_EQ(run.total.value, 3100.0);
  EXPECT_EQ(run.total.spread, 0.0);
  EXPECT_DOUBLE_EQ(run.goodput(), 2000.0 / 3100.0);
  EXPECT_EQ(run.saves, 10);
  EXPECT_EQ(run.best_every, 1000) << "without failures, one checkpoint is enough";
  EXPECT_DOUBLE_EQ(run.best_total_s, 2200.0);
  EXPECT_DOUBLE_EQ(run.energy.value, 2100.0 * 1000.0 + 1000.0 * 400.0);
  EXPECT_DOUBLE_EQ(run.lost.value, 1000.0 * 400.0);
  EXPECT_DOUBLE_EQ(run.site.value, 1.2 * 2.5e6);
  EXPECT_DOUBLE_EQ(run.emissions.value, 0.3);
}

TEST(WholeRun, SlowRanksLengthenStepsAndEvaluations) {
  RunPlan p = usual_plan();
  p.figures.slow_node_share = exact_figure(1.0), p.figures.slow_node_factor = exact_figure(1.5);
  const WholeRun run = whole_run(p);
  EXPECT_DOUBLE_EQ(run.slowest, 1.5);
  EXPECT_DOUBLE_EQ(part_of(run, RunPart::kUseful), 2000.0);
  EXPECT_DOUBLE_EQ(part_of(run, RunPart::kSlowest), 1000.0);
  EXPECT_DOUBLE_EQ(part_of(run, RunPart::kEvaluation), 150.0);
}

// The file system as a whole limits writing and reading apart, and a node limits both.
TEST(WholeRun, TheSlowerOfNodesAndFileSystemDecides) {
  RunPlan p = usual_plan();
  p.figures.write_bandwidth = exact_figure(5e9);
  EXPECT_DOUBLE_EQ(whole_run(p).save.value, 200.0);
  EXPECT_DOUBLE_EQ(whole_run(p).load.value, 100.0);
  p.figures.write_bandwidth = exact_figure(5e12), p.figures.read_bandwidth = exact_figure(1e9);
  EXPECT_DOUBLE_EQ(whole_run(p).save.value, 100.0);
  EXPECT_DOUBLE_EQ(whole_run(p).load.value, 1000.0);
}

// 4 MB a step at 1 MB/s take 4 s, which the loader reads while a step computes for 2 s.
TEST(WholeRun, DataStallsWhatIsSlowerThanAStep) {
  RunPlan p = usual_plan();
  p.figures.read_bandwidth = exact_figure(1e6);
  EXPECT_DOUBLE_EQ(part_of(whole_run(p), RunPart::kData), 2000.0);
  p.figures.read_bandwidth = exact_figure(2e6);
  EXPECT_DOUBLE_EQ(part_of(whole_run(p), RunPart::kData), 0.0);
}

// 400 steps and 150 more: two whole stretches of 200 and one of 150, each with its checkpoint.
TEST(WholeRun, AddsItsStretches) {
  RunPlan p = usual_plan();
  p.steps = 550, p.save_every = 200, p.evaluations = 0;
  p.figures.node_mtbf = exact_figure(20000.0);  // 2,000 s for 10 nodes
  const WholeRun run = whole_run(p);
  const StretchTime one = stretch_time(500.0, 2000.0, 700.0), last = stretch_time(400.0, 2000.0, 700.0);
  EXPECT_EQ(run.saves, 3);
  EXPECT_DOUBLE_EQ(run.job_mtbf_s, 2000.0);
  EXPECT_NEAR(run.total.value, 2.0 * one.seconds + last.seconds, 1e-9);
  EXPECT_NEAR(part_of(run, RunPart::kRedone), 2.0 * one.redone_s + last.redone_s, 1e-9);
  EXPECT_NEAR(part_of(run, RunPart::kRestarts), 2.0 * one.restarts_s + last.restarts_s, 1e-9);
  EXPECT_NEAR(run.failures.value, run.total.value / 2000.0, 1e-12);
  // Only chance is left in the intervals, as no figure has a spread.
  constexpr double kQuantile = 1.2815515655446004;  // of a standard normal variable, 0.9
  EXPECT_NEAR(run.total.spread, kQuantile * std::sqrt(2.0 * one.variance + last.variance) / run.total.value, 1e-12);
  EXPECT_NEAR(run.failures.spread, kQuantile / std::sqrt(run.failures.value), 1e-12);
}

// 1,000 W while the nodes work and 400 W while they wait, as in saves and restarts. The work that is lost was work and
// a part of a save in the proportion of both: 1,100 s and 300 s.
TEST(WholeRun, FailuresCostEnergy) {
  RunPlan p = usual_plan();
  p.steps = 550, p.save_every = 200, p.evaluations = 0;
  p.figures.node_mtbf = exact_figure(20000.0);
  const WholeRun run = whole_run(p);
  const double once = 1000.0 * 1100.0 + 400.0 * 300.0, again = part_of(run, RunPart::kRedone) * once / 1400.0,
               restarts = 400.0 * part_of(run, RunPart::kRestarts);
  EXPECT_GT(again, 0.0);
  EXPECT_NEAR(run.energy.value, once + again + restarts, 1e-6);
  EXPECT_NEAR(run.lost.value, 400.0 * 300.0 + again + restarts, 1e-6);
}

// A checkpoint follows the first step that ends after the period: 61 s hold 30.5 steps of 2 s.
TEST(WholeRun, APeriodInSecondsEndsWithAStep) {
  RunPlan p = usual_plan();
  p.save_every = 0, p.save_every_s = 61.0, p.evaluations = 0;
  EXPECT_EQ(whole_run(p).save_every, 31);
  p.save_every_s = 1.0;
  EXPECT_EQ(whole_run(p).save_every, 1);
  p.save_every_s = 1e9;
  EXPECT_EQ(whole_run(p).save_every, 1000);
  EXPECT_EQ(whole_run(p).saves, 1);
}

TEST(WholeRun, AnIntervalBeyondTheRunSavesOnce) {
  RunPlan p = usual_plan();
  p.save_every = 5000;
  EXPECT_EQ(whole_run(p).saves, 1);
  EXPECT_DOUBLE_EQ(part_of(whole_run(p), RunPart::kCheckpoints), 100.0);
}

// 310 s of work and save, and restarts of 700 s, with a failure every 100 s: exp(10.1) attempts at what takes 1,010 s.
// With a failure every second, the expectation exceeds a double.
TEST(WholeRun, OfFailuresThatLeaveNoTimeForACheckpointDoesNotEnd) {
  RunPlan p = usual_plan();
  p.figures.node_mtbf = exact_figure(1000.0);
  const WholeRun run = whole_run(p);
  EXPECT_TRUE(run.ends());
  EXPECT_NEAR(run.goodput(), 200.0 / (100.0 * std::exp(7.0) * std::expm1(3.1)), 1e-15);
  p.figures.node_mtbf = exact_figure(10.0);
  EXPECT_FALSE(whole_run(p).ends());
}

TEST(WholeRun, SpreadsOfFiguresBecomeIntervals) {
  RunPlan p = usual_plan();
  p.step.spread = 0.2;
  // A step and an evaluation move together: 2,100 s of 3,100 s between their intervals' ends.
  const double low = 2100.0 / 1.2 + 1000.0, high = 2100.0 * 1.2 + 1000.0;
  WholeRun run = whole_run(p);
  EXPECT_DOUBLE_EQ(run.of(RunPart::kUseful).spread, 0.2);
  EXPECT_DOUBLE_EQ(run.of(RunPart::kEvaluation).spread, 0.2);
  EXPECT_EQ(run.of(RunPart::kCheckpoints).spread, 0.0);
  EXPECT_NEAR(run.total.spread, std::sqrt(high / low) - 1.0, 1e-12);
  p.figures.node_bandwidth.spread = 1.0;
  const double slow = 2100.0 + 2000.0, fast = 2100.0 + 500.0;
  run = whole_run(p);
  EXPECT_NEAR(run.total.spread, std::hypot(std::sqrt(high / low) - 1.0, std::sqrt(slow / fast) - 1.0), 1e-12);
  EXPECT_DOUBLE_EQ(run.save.spread, 1.0);
  p.power.working.spread = 0.1, p.pue.spread = 0.05, p.intensity.spread = 0.3;
  const WholeRun powered = whole_run(p);
  EXPECT_NEAR(powered.energy.spread, std::hypot(run.energy.spread, 0.1), 1e-12);
  EXPECT_NEAR(powered.emissions.spread, std::hypot(run.energy.spread, 0.1, std::hypot(0.05, 0.3)), 1e-12);
}

// Llama 3 405B (arXiv 2407.21783, section 3.3.4): 54 days on 16,384 H100 with 419 unexpected interruptions, from which
// the assumed MTBF is, and more than 90 % of effective training time. Storage sustained 2 TB/s (section 3.3.1).
// Checkpoints at the best interval cannot be worse than theirs.
TEST(WholeRun, KeepsTheEffectiveTimeOfLlama3) {
  cluster::Cluster c = cluster::find("dgx-h100");
  c.reliability = {}, c.storage = {};
  c.storage.write_bandwidth = c.storage.read_bandwidth = exact_figure(2e12);
  RunPlan p = usual_plan();
  p.figures = run_figures(c);
  p.figures.step_jitter = exact_figure(0.0), p.figures.slow_node_share = exact_figure(0.0);
  p.devices_of_node = 8, p.nodes = 2048, p.evaluations = 0;
  p.checkpoint = Bytes(405'000'000'000 * 12);  // fp32 weights and both moments
  p.step = {10.0, 0.0}, p.steps = 54 * 8640, p.save_every = 1000;
  p.save_every = whole_run(p).best_every;
  const WholeRun run = whole_run(p);
  EXPECT_GT(run.goodput(), 0.9);
  EXPECT_LT(run.goodput(), 0.95);
  // The failures of 54 days of useful steps, and of the time that is lost on top of them.
  EXPECT_NEAR(run.failures.value, 419.0 / run.goodput(), 1e-6 * 419.0);
  EXPECT_LT(run.failures.low(), 419.0 / run.goodput());
}

// A measurement of the noise scale runs a step again.
TEST(WholeRun, MeasurementsOfTheNoiseScaleAreSteps) {
  RunPlan p = usual_plan();
  p.noise_scales = 40;
  EXPECT_DOUBLE_EQ(part_of(whole_run(p), RunPart::kEvaluation), 100.0 + 40 * 2.0);
  EXPECT_DOUBLE_EQ(part_of(whole_run(p), RunPart::kUseful), 2000.0);
}

RunPlan any_plan() {
  RunPlan p = usual_plan();
  p.steps = *rc::gen::inRange(1, 5000), p.save_every = *rc::gen::inRange(1, 2000);
  p.evaluations = *rc::gen::inRange(0, 10), p.nodes = *rc::gen::inRange(1, 200);
  p.noise_scales = *rc::gen::inRange(0, 10);
  p.step = {*rc::gen::inRange(1, 300) / 10.0, *rc::gen::inRange(0, 50) / 100.0};
  const auto figure = [](double low, double high) {
    const double at = *rc::gen::inRange(0, 1001) / 1000.0;
    return cluster::Figure{low + (high - low) * at, *rc::gen::inRange(0, 101) / 100.0, "any"};
  };
  p.figures = {figure(0.0, 0.1),    figure(0.0, 0.1),  figure(1.0, 1.5),  figure(1e6, 1e9),
               figure(1.0, 2000.0), figure(1e8, 1e10), figure(1e9, 1e12), std::nullopt};
  return p;
}

RC_GTEST_PROP(WholeRun, PartsAddUpAndHaveIntervals, ()) {
  const WholeRun run = whole_run(any_plan());
  RC_PRE(run.ends());
  double sum = 0.0;
  for (const Estimate& part : run.parts) {
    RC_ASSERT(part.value >= 0.0 && part.spread >= 0.0);
    sum += part.value;
  }
  RC_ASSERT(std::abs(sum / run.total.value - 1.0) < 1e-9);
  RC_ASSERT(run.total.low() <= run.total.value && run.total.value <= run.total.high());
  RC_ASSERT(run.goodput() > 0.0 && run.goodput() <= 1.0);
  RC_ASSERT(run.lost.value < run.energy.value);
  RC_ASSERT(std::abs(run.failures.value * run.job_mtbf_s / run.total.value - 1.0) < 1e-6);
}

RC_GTEST_PROP(WholeRun, WorseFiguresMakeItLonger, ()) {
  const RunPlan p = any_plan();
  RunPlan worse = p;
  const int which = *rc::gen::inRange(0, 8);
  if (which == 0) worse.figures.step_jitter.value += 0.01;
  if (which == 1) worse.figures.slow_node_factor.value += 0.1;
  if (which == 2) worse.figures.node_mtbf.value *= 0.9;
  if (which == 3) worse.figures.restart.value *= 1.1;
  if (which == 4) worse.figures.node_bandwidth.value *= 0.9;
  if (which == 5) worse.step.value *= 1.1;
  if (which == 6) ++worse.evaluations;
  if (which == 7) ++worse.noise_scales;
  const WholeRun before = whole_run(p), after = whole_run(worse);
  RC_PRE(before.ends());
  RC_ASSERT(after.total.value >= before.total.value * (1.0 - 1e-12));
}

// The time of a stretch is convex in its length, so by Jensen's inequality no division of the work into m stretches is
// faster than m equal ones, nor these than as many as the best interval gives, if that is within the run.
RC_GTEST_PROP(WholeRun, NoIntervalIsBetterThanTheBest, ()) {
  RunPlan p = any_plan();
  const WholeRun run = whole_run(p);
  RC_PRE(run.ends());
  double work = 0.0;
  for (const RunPart part : {RunPart::kUseful, RunPart::kSlowest, RunPart::kData, RunPart::kEvaluation})
    work += part_of(run, part);
  const double every = std::min(run.best_s, work);
  const auto stretch = [&](double seconds) {
    return stretch_time(seconds + run.save.value, run.job_mtbf_s, p.figures.restart.value + run.load.value).seconds;
  };
  const double least = work / every * stretch(every);
  RC_ASSERT(run.best_total_s >= least * (1.0 - 1e-9));
  p.save_every = *rc::gen::inRange<std::int64_t>(1, p.steps + 1);
  RC_ASSERT(whole_run(p).total.value >= least * (1.0 - 1e-9));
  // The best whole number of steps misses that by the stretch that it may have more, and by its rounding: among 20
  // steps and more, rounding changes the interval by 5 %, and the time per second of work by half of the square, 0.13
  // %, times a curvature of at most 1 + 2 best / M, since the derivative is zero at the best interval.
  const double best = static_cast<double>(run.best_every) * work / static_cast<double>(p.steps);
  if (run.best_every >= 20 && run.best_every < p.steps)
    RC_ASSERT(run.best_total_s <= least * (1.0 + 0.0013 * (1.0 + 2.0 * best / run.job_mtbf_s)) + stretch(best));
}

// --- the bytes of a checkpoint ---------------------------------------------------------------------------------------

program::Setting checkpoint_setting(const std::string& optimizer, DType compute = DType::kBF16,
                                    DType master = DType::kF32) {
  program::Setting s;
  s.optimizer = optimizer, s.compute = compute, s.master = master;
  return s;
}

TEST(CheckpointBytes, AreThoseOfWeightsAndStates) {
  const arch::Architecture arch = arch::preset("llama-tiny");
  const std::int64_t n = arch::num_parameters(arch);
  EXPECT_EQ(checkpoint_bytes(arch, checkpoint_setting("adamw")), Bytes(12 * n));
  EXPECT_EQ(checkpoint_bytes(arch, checkpoint_setting("lion")), Bytes(8 * n));
  EXPECT_EQ(checkpoint_bytes(arch, checkpoint_setting("adamw", DType::kF64, DType::kF64)), Bytes(24 * n));
  std::int64_t muon = 8 * n, adafactor = 4 * n;
  for (const arch::Parameter& p : arch::parameters(arch)) {
    const bool matrix = p.shape.size() == 2;
    if (!matrix || p.layer < 0) muon += 4 * p.elements();
    adafactor += 4 * (matrix ? p.shape[0] + p.shape[1] : p.shape[0]);
  }
  EXPECT_EQ(checkpoint_bytes(arch, checkpoint_setting("muon")), Bytes(muon));
  EXPECT_EQ(checkpoint_bytes(arch, checkpoint_setting("adafactor")), Bytes(adafactor));
}

}  // namespace
}  // namespace molen::plan
