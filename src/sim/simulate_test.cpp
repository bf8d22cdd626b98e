#include "sim/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/test_golden.h"
#include "program/build/build.h"
#include "program/schedule/schedule.h"
#include "sim/attended.h"
#include "sim/cost_model.h"
#include "sim/test_costs.h"

namespace molen::sim {
namespace {

TEST(Simulate, StreamsOverlapAndEdgesHold) {
  const program::Stages stages(program_of(2, 1, 8));
  const program::Program& p = stages.program(0);
  const auto& ops = stages.ops(0);
  const MeasuredCosts model(CostModel::fit(samples_from({p}, 0.0)), {4, 2, 1}, "threads");
  const auto t = simulate(stages, model).front();
  double compute = 0.0, comm = 0.0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const int a : ops[i].after) EXPECT_GE(t.ops[i].start_s, t.ops[static_cast<std::size_t>(a)].end_s);
    (ops[i].step->stream == program::Stream::kCompute ? compute : comm) += t.ops[i].seconds();
  }
  EXPECT_GE(t.total_s, compute);
  EXPECT_LT(t.total_s, compute + comm);  // the last layers' reductions run beside the first layers' backward
  const auto phases = program::phase_seconds(p.setting, ops, t);
  double sum = 0.0;
  for (const double s : phases.values()) sum += s;
  EXPECT_NEAR(sum, t.total_s, 1e-12);
  EXPECT_EQ(phases.bubble_s, 0.0);
  EXPECT_GT(phases.phase_s[static_cast<std::size_t>(program::Phase::kGradientReduce)], 0.0);
}

TEST(Simulate, FullCoresDoAllWorkOneAfterTheOther) {
  const program::Stages stages(program_of(2, 0, 8));
  const auto& ops = stages.ops(0);
  const CostModel model = CostModel::fit(samples_from({stages.program(0)}, 0.0));
  const auto free = simulate(stages, MeasuredCosts(model, {4, 2, 1}, "threads")).front(),
             full = simulate(stages, MeasuredCosts(model, {2, 2, 1}, "threads")).front();
  double work = 0.0, beside = 0.0;  // of one rank: the seconds of all its ops, and of its collectives
  for (const auto& t : full.ops) work += t.cpu_s;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].step->stream != program::Stream::kCompute) beside += free.ops[i].cpu_s;
  EXPECT_LE(free.total_s, full.total_s);
  // With one core per rank, the core is never idle, because a collective that runs alone needs it too.
  EXPECT_NEAR(full.total_s, work, 1e-9 * work);
  EXPECT_GE(free.total_s, work - beside);
}

// Collectives over two axes run at the same time. If the communicators of a rank take turns, they run in list order.
TEST(Simulate, StreamsOfCommunicationRunAtOnceOrInTurn) {
  program::Setting s = program_of(2, 0, 8).setting;
  s.mesh[mesh::Axis::kCp] = 2;
  s.sequence = 24;
  const program::Stages stages(program::build(program_of(2, 0, 8).arch, s));
  const auto& ops = stages.ops(0);
  std::vector<double> work;
  for (const auto& op : ops) {
    const auto axis = program::axis_of(op.step->op);
    work.push_back(!axis ? 1.0 : *axis == program::Axis::kCp ? 2.0 : 50.0);
  }
  CoreContention sharing{64, 1, 1};
  const auto at_once = simulate(stages, {work}, sharing).front();
  sharing.one_at_a_time = true;
  const auto in_turn = simulate(stages, {work}, sharing).front();
  EXPECT_LT(at_once.total_s, in_turn.total_s);
  double beside = 0.0, end = 0.0;
  const program::OpTime* before = nullptr;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!program::is_communication(ops[i].step->op)) continue;
    beside += std::max(0.0, end - at_once.ops[i].start_s);
    end = std::max(end, at_once.ops[i].end_s);
    if (before) {
      EXPECT_GE(in_turn.ops[i].start_s, before->end_s) << i;
    }
    before = &in_turn.ops[i];
  }
  EXPECT_GT(beside, 50.0);
}

// Stages of one layer each, or of two where a stage has two chunks.
program::Stages stages_of(program::ScheduleKind kind, int stages, int micro_batches) {
  auto a = arch::preset("llama-tiny");
  const int chunks = kind == program::ScheduleKind::kInterleaved || kind == program::ScheduleKind::kZbV ? 2 : 1;
  a.layers = stages * chunks;
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = stages;
  s.pipeline = program::pipeline_of(kind, chunks);
  s.global_batch = micro_batches;
  s.sequence = 32;
  return program::Stages(program::build_stages(a, s));
}

// A forward of a layer takes 1 s, and so does each half of a backward. Messages take `message_s`, other ops no time.
std::vector<std::vector<double>> seconds_of_layers(const program::Stages& stages, double message_s) {
  std::vector<std::vector<double>> work(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const auto& op : stages.ops(s)) {
      const auto* c = std::get_if<program::Compute>(&op.step->op);
      const bool layer = c && c->part == arch::Part::kDown;
      const bool message =
          std::holds_alternative<program::Send>(op.step->op) || std::holds_alternative<program::Receive>(op.step->op);
      work[s].push_back(layer ? c->pass == program::Pass::kBackward ? 2.0 : 1.0 : message ? message_s : 0.0);
    }
  return work;
}

double sum_of(const std::vector<std::vector<double>>& work) {
  double sum = 0.0;
  for (const auto& stage : work) sum = std::accumulate(stage.begin(), stage.end(), sum);
  return sum;
}

TEST(SimulateStages, AreIdleAsTheFormulasSay) {
  for (const int p : {2, 3, 4})
    for (const program::ScheduleKind kind : program::kAllScheduleKinds) {
      const int m = 2 * p;
      const program::Stages stages = stages_of(kind, p, m);
      const auto work = seconds_of_layers(stages, 0.0);
      const auto timelines = simulate(stages, work, {64, p, 1});
      const double idle = 1.0 - sum_of(work) / (p * step_seconds(timelines));
      const int chunks = static_cast<int>(stages.program(0).chunks.size());
      EXPECT_NEAR(idle, program::ideal_idle_share(kind, p, chunks, m), 1e-9) << name_of(kind) << ", " << p << " stages";
    }
}

// One micro-batch passes both stages forward and backward, and each message delays it.
TEST(SimulateStages, WaitForMessages) {
  const program::Stages stages = stages_of(program::ScheduleKind::k1f1b, 2, 1);
  const auto timelines = simulate(stages, seconds_of_layers(stages, 0.25), {64, 2, 1});
  EXPECT_DOUBLE_EQ(step_seconds(timelines), 2 * (1.0 + 2.0) + 2 * 0.25);
  // The first stage waits from its forward's end, while the message and the other stage take their time. The last
  // stage waits for the first forward.
  const auto waited = [&](std::size_t stage) {
    double all = 0.0;
    for (const auto& op : timelines[stage].ops) all += op.waited_s;
    return all;
  };
  EXPECT_DOUBLE_EQ(waited(0), 1.0 + 2.0);
  EXPECT_DOUBLE_EQ(waited(1), 1.0 + 2.0);  // in the end it waits for the backward of the first, to sum the norm
}

// The stages share one core, so all work is done one after another. On one core for each stage they run at once.
TEST(SimulateStages, ShareCores) {
  const program::Stages stages = stages_of(program::ScheduleKind::k1f1b, 4, 8);
  const auto work = seconds_of_layers(stages, 0.5);
  EXPECT_NEAR(step_seconds(simulate(stages, work, {1, 4, 1})), sum_of(work), 1e-9 * sum_of(work));
  const double own_cores = step_seconds(simulate(stages, work, {64, 4, 1}));
  EXPECT_LT(own_cores, 0.5 * sum_of(work));
  // Two ranks for each stage need twice the cores.
  EXPECT_NEAR(step_seconds(simulate(stages, work, {2, 8, 1})), sum_of(work), 1e-9 * sum_of(work));
}

TEST(SimulateStages, RefuseProgramsThatDoNotMatch) {
  auto a = arch::preset("llama-tiny");
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = 2;
  s.global_batch = 4;
  s.sequence = 32;
  auto programs = program::build_stages(a, s);
  s.global_batch = 2;
  programs[1] = program::build_stages(a, s)[1];
  EXPECT_THROW(program::Stages(std::move(programs)), Error);
}

// Each rank of a stage computes with its threads, so two stages of two threads want four cores.
TEST(SimulateStages, CountTheThreadsOfComputation) {
  const program::Stages stages = stages_of(program::ScheduleKind::kGpipe, 2, 2);
  const auto work = seconds_of_layers(stages, 0.0);
  const double four = step_seconds(simulate(stages, work, {4, 2, 2})),
               two = step_seconds(simulate(stages, work, {2, 2, 2}));
  EXPECT_EQ(four, step_seconds(simulate(stages, work, {64, 2, 1})));
  EXPECT_GT(two, 1.2 * four);
  EXPECT_EQ(step_seconds(simulate(stages, work, {2, 2, 1})), four);
}

// The own work of an op that waited is not stretched by its waiting.
TEST(SimulateStages, EpiloguesAreNotStretchedByWaiting) {
  arch::Architecture a = arch::preset("llama-tiny");
  a.layers = 2;
  a.tied = true;
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = 2;
  s.global_batch = 4;
  s.sequence = 32;
  const program::Stages stages(program::build_stages(a, s));
  std::vector<Sample> samples = samples_from({stages.program(0), stages.program(1)}, 0.0);
  for (const double bytes : {1e3, 1e6}) samples.push_back({"epilogue copy", {1.0, std::log(bytes)}, bytes * 1e-9});
  const MeasuredCosts costs(CostModel::fit(samples), {64, 2, 1}, "threads");
  const auto timelines = simulate(stages, costs);
  double waited = 0.0;
  for (std::size_t stage = 0; stage < 2; ++stage)
    for (std::size_t i = 0; i < stages.ops(stage).size(); ++i) {
      const auto& op = timelines[stage].ops[i];
      double own = 0.0, stated = 0.0;
      for (const double seconds : op.epilogue_s) own += seconds;
      for (const double seconds : costs.epilogue_seconds(*stages.ops(stage)[i].step)) stated += seconds;
      EXPECT_NEAR(own, stated, 1e-9 * (stated + 1e-12)) << program::kind_of(stages.ops(stage)[i].step->op);
      waited += op.waited_s;
    }
  EXPECT_GT(waited, 0.0);
}

// Attention within documents has the share of its FLOPs that the data leaves, by kernels that leave out the rest.
// Devices have such kernels in 16 bits, for whole sequences and usual heads, without ALiBi.
TEST(Attended, ScalesAttentionInTilesAlone) {
  arch::Architecture usual = arch::preset("llama-tiny");
  usual.layers = 2;
  arch::Architecture alibi = usual, odd = usual;
  alibi.position = arch::Position::kAlibi, odd.head_dim = 20;
  struct Case {
    arch::Architecture arch;
    bool masked, tiles, device;
    DType compute;
    int context;
    bool scaled;
  };
  const DType f32 = DType::kF32, bf16 = DType::kBF16;
  for (const Case& c : {Case{usual, true, true, false, f32, 1, true},
                        {usual, false, true, false, f32, 1, false},
                        {usual, true, false, false, f32, 1, false},
                        {alibi, true, true, false, f32, 1, true},
                        {usual, true, true, false, f32, 2, true},
                        {usual, true, true, true, bf16, 1, true},
                        {usual, true, true, true, f32, 1, false},
                        {usual, true, false, true, bf16, 1, false},
                        {alibi, true, true, true, bf16, 1, false},
                        {odd, true, true, true, bf16, 1, false},
                        {usual, true, true, true, bf16, 2, false}}) {
    program::Setting s;
    s.micro_batch = s.global_batch = 2, s.sequence = 64, s.document_mask = c.masked, s.compute = c.compute;
    s.mesh[mesh::Axis::kCp] = c.context;
    if (c.compute == bf16) s.kernels = arch::Kernels::kAten;
    if (!c.tiles) s.other_kernels.emplace(arch::Part::kAttention, arch::Kernels("unfused"));
    const std::vector<program::Program> whole{program::build(c.arch, s)};
    std::vector<program::Program> within = whole;
    attend_within_documents(within, 0.25, c.device);
    int scaled = 0, all = 0;
    for (std::size_t b = 0; b < whole[0].bodies.size(); ++b)
      for (std::size_t k = 0; k < whole[0].bodies[b].steps.size(); ++k) {
        const program::Step &before = whole[0].bodies[b].steps[k], &after = within[0].bodies[b].steps[k];
        const auto* part = std::get_if<program::Compute>(&before.op);
        const bool attends = part && part->part == arch::Part::kAttention;
        const double share = attends && c.scaled ? 0.25 : 1.0;
        EXPECT_DOUBLE_EQ(after.hardware_flops.value, share * before.hardware_flops.value);
        EXPECT_EQ(after.model_flops, before.model_flops) << "MFU counts what the model needs";
        const std::string kind = fitted_kind(whole[0], before);
        EXPECT_EQ(kind.ends_with(" within documents"), attends && c.masked) << kind;
        scaled += share < 1.0, all += attends;
      }
    EXPECT_EQ(all, 4) << "two layers, forward and backward";
    EXPECT_EQ(scaled, c.scaled ? all : 0);
  }
}

TEST(Simulate, RefusesCostsThatAreNoNumbers) {
  const GoldenMessages golden;
  const auto p = program_of(1, 0, 4);
  Json json = CostModel::fit(samples_from({p}, 0.0)).to_json();
  for (auto& [kind, fit] : json["kinds"].items()) fit["weights"][0] = 1e300;
  const MeasuredCosts costs(CostModel::from_json(json, "test"), {}, "self");
  EXPECT_NOTED(simulate(program::Stages(p), costs), UsageError);
}

}  // namespace
}  // namespace molen::sim
