#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "base/test_golden.h"
#include "program/build/build.h"
#include "program/ir/comparison.h"
#include "program/values/optimizer.h"
#include "sim/calibration.h"
#include "sim/simulate.h"
#include "sim/test_costs.h"

namespace molen::sim {
namespace {

TEST(CostModel, RecoversAMachineFromNoisySamples) {
  std::vector<program::Program> programs;
  for (const std::int64_t sequence : {32, 64, 100, 128, 200, 256})
    for (const std::int64_t hidden : {64, 128, 192, 256}) {
      auto a = arch::preset("llama-tiny");
      a.hidden = hidden;
      a.ffn = 3 * hidden;
      a.heads = hidden / 32;
      a.kv_heads = a.heads / 2;
      a.head_dim = 32;
      a.layers = 2;
      program::Setting s;
      s.sequence = sequence;
      s.micro_batch = 2;
      s.global_batch = 2;
      programs.push_back(program::build(a, s));
    }
  CostModel model = CostModel::fit(samples_from(programs, 0.05));
  auto a = arch::preset("llama-tiny");  // hidden 256; the samples had other numbers of layers
  program::Setting s;
  s.sequence = 160;
  s.micro_batch = 2;
  s.global_batch = 2;
  const auto p = program::build(a, s);
  double predicted = 0.0, truth = 0.0;
  for (const auto& step : p.bodies[0].steps) {
    predicted += model.seconds(p, step);
    truth += 1e-6 + step.hardware_flops.value / 1e11 + static_cast<double>(step.moved.value) / 1e10;
  }
  EXPECT_NEAR(predicted / truth, 1.0, 0.05);
  // The calibration factor multiplies every op's time.
  std::vector<double> undisturbed;
  for (const auto& step : p.bodies[0].steps) undisturbed.push_back(model.seconds(p, step));
  model.set_calibration_factor(1.25, 0.5);
  for (std::size_t i = 0; i < undisturbed.size(); ++i)
    EXPECT_DOUBLE_EQ(model.seconds(p, p.bodies[0].steps[i]), 1.25 * undisturbed[i]) << i;
  const CostModel again = CostModel::from_json(model.to_json(), "test");
  EXPECT_EQ(again.calibration_factor(), 1.25);
  EXPECT_EQ(again.factor_spread(), model.factor_spread());
  EXPECT_EQ(again.spread("forward down"), model.spread("forward down"));
  EXPECT_DOUBLE_EQ(again.seconds(p, p.bodies[0].steps[5]), model.seconds(p, p.bodies[0].steps[5]));
}

// Calculated by hand, for one kind with t = 3e-6 * FLOPs^2 and no outliers: the level, the exponent, the scatter and
// the median.
TEST(CostModel, FitsAPowerLawByHand) {
  std::vector<Sample> samples;
  for (const double flops : {10.0, 20.0, 40.0, 80.0, 160.0})
    for (const double off : {std::exp(-0.1), std::exp(0.1)})
      samples.push_back({"op", {1.0, std::log(flops)}, 3e-6 * flops * flops * off});
  const CostModel model = CostModel::fit(samples);
  const Fit& fit = model.fits().at("op");
  EXPECT_EQ(fit.samples, 10);
  // A ridge of 0.05 pulls the exponent from 2 towards 1. The residual has the scatter and the effect of this pull.
  const double variance = 2 * std::log(2.0) * std::log(2.0), exponent = 1 + variance / (variance + 0.05);
  EXPECT_NEAR(fit.weights[1], exponent, 1e-9);
  EXPECT_NEAR(fit.center[1], std::log(40.0), 1e-12);
  EXPECT_NEAR(model.seconds("op", {1.0, std::log(40.0)}), 3e-6 * 1600, 1e-9);
  EXPECT_NEAR(fit.residual, std::sqrt(0.01 + (2 - exponent) * (2 - exponent) * variance), 1e-9);
  EXPECT_NEAR(fit.typical_s, 3e-6 * 1600, 3e-6 * 1600 * 0.11);
  const CostModel read = CostModel::from_json(model.to_json(), "test");
  EXPECT_EQ(read.fits().at("op").residual, fit.residual);
  EXPECT_EQ(read.fits().at("op").typical_s, fit.typical_s);
  EXPECT_EQ(read.fits().at("op").samples, 10);
}

TEST(CostModel, TypicalSecondsAreTheMedianInAnyOrder) {
  std::vector<Sample> samples;
  for (const double seconds : {5.0, 1.0, 9.0, 3.0, 7.0}) samples.push_back({"op", {1.0}, seconds});
  EXPECT_EQ(CostModel::fit(samples).fits().at("op").typical_s, 5.0);
  samples.push_back({"op", {1.0}, 0.5});
  EXPECT_EQ(CostModel::fit(samples).fits().at("op").typical_s, 5.0);  // the upper one of the two in the middle
  samples.push_back({"op", {1.0}, 2.0});
  EXPECT_EQ(CostModel::fit(samples).fits().at("op").typical_s, 3.0);
}

// An op for which the program text names other kernels than the setting's is measured as a kind of its own.
TEST(CostModel, OtherKernelsAreAnotherKind) {
  program::Setting s;
  s.sequence = 16;
  program::Program p = program::build(arch::preset("llama-tiny"), s);
  const auto attention = [&]() -> program::Step& {
    for (program::Step& step : p.bodies[0].steps)
      if (program::kind_of(step.op) == "forward attention") return step;
    throw Error("no attention");
  };
  EXPECT_EQ(fitted_kind(p, attention()), "forward attention");
  attention().attributes.kernel = arch::Kernels("unfused");
  EXPECT_EQ(fitted_kind(p, attention()), "forward attention by unfused");
  const auto same = conditions_of(s, "self");
  s.other_kernels = {{arch::Part::kAttention, arch::Kernels("unfused")}};
  p = program::build(arch::preset("llama-tiny"), s);
  EXPECT_EQ(fitted_kind(p, attention()), "forward attention by unfused");
  EXPECT_EQ(conditions_of(s, "self"), same);
  try {
    CostModel::fit({{"forward attention", {1.0}, 2e-3}}).seconds("forward attention by unfused", {1.0});
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("with a configuration that chooses these kernels"), std::string::npos);
  }
}

// A recomputed kind without samples costs what its forward does; any other kind without samples is refused by name.
// The tokens among the features are those of the op: a chunk of the head, a piece of the rows, or all rows.
TEST(CostModel, FeaturesAreOfTheOpsOwnRows) {
  program::Setting s = program_of(1, 0, 4).setting;
  s.mesh[mesh::Axis::kTp] = 2;
  s.sequence_parallel = true;
  s.tensor_chunks = 2;
  s.head_chunk = 48;
  const auto p = program::build(program_of(1, 0, 4).arch, s);
  std::map<std::string, std::set<double>> tokens;
  for (const auto& body : p.bodies)
    for (const auto& step : body.steps)
      if (std::holds_alternative<program::Compute>(step.op))
        tokens[program::kind_of(step.op)].insert(std::round(std::exp(features_of(step)[3])));
  EXPECT_EQ(tokens.at("forward norm_up"), (std::set<double>{64}));     // one of two pieces of 128 tokens
  EXPECT_EQ(tokens.at("forward attention"), (std::set<double>{128}));  // all rows
  EXPECT_EQ(tokens.at("forward head_logits"), (std::set<double>{48, 32}));
}

TEST(CostModel, AnOptimizersStepHasTheKindOfItsRule) {
  program::Setting s = program_of(1, 0, 4).setting;
  const auto kinds = [&](const char* optimizer, int tensor) {
    s.optimizer = optimizer;
    s.mesh[mesh::Axis::kTp] = tensor;
    const auto p = program::build(program_of(1, 0, 4).arch, s);
    std::set<std::string> found;
    for (const auto& body : p.bodies)
      for (const auto& step : body.steps)
        if (std::holds_alternative<program::OptimizerStep>(step.op)) found.insert(fitted_kind(p, step));
    return found;
  };
  EXPECT_EQ(kinds("adamw", 1), (std::set<std::string>{"optimizer_step"}));
  EXPECT_EQ(kinds("lion", 2), (std::set<std::string>{"optimizer_step by lion"}));
  EXPECT_EQ(kinds("muon", 1), (std::set<std::string>{"optimizer_step by muon", "optimizer_step by muon, matrices"}));
  EXPECT_EQ(kinds("muon", 2), (std::set<std::string>{"optimizer_step by muon", "optimizer_step by muon, direction",
                                                     "optimizer_step by muon, apply, matrices"}));
}

TEST(CostModel, RecomputationCostsTheForward) {
  const CostModel model = CostModel::fit({{"forward attention", {1.0}, 2e-3}, {"all_reduce", {1.0}, 1e-3}});
  EXPECT_DOUBLE_EQ(model.seconds("recompute attention", {1.0}), model.seconds("forward attention", {1.0}));
  for (const char* kind : {"recompute norm", "backward attention", "recompute"}) {
    try {
      model.seconds(kind, {1.0});
      ADD_FAILURE() << kind;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(fmt::format("no measurement of '{}'", kind)), std::string::npos);
    }
  }
  try {
    model.seconds("all_reduce", {1.0, 2.0, 3.0});
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("fit of 'all_reduce' has 1 weights where 3 are needed"),
              std::string::npos);
  }
}

TEST(CostModel, RefusesDamage) {
  const Json good = CostModel::fit({{"op", {1.0, 2.0}, 1e-3}}).to_json();
  EXPECT_NO_THROW(CostModel::from_json(good, "test"));
  for (const Json& factor :
       {Json(0.0), Json(-1.0), Json(nullptr), Json("1"), Json(std::numeric_limits<double>::infinity())}) {
    Json bad = good;
    bad["calibration_factor"] = factor;
    EXPECT_NOTED(CostModel::from_json(bad, "test"), UsageError) << factor;
  }
  for (const Json& residual : {Json(-0.1), Json(21.0), Json(nullptr), Json("1")}) {
    Json bad = good;
    bad["factor_residual"] = residual;
    EXPECT_NOTED(CostModel::from_json(bad, "test"), UsageError) << residual;
    bad = good;
    bad["kinds"]["op"]["residual"] = residual;
    EXPECT_NOTED(CostModel::from_json(bad, "test"), UsageError) << residual;
  }
  Json bad = good;
  bad["kinds"]["op"]["center"] = {1.0};
  EXPECT_NOTED(CostModel::from_json(bad, "test"), UsageError);
  bad["kinds"]["op"]["center"] = bad["kinds"]["op"]["weights"] = Json::array();
  EXPECT_NOTED(CostModel::from_json(bad, "test"), UsageError);
}

// Copies from and to the host read and write at the memory rate of the optimizer step; an accumulating copy reads once
// more.
TEST(Costs, CopiesMoveAtTheRateOfTheOptimizerStep) {
  std::vector<Sample> samples;
  for (const double bytes : {1e6, 1e7, 1e8})
    samples.push_back({"optimizer_step", {1.0, std::log(bytes)}, bytes * 1e-10});
  const MeasuredCosts costs(CostModel::fit(samples), {4, 1, 1}, "self");
  program::Step step;
  step.moved = Bytes(10000000);
  const auto with = [&](program::Op op, program::Access to = program::Access::kWrite) {
    step.op = std::move(op);
    step.operands = {{program::Arg::kTo, 0, program::Range::kAll, to}};
    return costs.seconds(program_of(1, 0, 4), step);
  };
  EXPECT_NEAR(with(program::CopyToHost{}), 2e-3, 1e-8);
  EXPECT_NEAR(with(program::CopyToHost{}, program::Access::kUpdate), 3e-3, 1e-8);
  EXPECT_NEAR(with(program::CopyToDevice{}), 2e-3, 1e-8);
}

// A calibration that has copies gives them the time of their own kind, in which a copy that adds is another one. Where
// it has none, the costs say so by the name of the kind.
TEST(Costs, MeasuredCopiesHaveTheirOwnTime) {
  auto a = arch::preset("llama-tiny");
  program::Setting s;
  s.global_batch = 4, s.sequence = 64;
  s.offload = {true, true, true, true};
  const program::Program p = program::build(a, s);
  std::vector<Sample> samples;
  const auto add = [&](const std::string& kind, double per_byte) {
    for (const double bytes : {1e3, 1e5, 1e7}) samples.push_back({kind, {1.0, std::log(bytes)}, bytes * per_byte});
  };
  add("optimizer_step", 1e-10), add("epilogue add", 1e-10), add("epilogue copy", 1e-10);
  const MeasuredCosts older(CostModel::fit(samples), {4, 1, 1}, "self");
  EXPECT_EQ(older.extrapolated(), "");
  EXPECT_EQ(
      older.extrapolated({&p}),
      "these conditions; copy_to_device, copy_to_host, copy_to_host that adds at the optimizer step's memory rate");
  add("copy_to_host", 3e-9), add("copy_to_host that adds", 5e-9), add("copy_to_device", 7e-9);
  const CostModel model = CostModel::fit(samples);
  const MeasuredCosts costs(model, {4, 1, 1}, "self");
  EXPECT_EQ(costs.extrapolated({&p}), "");
  std::set<std::string> kinds;
  for (const auto& body : p.bodies)
    for (const program::Step& step : body.steps) {
      if (!program::is_copy(step.op)) continue;
      const std::string kind = fitted_kind(p, step);
      kinds.insert(kind);
      const double per_byte = kind == "copy_to_device" ? 7e-9 : kind == "copy_to_host" ? 3e-9 : 5e-9;
      double expected = static_cast<double>(step.moved.value) * per_byte;
      for (const double epilogue : costs.epilogue_seconds(step)) expected += epilogue;
      EXPECT_NEAR(costs.seconds(p, step), expected, 1e-6 * expected) << kind;
    }
  EXPECT_EQ(kinds, (std::set<std::string>{"copy_to_device", "copy_to_host", "copy_to_host that adds"}));
}

// Without a measured collective, its bytes move at the rate of the optimizer step, and zero bytes cost what one byte
// does.
TEST(Costs, UnmeasuredCollectivesMoveAtTheRateOfTheOptimizerStep) {
  std::vector<Sample> samples;
  for (const double bytes : {1.0, 1e4, 1e8})
    samples.push_back({"optimizer_step", {1.0, std::log(bytes)}, bytes * 1e-10});
  const CostModel model = CostModel::fit(samples);
  const MeasuredCosts costs(model, {4, 0, 1}, "threads");
  const auto p = program_of(2, 0, 8);
  int seen = 0;
  for (const auto& body : p.bodies)
    for (program::Step step : body.steps)
      if (std::holds_alternative<program::AllReduce>(step.op)) {
        ++seen;
        const double bytes = static_cast<double>(step.moved.value);
        EXPECT_DOUBLE_EQ(costs.seconds(p, step), model.seconds("optimizer_step", {1.0, std::log(2 * bytes)}));
        step.moved = Bytes(0);
        EXPECT_DOUBLE_EQ(costs.seconds(p, step), model.seconds("optimizer_step", {1.0, std::log(2.0)}));
        EXPECT_DOUBLE_EQ(MeasuredCosts(model, {4, 0, 1}, "mpi").seconds(p, step),
                         model.seconds("optimizer_step", {1.0, 0.0}));
      }
  EXPECT_GT(seen, 0);
}

// Messages between stages and around a ring cost what was measured for them, however many ranks there were. Those that
// were not measured are copies of the receiver among threads, and have no basis otherwise.
TEST(Costs, AMessageHasTwoEnds) {
  auto a = arch::preset("llama-tiny");
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = s.mesh[mesh::Axis::kCp] = 2;
  s.context_form = program::ContextForm::kRing;
  s.global_batch = 8, s.sequence = 64;
  const std::vector<program::Program> stages = program::build_stages(a, s);
  std::vector<Sample> samples;
  for (const double bytes : {1.0, 1e4, 1e8})
    samples.push_back({"optimizer_step", {1.0, std::log(bytes)}, bytes * 1e-10});
  const CostModel measured = CostModel::fit(samples_from(stages, 0.0)), copies = CostModel::fit(samples);
  const CoreContention of_eight{8, 8, 1};  // four times as many ranks as stages, or as ranks of a ring
  int sent = 0, received = 0, passed_on = 0;
  const auto with_epilogues = [](const MeasuredCosts& costs, const program::Step& step, double seconds) {
    for (const double epilogue : costs.epilogue_seconds(step)) seconds += epilogue;
    return seconds;
  };
  for (const program::Program& p : stages)
    for (const auto& body : p.bodies)
      for (const program::Step& step : body.steps) {
        const bool sends = std::holds_alternative<program::Send>(step.op),
                   receives = std::holds_alternative<program::Receive>(step.op),
                   passes_on = std::holds_alternative<program::RingExchange>(step.op);
        if (!sends && !receives && !passes_on) continue;
        sent += sends, received += receives, passed_on += passes_on;
        for (const std::string communicator : {"threads", "mpi"}) {
          const MeasuredCosts costs(measured, of_eight, communicator);
          EXPECT_DOUBLE_EQ(costs.seconds(p, step), with_epilogues(costs, step, measured.seconds(p, step)));
        }
        const MeasuredCosts costs(copies, of_eight, "threads");
        const double twice = 2.0 * static_cast<double>(step.moved.value),
                     copied = sends ? 0.0 : copies.seconds("optimizer_step", {1.0, std::log(twice)});
        EXPECT_DOUBLE_EQ(costs.seconds(p, step), with_epilogues(costs, step, copied));
        EXPECT_THROW(MeasuredCosts(copies, of_eight, "mpi").seconds(p, step), UsageError);
      }
  EXPECT_GT(sent, 0);
  EXPECT_GT(received, 0);
  EXPECT_GT(passed_on, 0);
}

TEST(Costs, TrafficOfEachCollective) {
  EXPECT_DOUBLE_EQ(collective_traffic("all_reduce", 12.0, 4, "threads"), 24.0);
  EXPECT_DOUBLE_EQ(collective_traffic("all_gather", 12.0, 4, "threads"), 24.0);
  EXPECT_DOUBLE_EQ(collective_traffic("reduce_scatter", 12.0, 4, "threads"), 15.0);
  EXPECT_DOUBLE_EQ(collective_traffic("all_reduce", 12.0, 4, "nccl"), 18.0);
  EXPECT_DOUBLE_EQ(collective_traffic("reduce_scatter", 12.0, 4, "nccl"), 9.0);
}

TEST(Calibration, IsWrittenIntoAFolderThatIsNotThere) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("molen_calibration_folder_{}", ::getpid());
  write_calibration(folder / "deep" / "here.json", {"host", "cpu", "2026-01-01T00:00:00Z", {}, {}});
  EXPECT_EQ(read_calibration(folder / "deep" / "here.json").host, "host");
  fs::remove_all(folder);
  EXPECT_EQ((Conditions{2, 3, "bf16", "aten", "mpi"}.text()), "2 ranks x 3 threads, bf16, aten kernels, mpi");
}

TEST(CostModel, RefusesWhatItHasNotSeen) {
  const GoldenMessages golden;
  const auto one = program_of(1, 0, 4), two = program_of(2, 0, 4);
  const MeasuredCosts model(CostModel::fit(samples_from({one}, 0.0)), {}, "threads");
  EXPECT_NOTED(simulate(program::Stages(two), model), UsageError);
}

TEST(Calibration, RoundTripAndMissingConditions) {
  const GoldenMessages golden;
  const fs::path path = fs::temp_directory_path() / fmt::format("molen_calibration_{}.json", ::getpid());
  const auto p = program_of(1, 0, 4);
  Calibration c{"host", "cpu", "2026-01-01T00:00:00Z", {}, {}};
  c.replace({conditions_of(p.setting, "self"), {}, CostModel::fit(samples_from({p}, 0.0))});
  write_calibration(path, c);
  const Calibration read = read_calibration(path);
  EXPECT_EQ(read.entries[0].cores, c.entries[0].cores);
  EXPECT_TRUE(read.has(conditions_of(p.setting, "self")));
  EXPECT_NOTED(read.costs({7, 1, "fp32", "fused", "mpi"}, "x"), UsageError);
  write_file_atomic(path, "{}");
  EXPECT_NOTED(read_calibration(path), UsageError);
  fs::remove(path);
}

// MeasuredCosts on a machine whose ops take `slow` times as long, with `ranks` ranks of `threads` threads.
Calibration::Entry entry_of(int ranks, const std::string& communicator, double slow, int cores = 2, int threads = 1) {
  auto samples = samples_from({program_of(ranks, 0, 4 * ranks), program_of(ranks, 1, 4 * ranks)}, 0.0);
  for (Sample& s : samples) s.seconds *= slow;
  return {{ranks, threads, "fp32", "fused", communicator}, {cores, cores, "0-1"}, CostModel::fit(samples)};
}

double predicted_step(const Calibration& c, int ranks, const std::string& communicator, int zero = 0) {
  const auto p = program_of(ranks, zero, 4 * ranks);
  return step_seconds(simulate(program::Stages(p), c.costs({ranks, 1, "fp32", "fused", communicator}, "test")));
}

TEST(CoreContention, CoresAreSharedAlike) {
  const CoreContention s{4, 3, 2};
  EXPECT_EQ(s.busy(), 4);
  EXPECT_DOUBLE_EQ(s.rate(6), 4.0 / 6.0);
  EXPECT_DOUBLE_EQ(s.rate(9), 4.0 / 9.0);
  EXPECT_DOUBLE_EQ(s.rate(3), 1.0);
  EXPECT_DOUBLE_EQ(s.rate(4), 1.0);
}

TEST(Extrapolate, WhatWasMeasuredIsUsedAsItIs) {
  Calibration c;
  for (const int ranks : {1, 2, 3}) c.replace(entry_of(ranks, ranks == 1 ? "self" : "threads", 1.0 + 0.3 * ranks));
  for (const auto& e : c.entries) {
    const MeasuredCosts costs = c.costs(e.conditions, "test");
    EXPECT_EQ(costs.extrapolated(), "");
    const auto p = program_of(e.conditions.ranks, 0, 4 * e.conditions.ranks);
    for (const auto& step : p.bodies[0].steps) EXPECT_EQ(costs.seconds(p, step), e.costs.seconds(p, step));
  }
}

TEST(Costs, CollectivesAreAmongTheRanksOfTheirAxis) {
  const CostModel model = CostModel::fit(samples_from({program_of(4, 0, 16)}, 0.0));
  auto a = arch::preset("llama-tiny");
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = s.mesh[mesh::Axis::kTp] = 2;
  s.global_batch = 16;
  s.sequence = 64;
  const auto p = program::build(a, s);
  const MeasuredCosts mpi(model, {4, 4, 1}, "mpi"), threads(model, {4, 4, 1}, "threads");
  int seen = 0;
  for (const auto& body : p.bodies)
    for (const auto& step : body.steps)
      if (std::holds_alternative<program::AllReduce>(step.op)) {
        ++seen;
        EXPECT_DOUBLE_EQ(mpi.seconds(p, step), model.seconds(p, step) * (1.0 / 2) / (3.0 / 4));
        EXPECT_DOUBLE_EQ(threads.seconds(p, step), model.seconds(p, step));
      }
  EXPECT_GT(seen, 0);
}

// Where each expert is on one rank, the groups of its unit have one rank, which copies: a gradient to its shard, and a
// shard to where it is used.
TEST(Costs, ACollectiveOfOneRankIsACopy) {
  std::vector<Sample> samples;
  for (const double bytes : {1.0, 1e4, 1e8})
    samples.push_back({"optimizer_step", {1.0, std::log(bytes)}, bytes * 1e-10});
  const CostModel model = CostModel::fit(samples);
  auto a = arch::preset("llama-tiny");
  a.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 64};
  program::Setting s;
  s.mesh[mesh::Axis::kEp] = 2;
  s.global_batch = 8, s.sequence = 64, s.zero = 3;
  const auto p = program::build(a, s);
  int gathered = 0, reduced = 0;
  for (const std::string communicator : {"mpi", "threads", "nccl"})
    for (const auto& body : p.bodies)
      for (const auto& step : body.steps) {
        if (program::axis_of(step.op) != program::Axis::kExpertShard) continue;
        const auto copying = [&](double bytes) { return model.seconds("optimizer_step", {1.0, std::log(bytes)}); };
        ASSERT_GT(step.moved.value, 0);
        const double want =
            copying((step.updates(program::Arg::kTo) ? 3.0 : 2.0) * static_cast<double>(step.moved.value));
        EXPECT_DOUBLE_EQ(MeasuredCosts(model, {4, 2, 1}, communicator).seconds(p, step), want);
        gathered += std::holds_alternative<program::AllGather>(step.op);
        reduced += std::holds_alternative<program::ReduceScatter>(step.op);
      }
  EXPECT_GT(gathered, 0);
  EXPECT_GT(reduced, 0);
}

// The simulated time of a collective includes its epilogues. An epilogue takes the time of its own measured kind. If
// that kind was not measured, its bytes move at the rate of the optimizer step.
TEST(Costs, EpiloguesAreCountedBesideTheirOp) {
  const auto p = program_of(2, 2, 8);  // two micro-batches, so the second sum adds to the first
  std::vector<Sample> samples = samples_from({p}, 0.0);
  const CostModel without = CostModel::fit(samples);
  for (const double bytes : {1e3, 1e5, 1e7}) samples.push_back({"epilogue add", {1.0, std::log(bytes)}, bytes * 1e-8});
  const CostModel with = CostModel::fit(samples);
  int seen = 0;
  for (const auto& body : p.bodies)
    for (const program::Step& step : body.steps) {
      const bool adds = std::holds_alternative<program::ReduceScatter>(step.op) && step.updates(program::Arg::kTo);
      ASSERT_EQ(step.epilogues.size(), adds ? 1u : 0u);
      const MeasuredCosts measured(with, {4, 2, 1}, "mpi"), unmeasured(without, {4, 2, 1}, "mpi");
      const double own = with.seconds(p, step);
      if (!adds) EXPECT_DOUBLE_EQ(measured.seconds(p, step), own);
      if (!adds) continue;
      ++seen;
      const auto bytes = static_cast<double>(step.epilogues[0].moved.value);
      EXPECT_NEAR(measured.seconds(p, step), own + bytes * 1e-8, 1e-9 * bytes * 1e-8);
      EXPECT_DOUBLE_EQ(unmeasured.seconds(p, step), own + without.seconds("optimizer_step", {1.0, std::log(bytes)}));
    }
  EXPECT_GT(seen, 0);
  const program::Stages stages(p);
  const auto& ops = stages.ops(0);
  const MeasuredCosts costs(with, {4, 2, 1}, "mpi");
  const program::Timeline timeline = simulate(stages, costs).front();
  double adding = 0.0;
  for (const auto& op : ops)
    for (const double seconds : costs.epilogue_seconds(*op.step)) adding += seconds;
  const auto rows = program::compare(ops, timeline, timeline).rows;
  const auto row = std::ranges::find(rows, "epilogue add", &program::KindRow::kind);
  ASSERT_NE(row, rows.end());
  EXPECT_GE(row->predicted_s, adding * (1 - 1e-12));  // more where threads share cores
  EXPECT_LT(row->predicted_s, 4 * adding);
}

TEST(Extrapolate, MoreRanksOnTheSameCoresAreNeverFaster) {
  for (const std::string communicator : {"threads", "mpi"}) {
    Calibration c;
    c.replace(entry_of(1, "self", 1.0, 8));
    c.replace(entry_of(4, communicator, 1.3, 8));
    double before = 0.0;
    for (int ranks = 2; ranks <= 20; ++ranks) {
      if (ranks == 4) continue;
      const MeasuredCosts costs = c.costs({ranks, 1, "fp32", "fused", communicator}, "test");
      EXPECT_NE(costs.extrapolated(), "");
      const double seconds = predicted_step(c, ranks, communicator);
      EXPECT_GT(seconds, before) << ranks << " ranks, " << communicator;
      before = seconds;
    }
  }
}

TEST(Extrapolate, RanksBeyondTheCoresTakeTurns) {
  Calibration c;
  c.replace(entry_of(2, "threads", 1.0));
  const auto p = program_of(2, 0, 8), q = program_of(3, 0, 12);
  const MeasuredCosts two = c.costs({2, 1, "fp32", "fused", "threads"}, "test");
  const MeasuredCosts three = c.costs({3, 1, "fp32", "fused", "threads"}, "test");
  EXPECT_NE(three.extrapolated().find("3 threads share 2 cores"), std::string::npos) << three.extrapolated();
  // Each op does the same work at two thirds of the speed; an all-reduce among threads moves the same bytes per rank.
  EXPECT_NEAR(predicted_step(c, 3, "threads") / predicted_step(c, 2, "threads"), 1.5, 0.01);
  for (std::size_t k = 0; k < q.bodies[0].steps.size(); ++k)
    if (q.bodies[0].steps[k].stream == program::Stream::kCompute) {
      EXPECT_DOUBLE_EQ(three.seconds(q, q.bodies[0].steps[k]), two.seconds(q, q.bodies[0].steps[k]));
    }
}

TEST(Extrapolate, BusyCoresSlowEachOtherAsMeasured) {
  Calibration c;
  c.replace(entry_of(1, "self", 1.0, 16));
  const auto ratio_of = [&](int ranks) {
    const auto p = program_of(1, 0, 4);
    const MeasuredCosts costs = c.costs({ranks, 1, "fp32", "fused", "threads"}, "test");
    return costs.seconds(p, p.bodies[0].steps[3]) / c.entries[0].costs.seconds(p, p.bodies[0].steps[3]);
  };
  EXPECT_DOUBLE_EQ(ratio_of(4), 1.0);  // a single measurement says nothing about contention
  c.replace(entry_of(8, "mpi", std::sqrt(8.0), 16));
  EXPECT_NEAR(ratio_of(2), std::sqrt(2.0), 1e-9);  // grows as the root of the busy cores
  EXPECT_NEAR(ratio_of(16), 4.0, 1e-9);
  c.replace(entry_of(8, "mpi", 0.5, 16));  // noise: more busy cores do not make an op faster
  EXPECT_NEAR(ratio_of(2), 1.0, 1e-9);
  c.replace(entry_of(8, "mpi", 1000.0, 16));  // nor does memory slow down more than all cores waiting for it explain
  EXPECT_NEAR(ratio_of(2), 2.0, 1e-9);
}

TEST(Extrapolate, CollectivesByBytesMoved) {
  EXPECT_DOUBLE_EQ(collective_traffic("all_reduce", 12.0, 3, "mpi"), 16.0);
  EXPECT_DOUBLE_EQ(collective_traffic("all_gather", 12.0, 3, "mpi"), 8.0);
  EXPECT_DOUBLE_EQ(collective_traffic("reduce_scatter", 12.0, 3, "threads"), 16.0);
  Calibration c;
  c.replace(entry_of(2, "mpi", 1.0));
  const auto p = program_of(4, 0, 16), q = program_of(2, 0, 8);
  const MeasuredCosts two = c.costs({2, 1, "fp32", "fused", "mpi"}, "test"),
                      four = c.costs({4, 1, "fp32", "fused", "mpi"}, "test");
  int reductions = 0;
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      const auto &of_four = p.bodies[b].steps[k], &of_two = q.bodies[b].steps[k];
      const std::string kind = program::kind_of(of_four.op);
      ASSERT_EQ(kind, program::kind_of(of_two.op));
      if (kind == "all_reduce") {
        ++reductions;
        EXPECT_NEAR(four.seconds(p, of_four) / two.seconds(q, of_two), 1.5, 1e-9);
      } else if (kind == "reduce_scalars") {
        EXPECT_NEAR(four.seconds(p, of_four) / two.seconds(q, of_two), 2.0, 1e-9);  // the ratio of their rounds
      }
    }
  EXPECT_GT(reductions, 0);
}

TEST(Extrapolate, RefusesWithoutABasis) {
  const GoldenMessages golden;
  Calibration c;
  c.replace(entry_of(1, "self", 1.0));
  c.replace(entry_of(1, "self", 1.0, 2, 2));
  const auto reason = [&](const Conditions& wanted) { return c.find(wanted).reason(); };
  EXPECT_EQ(reason({2, 1, "fp32", "fused", "threads"}), "");  // collectives of threads move memory
  for (const auto& [wanted, why] : std::vector<std::pair<Conditions, std::string>>{
           {{1, 3, "fp32", "fused", "self"}, "threads a rank"},
           {{1, 1, "bf16", "fused", "self"}, "bf16 with aten kernels alone"},
           {{1, 1, "bf16", "aten", "self"}, "`molen calibrate --ranks 1 --threads 1 --compute bf16` measures it"},
           {{1, 2, "fp64", "reference", "self"}, "`molen calibrate --ranks 1 --threads 2 --compute fp64` measures it"},
           {{4, 1, "fp16", "aten", "threads"}, "`molen calibrate --ranks 4 --threads 1 --compute fp16` measures it"},
           {{2, 1, "fp32", "fused", "nccl"}, "`molen calibrate` cannot measure 2 ranks over nccl"},
           {{1, 1, "fp32", "reference", "self"}, "kernels"},
           {{2, 2, "fp32", "fused", "threads"}, "2 ranks of 2 threads on 2 cores"},
           {{2, 1, "fp32", "fused", "mpi"}, "no collective of 'mpi'"},
           {{2, 1, "fp32", "fused", "mpi"}, "`mpirun -n 2 molen calibrate --threads 1 --compute fp32` measures it"}}) {
    EXPECT_NE(reason(wanted).find(why), std::string::npos) << reason(wanted);
    EXPECT_NE(reason(wanted).find("1 rank x 2 threads"), std::string::npos) << "names what is there";
    EXPECT_NOTED(c.costs(wanted, "x"), UsageError);
  }
  const std::string basis =
                        "the number of threads a rank, the precision and the kernels of a prediction must be measured",
                    call = "); `molen calibrate --ranks 1 --threads ";
  EXPECT_EQ(reason({1, 3, "fp32", "fused", "self"}),
            "no measurement with 1 rank x 3 threads, fp32, fused kernels, self, and no basis to predict it from (" +
                basis + call +
                "3 --compute fp32` measures it; the calibration has:\n  1 rank x 1 thread, fp32, fused kernels, self\n"
                "  1 rank x 2 threads, fp32, fused kernels, self");
  EXPECT_EQ(Calibration().find({1, 1, "fp32", "fused", "self"}).reason(),
            "no measurement with 1 rank x 1 thread, fp32, fused kernels, self, and no basis to predict it from (" +
                basis + call + "1 --compute fp32` measures it; the calibration has: nothing");
  try {
    (void)Calibration().costs({1, 1, "fp32", "fused", "self"}, "file.json");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()), "file.json: " + Calibration().find({1, 1, "fp32", "fused", "self"}).reason());
  }
}

// The typical time of a kind is the median, in whatever order samples came.
TEST(CostModel, TheTypicalTimeIsTheMedianInAnyOrder) {
  std::vector<double> seconds{9e-3, 1e-3, 7e-3, 3e-3, 5e-3};
  std::sort(seconds.begin(), seconds.end());
  do {
    std::vector<Sample> samples;
    for (const double s : seconds) samples.push_back({"op", {1.0, std::log(10.0)}, s});
    EXPECT_EQ(CostModel::fit(samples).fits().at("op").typical_s, 5e-3);
  } while (std::next_permutation(seconds.begin(), seconds.end()));
}

// The text names the measurements from which each part of a prediction is derived.
TEST(Extrapolate, SaysFromWhat) {
  const auto told = [](const Calibration& c, int ranks, const std::string& communicator) {
    return c.costs({ranks, 1, "fp32", "fused", communicator}, "test").extrapolated();
  };
  const std::string one = "1 rank x 1 thread, fp32, fused kernels, self";
  Calibration c;
  c.replace(entry_of(1, "self", 1.0, 16));
  EXPECT_EQ(told(c, 3, "threads"), one +
                                       "; how 3 busy cores slow each other's memory was not measured; collectives at "
                                       "the optimizer step's memory rate");
  EXPECT_EQ(told(c, 1, "threads"), one);
  // Neither the measurements of another communicator nor a measurement of one rank say anything about these
  // collectives.
  c.replace(entry_of(4, "mpi", 1.0, 16));
  c.replace(entry_of(1, "threads", 1.0, 16));
  const std::string shared = "; memory shared by busy cores from ",
                    last = "1 rank x 1 thread, fp32, fused kernels, threads",  // the last measured among equals
      four = "4 ranks x 1 thread, fp32, fused kernels, mpi";
  EXPECT_EQ(told(c, 3, "threads"), four + shared + last + "; collectives at the optimizer step's memory rate");
  EXPECT_EQ(told(c, 3, "mpi"), four + shared + last + "; collectives from 4 ranks, by bytes moved");
  EXPECT_EQ(told(c, 32, "mpi"),
            four + shared + last + "; collectives from 4 ranks, by bytes moved; 32 threads share 16 cores");
}

// A collective that was not measured moves its bytes at the memory rate; an empty one costs what one byte does.
TEST(Extrapolate, UnmeasuredCollectivesMoveMemory) {
  Calibration c;
  c.replace(entry_of(1, "self", 1.0, 16));
  const MeasuredCosts costs = c.costs({2, 1, "fp32", "fused", "threads"}, "test");
  const auto p = program_of(2, 0, 8);
  int seen = 0;
  for (const auto& body : p.bodies)
    for (program::Step step : body.steps)
      if (std::holds_alternative<program::AllReduce>(step.op)) {
        ++seen;
        for (const auto& [bytes, traffic] : {std::pair(0, 2.0), {1, 2.0}, {2, 4.0}, {1000, 2000.0}}) {
          step.moved = Bytes(bytes);
          EXPECT_DOUBLE_EQ(costs.seconds(p, step),
                           c.entries[0].costs.seconds("optimizer_step", {1.0, std::log(traffic)}))
              << bytes;
        }
      }
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace molen::sim
