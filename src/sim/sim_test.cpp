#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "program/build.h"
#include "sim/calibration.h"
#include "sim/simulate.h"

namespace molen::sim {
namespace {

program::Program program_of(int ranks, int zero, std::int64_t global) {
  auto a = arch::preset("llama-tiny");
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = ranks;
  s.zero = zero;
  s.global_batch = global;
  s.micro_batch = 2;
  s.sequence = 64;
  return program::build(a, s);
}

std::vector<Sample> samples_from(const std::vector<program::Program>& programs, double noise) {
  std::vector<Sample> samples;
  std::uint64_t i = 0;
  for (const auto& p : programs)
    for (const auto& body : p.bodies)
      for (const auto& step : body.steps) {
        // A machine of 1e11 FLOP/s and 1e10 byte/s.
        const double t = 1e-6 + step.hardware_flops.value / 1e11 + static_cast<double>(step.moved.value) / 1e10;
        samples.push_back({program::kind_of(step.op), features_of(p, step), t * std::exp(noise * normal_at(3, i++))});
      }
  return samples;
}

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
  auto a = arch::preset("llama-tiny");  // d 256, not among the samples' layer counts
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
  model.set_pace(1.25);
  const CostModel again = CostModel::from_json(model.to_json(), "test");
  EXPECT_EQ(again.pace(), 1.25);
  EXPECT_DOUBLE_EQ(again.seconds(p, p.bodies[0].steps[5]), model.seconds(p, p.bodies[0].steps[5]));
}

TEST(CostModel, RefusesWhatItHasNotSeen) {
  const auto one = program_of(1, 0, 4), two = program_of(2, 0, 4);
  const CostModel model = CostModel::fit(samples_from({one}, 0.0));
  EXPECT_THROW(simulate(two, program::expand(two), model), UsageError);
}

TEST(Simulate, StreamsOverlapAndEdgesHold) {
  const auto p = program_of(2, 1, 8);
  const auto ops = program::expand(p);
  const CostModel model = CostModel::fit(samples_from({p}, 0.0));
  const auto t = simulate(p, ops, model);
  double compute = 0.0, comm = 0.0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const int a : ops[i].after) EXPECT_GE(t.ops[i].start_s, t.ops[static_cast<std::size_t>(a)].end_s);
    (ops[i].step->stream == program::Stream::kCompute ? compute : comm) += t.ops[i].seconds();
  }
  EXPECT_GE(t.total_s, compute);
  EXPECT_LT(t.total_s, compute + comm);  // the last layers' reductions run beside the first layers' backward
  const auto phases = program::phase_seconds(ops, t);
  double sum = phases.bubble_s;
  for (const double s : phases.phase_s) sum += s;
  EXPECT_NEAR(sum, t.total_s, 1e-12);
}

TEST(Calibration, RoundTripAndMissingConditions) {
  const fs::path path = fs::temp_directory_path() / fmt::format("molen_calibration_{}.json", ::getpid());
  const auto p = program_of(1, 0, 4);
  Calibration c{"host", "cpu", "2026-01-01T00:00:00Z", {}};
  c.replace({conditions_of(p.setting, "self"), CostModel::fit(samples_from({p}, 0.0))});
  write_calibration(path, c);
  const Calibration read = read_calibration(path);
  EXPECT_TRUE(read.has(conditions_of(p.setting, "self")));
  EXPECT_THROW(read.costs({7, 1, "fp32", "fused", "mpi"}, "x"), UsageError);
  write_file_atomic(path, "{}");
  EXPECT_THROW(read_calibration(path), UsageError);
  fs::remove(path);
}

}  // namespace
}  // namespace molen::sim
