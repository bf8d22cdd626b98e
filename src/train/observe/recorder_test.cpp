// Tests that every record of a run holds the figures that it is given: metrics, events, TensorBoard, Prometheus,
// traces, energy, and the console in a log and on a terminal.
#include "train/observe/recorder.h"

#include <c10/core/InferenceMode.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <sstream>

#include "base/file.h"
#include "comm/self/self.h"
#include "energy/open.h"
#include "program/build/build.h"
#include "store/flight.h"
#include "store/metrics.h"
#include "store/tensorboard.h"
#include "train/observe/run_console.h"
#include "train/observe/test_records.h"

namespace molen::train {
namespace {

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(FlightStreams, HaveTheNamesOfTheProgramsText) {
  for (std::size_t i = 0; i < program::kAllStreams.size(); ++i)
    EXPECT_EQ(store::kFlightStreamNames[i], program::name_of(program::kAllStreams[i]));
}

TEST_F(Records, AStepInMetrics) {
  const std::string said = recorded([](Recorder& r) { r.step(record_of(10)); });
  EXPECT_NE(said.find("mem 1.50 GiB of 2.00 GiB planned"), std::string::npos) << said;
  const auto file = store::read_metrics(run / "metrics.jsonl");
  ASSERT_EQ(file.steps.size(), 1U);
  const store::StepMetrics& m = file.steps[0];
  EXPECT_EQ(m.step, 10);
  EXPECT_EQ(m.attempt, 1);
  EXPECT_GT(m.wall_time_s, 1.6e9);
  EXPECT_EQ(m.loss, 3.25);
  EXPECT_EQ(m.grad_norm, 0.75);
  EXPECT_EQ(m.lr, 0.001953125);
  EXPECT_EQ(m.balance_loss, 1.25);
  EXPECT_EQ(m.z_loss, 10.5);
  EXPECT_EQ(m.loss_scale, 1024);
  EXPECT_EQ(m.skipped_steps, 3);
  EXPECT_EQ(m.tokens_total, 640);
  EXPECT_EQ(m.step_s, 0.5);
  EXPECT_EQ(m.tokens_per_s, 128);
  EXPECT_EQ(m.tokens_per_s_per_device, 64);
  EXPECT_EQ(m.flops_formula, "causal");
  EXPECT_DOUBLE_EQ(m.model_tflops_per_device.value(), model_flops() * 1e-12);  // in half a second, on two devices
  EXPECT_DOUBLE_EQ(m.mfu.value(), model_flops() / kPeak);
  EXPECT_DOUBLE_EQ(m.hfu.value(), 2 * kHardwareFlops / kPeak);
  EXPECT_EQ(m.memory_peak_bytes, std::int64_t{3} << 29);
  EXPECT_EQ(m.memory_planned_bytes, std::int64_t{1} << 31);
  EXPECT_EQ(m.data_wait_s, 0.125);
  EXPECT_EQ(m.phase_s, (std::map<std::string, double>{{"forward", 0.2}, {"idle", 0.3}}));
  EXPECT_EQ(m.samples, (std::array<std::int64_t, 2>{36, 39}));
  EXPECT_EQ(m.energy_j.at("cpu-package0"), 16.0);
  EXPECT_EQ(m.energy_source.at("cpu-package0"), "counter");
  EXPECT_EQ(m.j_per_token, 0.25);
  EXPECT_FALSE(m.energy_coverage.empty());
  EXPECT_EQ(m.energy_coverage, energy->coverage().partial());
}

TEST_F(Records, WhatIsNotKnownIsNotRecorded) {
  job.peak.flops_per_s.reset();
  recorded([](Recorder& recorder) {
    StepRecord r = record_of(10);
    r.loss_scale.reset();
    r.router.reset();
    r.energy.total_j.reset();
    recorder.step(r);
  });
  const auto m = store::read_metrics(run / "metrics.jsonl").steps.at(0);
  EXPECT_FALSE(m.mfu || m.hfu || m.loss_scale || m.skipped_steps || m.balance_loss || m.z_loss || m.j_per_token ||
               m.kwh_total || m.kg_co2e_total);
  EXPECT_TRUE(m.model_tflops_per_device);
  const auto values = prometheus();
  for (const char* name :
       {"molen_balance_loss", "molen_z_loss", "molen_mfu_ratio", "molen_hfu_ratio", "molen_loss_scale",
        "molen_skipped_steps_total", "molen_joules_per_token", "molen_device_peak_flops_per_second"})
    EXPECT_FALSE(values.contains(name)) << name;
  EXPECT_EQ(values.at("molen_step"), 10);
}

TEST_F(Records, ARunThatGoesOnFromItsFirstStepIsResumed) {
  recorded([](Recorder&) {}, 1, 64);
  EXPECT_EQ(event("resume")["step"], 1);
}

TEST_F(Records, AStepForPrometheus) {
  recorded([](Recorder& r) { r.step(record_of(10)); });
  std::map<std::string, std::string> labels;
  const auto values = prometheus(&labels);
  const std::map<std::string, double> want{{"molen_step", 10},
                                           {"molen_loss", 3.25},
                                           {"molen_tokens_total", 640},
                                           {"molen_tokens_per_second", 128},
                                           {"molen_step_seconds", 0.5},
                                           {"molen_memory_peak_bytes", 3.0 * (1 << 29)},
                                           {"molen_balance_loss", 1.25},
                                           {"molen_z_loss", 10.5},
                                           {"molen_loss_scale", 1024},
                                           {"molen_skipped_steps_total", 3},
                                           {"molen_joules_per_token", 0.25},
                                           {"molen_model_flops_per_second", model_flops()},
                                           {"molen_mfu_ratio", model_flops() / kPeak},
                                           {"molen_hfu_ratio", 2 * kHardwareFlops / kPeak},
                                           {"molen_device_peak_flops_per_second", kPeak}};
  EXPECT_EQ(values.size(), want.size());
  for (const auto& [name, value] : want) {
    ASSERT_TRUE(values.contains(name)) << name;
    EXPECT_DOUBLE_EQ(values.at(name), value) << name;
    EXPECT_NE(labels[name].find("run=\"records\""), std::string::npos) << name;
    EXPECT_EQ(labels[name].find("coverage=") != std::string::npos, name == "molen_joules_per_token") << name;
    EXPECT_EQ(labels[name].find("flops_formula=\"causal\"") != std::string::npos,
              name == "molen_model_flops_per_second" || name == "molen_mfu_ratio")
        << name;
    EXPECT_EQ(labels[name].find("source=\"measured in a test\"") != std::string::npos,
              name == "molen_device_peak_flops_per_second")
        << name;
  }
}

TEST_F(Records, AStepForTensorBoard) {
  recorded([](Recorder& r) { r.step(record_of(10)); });
  for (const auto& [tag, value] : std::map<std::string, double>{{"loss_metrics/global_avg_loss", 3.25},
                                                                {"grad_norm", 0.75},
                                                                {"lr", 0.001953125},
                                                                {"loss_metrics/balance_loss", 1.25},
                                                                {"loss_metrics/z_loss", 10.5},
                                                                {"loss_scale", 1024},
                                                                {"skipped_steps", 3},
                                                                {"throughput(tps)", 128},
                                                                {"tflops", model_flops() * 1e-12},
                                                                {"mfu(%)", 100 * model_flops() / kPeak},
                                                                {"hfu(%)", 200 * kHardwareFlops / kPeak},
                                                                {"time_metrics/end_to_end(s)", 0.5},
                                                                {"time_metrics/data_loading(s)", 0.125},
                                                                {"memory/max_active(GiB)", 1.5},
                                                                {"energy/j_per_token", 0.25}})
    EXPECT_TRUE(has_scalar(tag, value, 10)) << tag;
  EXPECT_FALSE(has_scalar("grad_norm", 0.75, 11));
}

// The energy of the run is that of the attempts before and of this one so far. Its CO2e takes the figures of the site
// that the description names, and a calibration names none.
TEST_F(Records, TheEnergyOfTheRunSoFar) {
  energy::EnergySoFar before;
  before.total_j = 5.4e6;
  before.at_site.kg_co2e = 1.0;
  const Json totals = energy::to_json(energy::add({}, 6, 384, before, energy->coverage()));
  const auto written = [&] {
    recorded([&](Recorder& recorder) {
      recorder.restore_totals(totals, 6, "here");
      StepRecord r = record_of(7);
      r.energy.so_far_j = 1.8e6;
      recorder.step(r);
    });
    return store::read_metrics(run / "metrics.jsonl").steps.at(0);
  };
  EXPECT_DOUBLE_EQ(written().kwh_total.value(), 2.0);
  EXPECT_FALSE(written().kg_co2e_total);
  job.options.cluster = "jean-zay-a100";
  const double kg = 1.0 + 0.5 * 1.2 * 0.057;  // 0.5 kWh at a PUE of 1.2 and 57 g/kWh
  EXPECT_NEAR(written().kg_co2e_total.value(), kg, 1e-12);
  EXPECT_TRUE(has_scalar("energy/kwh_total", 2.0, 7));
  EXPECT_TRUE(has_scalar("energy/kg_co2e_total", kg, 7));
  std::map<std::string, std::string> labels;
  const auto values = prometheus(&labels);
  EXPECT_DOUBLE_EQ(values.at("molen_energy_joules_total"), 7.2e6);
  EXPECT_NEAR(values.at("molen_co2e_kilograms_total"), kg, 1e-6 * kg);
  for (const char* name : {"molen_energy_joules_total", "molen_co2e_kilograms_total"})
    EXPECT_NE(labels[name].find("coverage="), std::string::npos) << name;
}

TEST_F(Records, TheBeginningIsAnEvent) {
  const std::string said = recorded([](Recorder& r) {
    EXPECT_EQ(r.attempt(), 1);
    EXPECT_EQ(r.identity()["name"], "records");
    EXPECT_EQ(r.identity()["attempt"], 1);
  });
  const Json start = event("start");
  EXPECT_EQ(start["step"], 0);
  EXPECT_EQ(start["from"], "");
  EXPECT_EQ(start["state_hash"], "0123456789abcdef");
  EXPECT_EQ(start["arch"], "small");
  EXPECT_EQ(start["parameters"], arch::num_parameters(job.arch));
  EXPECT_EQ(start["flops_formula"], "causal");
  EXPECT_EQ(start["device_peak"]["flops_per_s"], kPeak);
  EXPECT_EQ(start["ranks"], 2);
  EXPECT_EQ(start["communicator"], "threads");
  for (const char* key : {"host", "user", "group"}) EXPECT_NE(start[key], "") << key;
  EXPECT_EQ(start["slurm_job"], "");
  EXPECT_EQ(start["memory_arena_bytes"], 1 << 20);
  EXPECT_EQ(start["memory_base_bytes"], 3 << 20);
  EXPECT_EQ(start["memory_workspace_bytes"], 2 << 20);
  EXPECT_EQ(start["memory_other_bytes"], 1 << 10);
  EXPECT_EQ(event("meters")["coverage"], energy::to_json(energy->coverage()));
  EXPECT_TRUE(fs::exists(run / "environment.json"));
  EXPECT_NE(said.find("small ("), std::string::npos) << said;
  EXPECT_NE(said.find("2 ranks x 1 thread (threads)"), std::string::npos) << said;
  EXPECT_NE(said.find("2 x arena 1.00 MiB"), std::string::npos) << said;
  EXPECT_NE(said.find("(2.00 MiB of it workspace of the matrix library)"), std::string::npos) << said;
  EXPECT_NE(said.find("peak of a device, for MFU: measured in a test"), std::string::npos) << said;
  EXPECT_NE(said.find("energy is measured in part, marked ~: " + energy->coverage().partial()), std::string::npos);
  EXPECT_EQ(said.find("continues after"), std::string::npos) << said;
  const std::string again = recorded([](Recorder& r) { EXPECT_EQ(r.attempt(), 2); }, 6, 384);
  EXPECT_EQ(event("resume")["step"], 6);
  EXPECT_EQ(event("resume")["from"], "checkpoints/step-6");
  EXPECT_NE(again.find("continues after step 6 from checkpoints/step-6 (state 0123456789ab)"), std::string::npos)
      << again;
}

TEST_F(Records, EachProgramOfAPipelineIsWritten) {
  job.setting.mesh[mesh::Axis::kPp] = 2;
  job.arch.layers = 2;
  job.program = job.program_of(0);
  recorded([](Recorder&) {});
  std::vector<std::string> texts;
  for (const auto& entry : fs::recursive_directory_iterator(run))
    if (entry.is_regular_file() && entry.path().filename().string().find("program") == 0)
      texts.push_back(read_file(entry.path()));
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_NE(texts[0], texts[1]);
}

TEST_F(Records, TracedStepsFollowEachOther) {
  auto setting = job.setting;  // under ZeRO-2, the gradients of micro-batches are added after their reduce-scatter
  setting.mesh[mesh::Axis::kDpShard] = 2, setting.zero = 2, setting.global_batch = 8;
  const program::Program sharded = program::build(job.arch, setting);
  const auto ops = program::expand(sharded);
  program::Timeline timeline;
  for (std::size_t i = 0; i < ops.size(); ++i)
    timeline.ops.push_back({0.25 * static_cast<double>(i), 0.25 * static_cast<double>(i) + 0.125});
  timeline.total_s = 0.25 * static_cast<double>(ops.size()) + 1;
  const auto adds = [](const program::Expanded& op) {
    return std::ranges::any_of(op.step->epilogues, [](const auto& e) { return e.kind == program::Epilogue::kAdd; });
  };
  const auto adding = static_cast<std::size_t>(std::ranges::find_if(ops, adds) - ops.begin());
  ASSERT_LT(adding, ops.size());
  timeline.ops[adding].epilogue_s[static_cast<std::size_t>(program::Epilogue::kAdd)] = 0.03125;
  recorded([&](Recorder& r) {
    r.trace(4, ops, timeline);
    r.trace(5, ops, timeline);
  });
  const Json trace = Json::parse(read_file(run / "trace.json"));
  std::map<std::int64_t, std::vector<double>> begins;  // by step, in microseconds
  int compared = 0;
  for (const Json& span : trace["traceEvents"]) {
    if (span["ph"] != "X") continue;
    begins[span["args"]["step"].get<std::int64_t>()].push_back(span["ts"].get<double>());
    EXPECT_NEAR(span["dur"].get<double>(), 0.125e6, 1e-3);
    EXPECT_TRUE(span["args"].contains("bytes") && span["args"].contains("flops"));
    const auto i = static_cast<std::size_t>(std::lround(span["ts"].get<double>() / 0.25e6));
    if (span["args"]["step"] != 4 || i != adding) continue;
    EXPECT_EQ(span["args"]["epilogue add"]["seconds"], 0.03125);
    EXPECT_EQ(span["args"]["epilogue add"]["bytes"], ops[adding].step->epilogues[0].moved.value);
    ++compared;
  }
  EXPECT_EQ(compared, 1);
  ASSERT_EQ(begins[4].size(), ops.size());
  ASSERT_EQ(begins[5].size(), ops.size());
  for (auto* of : {&begins[4], &begins[5]}) std::sort(of->begin(), of->end());
  for (std::size_t i = 0; i < ops.size(); ++i) {
    EXPECT_NEAR(begins[4][i], 0.25e6 * static_cast<double>(i), 1e-3);
    EXPECT_NEAR(begins[5][i] - begins[4][i], timeline.total_s * 1e6, 1e-3);
  }
}

TEST_F(Records, AValidation) {
  ValidationResult v;
  v.loss = 2.5;
  v.tokens = 3000;
  v.bits_per_byte = {{"nl", 1.25}, {"en", 0.75}};
  v.sets = {{2.0, {{"nl", 1.5}}, 1000}, {2.75, {{"en", 0.5}}, 2000}};
  const std::string said = recorded([&](Recorder& r) { r.validation(8, v); });
  const Json e = event("validation");
  EXPECT_EQ(e["step"], 8);
  EXPECT_EQ(e["loss"], 2.5);
  EXPECT_EQ(e["tokens"], 3000);
  EXPECT_EQ(e["bits_per_byte"], (Json{{"en", 0.75}, {"nl", 1.25}}));
  ASSERT_EQ(e["sets"].size(), 2U);
  EXPECT_EQ(e["sets"][1], (Json{{"path", "news"}, {"loss", 2.75}, {"tokens", 2000}, {"bits_per_byte", {{"en", 0.5}}}}));
  EXPECT_TRUE(has_scalar("validation_metrics/loss", 2.5, 8));
  EXPECT_TRUE(has_scalar("validation_metrics/bits_per_byte/nl", 1.25, 8));
  EXPECT_TRUE(has_scalar("validation_metrics/bits_per_byte/en", 0.75, 8));
  EXPECT_NE(said.find("validation after step 8: loss 2.5000 over 3000 tokens, bits per byte  en 0.750  nl 1.250; "),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("held-out: loss 2.0000; news: loss 2.7500"), std::string::npos) << said;
}

TEST_F(Records, ACheckpointANoteAndAPrediction) {
  program::Comparison c, later;
  c.rows = {{"forward", 3, 0.25, 0.5, 0.125, 4096}};
  c.axes = {{program::Stream::kTpComm, 0.5, 0.75, 0.25, 0.5}};
  c.parts = {{"forward", 0.25, 0.5}, {"waiting for tp_comm", 0.25, 0.5}, {"rest", 1.0, 1.0}};
  c.rows[0].spread = 0.5;
  c.predicted_step_s = 1.5, c.step_spread = 0.25;
  c.measured_step_s = 2;
  later.predicted_step_s = 3, later.measured_step_s = 4, later.step_spread = 0.125;
  later.parts = {{"rest", 3.0, 4.0}};
  const Prediction prediction{{c, later, Failure{"no file"}}, "one rank", 5.0, 7.0};
  const MemoryPrediction memory{Bytes(10), Bytes(20), Bytes(3), Bytes(0), 2, Bytes(25)};
  const std::string said = recorded([&](Recorder& r) {
    r.checkpoint(8, "checkpoints/step-8", 1.5);
    r.note("a word to people");
    r.prediction(prediction, memory, 77, Bytes(66), 99);
  });
  EXPECT_EQ(event("checkpoint")["step"], 8);
  EXPECT_EQ(event("checkpoint")["path"], "checkpoints/step-8");
  EXPECT_EQ(event("checkpoint")["seconds"], 1.5);
  EXPECT_NE(said.find("saved checkpoints/step-8 in 1.50 s"), std::string::npos) << said;
  EXPECT_EQ(event("note")["text"], "a word to people");
  EXPECT_NE(said.find("a word to people"), std::string::npos) << said;
  const Json p = Json::parse(read_file(run / "predicted.json"));
  EXPECT_EQ(p["step_s"], (Json{{"predicted", 1.5}, {"predicted_spread", 0.25}, {"measured", 2.0}}));
  EXPECT_EQ(
      p["memory_bytes"],
      (Json{{"planned", 77}, {"measured", 66}, {"process_predicted", 20 + 25 + 2 * 3}, {"process_measured", 99}}));
  EXPECT_EQ(p["extrapolated"], "one rank");
  ASSERT_EQ(p["ops"].size(), 1U);
  EXPECT_EQ(p["ops"][0], (Json{{"kind", "forward"},
                               {"count", 3},
                               {"predicted_s", 0.25},
                               {"predicted_spread", 0.5},
                               {"measured_s", 0.5},
                               {"waited_s", 0.125},
                               {"bytes", 4096}}));
  EXPECT_EQ(p["axes"], Json::array({{{"stream", "tp_comm"},
                                     {"predicted_s", 0.5},
                                     {"measured_s", 0.75},
                                     {"predicted_exposed_s", 0.25},
                                     {"measured_exposed_s", 0.5}}}));
  ASSERT_EQ(p["parts"].size(), 3u);
  EXPECT_EQ(p["parts"][1], (Json{{"part", "waiting for tp_comm"}, {"predicted_s", 0.25}, {"measured_s", 0.5}}));
  EXPECT_EQ(p["step_j"],
            (Json{{"predicted", 7.0}, {"predicted_devices", 5.0}, {"measured", nullptr}, {"coverage", "cpu only"}}));
  ASSERT_EQ(p["later_stages"].size(), 2u);
  EXPECT_EQ(p["later_stages"][0]["step_s"], (Json{{"predicted", 3.0}, {"predicted_spread", 0.125}, {"measured", 4.0}}));
  EXPECT_EQ(p["later_stages"][1], (Json{{"failure", "no file"}}));
  EXPECT_NE(said.find("predicted beside measured (median step, first stage); extrapolated from one rank:"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("forward"), std::string::npos) << said;
  EXPECT_NE(said.find("exposed communication of tp_comm: predicted 250.0 ms, measured 500.0 ms"), std::string::npos)
      << said;
  for (const char* line :
       {"stage 0: predicted 1.50 s, measured 2.00 s; largest errors: forward -250.0 ms (-12.5 % of the step), waiting "
        "for "
        "tp_comm -250.0 ms (-12.5 % of the step)",
        "stage 1: predicted 3.00 s, measured 4.00 s; largest errors: rest -1.00 s (-25.0 % of the step)",
        "stage 2: no prediction: no file",
        "energy of a step: predicted 7 J, of which the devices take 5 J; measured -"})
    EXPECT_NE(said.find(line), std::string::npos) << line << said;
}

// The energy beside a prediction is the median of the last 51 steps that measured it.
TEST_F(Records, TheEnergyBesideAPredictionIsThatOfTheLastSteps) {
  program::Comparison c;
  c.predicted_step_s = 1, c.measured_step_s = 2;
  const std::string said = recorded([&](Recorder& r) {
    for (int i = 1; i <= 61; ++i) {
      StepRecord step = record_of(i);
      step.energy.total_j = i <= 10 ? 1e6 : static_cast<double>(i);  // the median of 11 to 61 is 36
      r.step(step);
    }
    r.prediction({{c}, "", 30.0, 40.0}, MemoryPrediction{}, 1, std::nullopt, 1);
  });
  const Json p = Json::parse(read_file(run / "predicted.json"));
  EXPECT_EQ(p["step_j"]["measured"], 36.0);
  EXPECT_NE(said.find("predicted 40 J, of which the devices take 30 J; measured 36 J (cpu only)"), std::string::npos)
      << said;
}

TEST_F(Records, TotalsCountFromTheStartOfTheAttempt) {
  energy::EnergySoFar used;
  used.seconds = 30;
  used.joules = {{"cpu-package0", 256.0}};
  used.total_j = 256.0;
  used.phases = Json::parse(R"({"cpu-package0":{"joules":256,"entries":{"forward":{"joules":192},)"
                            R"("unattributed":{"joules":64}}}})");
  used.by_host = {{"a", {256.0, {"cpu-package0"}, {}}}, {"b", {std::nullopt, {}, {"cpu-package0"}}}};
  Json totals;
  recorded([&](Recorder& r) { totals = r.totals(10, 640, used); });
  EXPECT_EQ(totals["attempts"], 1);
  const auto all = energy::totals_from_json(totals, 10, "here");
  EXPECT_EQ(all.steps, 10);
  EXPECT_EQ(all.tokens, 640);
  EXPECT_EQ(all.seconds, 30);
  EXPECT_EQ(all.total_j, 256.0);
  EXPECT_EQ(totals["phases_j"], (Json{{"cpu-package0", {{"forward", 192.0}, {"unattributed", 64.0}}}}));

  // The next attempt begins at step 10 with what the first one has used. It has an entry that the first one lacks, as
  // attempts of older versions do.
  used.phases = Json::parse(R"({"cpu-package0":{"joules":256,"entries":{"forward":{"joules":192},)"
                            R"("bubble":{"joules":48},"unattributed":{"joules":16}}}})");
  const c10::InferenceMode inference;
  Job one = small_job(folder);
  const exec::Executor executor(one.program, 0, world.get(), {at::kCPU, true});
  ::testing::internal::CaptureStdout();
  {
    Recorder r(job, *energy, 20, 18);
    r.restore_totals(totals, 10, "here");
    job.resume_from = "checkpoints/step-10";
    r.begin(10, 640, {}, "0123456789abcdef", kHardwareFlops);
    r.end(12, 768, used, launch::Communication(executor), "a test");
    r.sync();
  }
  const std::string said = captured();
  const Json stop = event("stop");
  EXPECT_EQ(stop["step"], 12);
  EXPECT_EQ(stop["reason"], "a test");
  EXPECT_EQ(stop["communication"], Json::array());
  EXPECT_EQ(stop["traffic"], Json::array());
  const Json last = lines("energy.jsonl").back();
  EXPECT_EQ(last["event"], "totals");
  EXPECT_EQ(last["step"], 12);
  EXPECT_EQ(last["attempt"], 2);
  const auto sum = energy::totals_from_json(last, 12, "here");
  EXPECT_EQ(sum.steps, 12);
  EXPECT_EQ(sum.tokens, 768);
  EXPECT_EQ(sum.seconds, 60);
  EXPECT_EQ(sum.total_j, 512.0);
  EXPECT_EQ(last["phases_j"]["cpu-package0"], (Json{{"bubble", 48.0}, {"forward", 384.0}, {"unattributed", 80.0}}))
      << "of both attempts";
  const auto written = lines("energy.jsonl");
  const Json& hosts = written[written.size() - 2];
  EXPECT_EQ(hosts["event"], "by_host");
  EXPECT_EQ(hosts["joules"], (Json{{"a", 256.0}, {"b", Json()}}));
  EXPECT_EQ(hosts["scopes"], (Json{{"a", {"cpu-package0"}}, {"b", Json::array()}}));
  EXPECT_EQ(hosts["lost"], (Json{{"b", {"cpu-package0"}}}));
  EXPECT_EQ(hosts["seconds"], 30.0);
  const Json& phases = written[written.size() - 3];
  EXPECT_EQ(phases["event"], "phases");
  EXPECT_EQ(phases["step"], 12);
  EXPECT_EQ(phases["scopes"], used.phases) << "of this attempt";
  EXPECT_EQ(phases["seconds"], 30.0);
  const std::string line = "energy by phase in this attempt: forward 75.0%, bubble 18.8%, unattributed 6.2% of 256 J";
  EXPECT_NE(said.find(line), std::string::npos) << said;
  EXPECT_NE(said.find("stopped after step 12: a test"), std::string::npos) << said;
  EXPECT_NE(said.find("whole run: " + sum.text().substr(0, 20)), std::string::npos) << said;
  EXPECT_EQ(said.find("communication of rank 0"), std::string::npos) << said;
}

// The joules of a model have fields of their own, and change nothing of what is measured.
TEST_F(Records, WhatAModelEstimatesStandsApart) {
  const c10::InferenceMode inference;
  Job one = small_job(folder);
  const exec::Executor executor(one.program, 0, world.get(), {at::kCPU, true});
  energy::EnergySoFar used;
  used.seconds = 30, used.joules = {{"cpu-package0", 256.0}}, used.total_j = 256.0;
  StepRecord record = record_of(7);
  const auto records = [&] {
    const std::string said = recorded([&](Recorder& r) {
      r.step(record);
      r.end(7, 640, used, launch::Communication(executor), "enough");
    });
    Json metrics = lines("metrics.jsonl").back(), totals = lines("energy.jsonl").back();
    for (const char* varies : {"wall_time_s", "attempt", "run_id", "history"})
      metrics.erase(varies), totals.erase(varies);
    return std::tuple(said, metrics, totals);
  };
  const auto [off_said, off, off_totals] = records();
  fs::remove_all(run);
  energy::FakeProcessors processors;
  energy = std::make_unique<JobEnergy>(
      *world, EnergyHost{"boot", "host", {}}, [&](const auto&) { return recorded_meters(folder / "joules"); },
      [](const auto&) { return true; }, Seconds(0),
      [&](const auto& measured, bool gpus, const auto&, const auto&) {
        energy::PowerFigures figures;
        figures.by_cpus.push_back(
            {"dram0", energy::PowerCurve(std::vector<energy::PowerPoint>{{0.0, {5, 4, 6}}}), "test figures"});
        return energy::open_model(figures, measured, gpus, {processors.machine.machine, {}, {}, 0.0, "energy.model"});
      });
  record.energy.modelled.scopes = {{"dram0", energy::Estimate{200.0, 150.0, 260.0}}, {"gpu0", std::nullopt}};
  record.energy.modelled.summed = {"dram0", "gpu0"};
  used.modelled.scopes = {{"dram0", energy::Estimate{12000.0, 9000.0, 15600.0}}};
  used.modelled.summed = {"dram0"};
  auto [said, metrics, totals] = records();
  EXPECT_FALSE(off.contains("energy_model_j"));
  EXPECT_EQ(metrics["energy_model_j"],
            Json::parse(R"({"dram0":{"joules":200.0,"least":150.0,"most":260.0},"gpu0":null})"));
  metrics.erase("energy_model_j");
  EXPECT_EQ(metrics.dump(), off.dump());
  EXPECT_EQ(totals.dump(), off_totals.dump());
  Json line;
  for (const Json& one_line : lines("energy.jsonl"))
    if (one_line["event"] == "modelled") line = one_line;
  EXPECT_EQ(line["source"], "model");
  EXPECT_EQ(line["energy_j"]["dram0"], Json::parse(R"({"joules":12000.0,"least":9000.0,"most":15600.0})"));
  EXPECT_EQ(line["total"], line["energy_j"]["dram0"]);
  EXPECT_EQ(line["scopes"]["dram0"]["figures"], "test figures");
  EXPECT_EQ(event("energy_model")["scopes"]["dram0"]["hosts"], 1);
  EXPECT_NE(said.find("dram0 (test figures)"), std::string::npos) << said;
  EXPECT_NE(said.find("dram0 1.2e+04 J (9000 to 1.56e+04)"), std::string::npos) << said;
  EXPECT_EQ(off_said.find("estimate"), std::string::npos) << off_said;
}

// A doubt is recorded, and said, once for each scope.
TEST_F(Records, DoubtsAreRecordedWhenThereAreMore) {
  energy::EnergySoFar used;
  used.total_j = 256.0;
  const std::string said = recorded([&](Recorder& r) {
    (void)r.totals(10, 640, used);
    for (const std::int64_t step : {20, 30, 40}) {
      used.doubts["gpu0"] = fmt::format("two figures at {}", step);
      if (step == 40) used.doubts["gpu1"] = "others";
      (void)r.totals(step, 64 * step, used);
    }
  });
  std::vector<Json> doubtful;
  for (const Json& line : lines("energy.jsonl"))
    if (line["event"] == "doubtful") doubtful.push_back(line);
  ASSERT_EQ(doubtful.size(), 2U);
  EXPECT_EQ(doubtful[0]["step"], 20);
  EXPECT_EQ(doubtful[0]["reasons"], (Json{{"gpu0", "two figures at 20"}}));
  EXPECT_EQ(doubtful[1]["reasons"], (Json{{"gpu0", "two figures at 40"}, {"gpu1", "others"}}));
  EXPECT_NE(said.find("the joules of gpu0 are doubtful: two figures at 20"), std::string::npos) << said;
  EXPECT_EQ(said.find("two figures at 40"), std::string::npos) << said;
  EXPECT_NE(said.find("the joules of gpu1 are doubtful: others"), std::string::npos) << said;
}

TEST_F(Records, WhatIsNotReadIsSaidWhenThatChanges) {
  StepRecord lacking = record_of(2);
  lacking.energy.scopes["cpu-package0"] = {std::nullopt, energy::Source::kNone, "too short"};
  lacking.energy.total_j.reset();
  lacking.energy.total_reason = "cpu-package0: too short";
  recorded([&](Recorder& r) {
    r.step(record_of(1));
    r.step(lacking);
    lacking.step = 3;
    r.step(lacking);
    r.step(record_of(4));
  });
  const auto all = lines("energy.jsonl");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["event"], "unread");
  EXPECT_EQ(all[0]["step"], 2);
  EXPECT_EQ(all[0]["reasons"], (Json{{"cpu-package0", "too short"}, {"total", "cpu-package0: too short"}}));
  EXPECT_EQ(all[1]["step"], 4);
  EXPECT_EQ(all[1]["reasons"], Json::object());
}

TEST_F(Records, AViewThatCannotBeWrittenIsSaidOnceAndTriedAgain) {
  fs::create_directories(run / "metrics.prom" / "in the way");
  const std::string said = recorded([&](Recorder& r) {
    r.step(record_of(1));
    r.step(record_of(2));
    fs::remove_all(run / "metrics.prom");
    r.step(record_of(3));
  });
  EXPECT_EQ(count_of(said, "the run goes on"), 1) << said;
  EXPECT_EQ(prometheus().at("molen_step"), 3);
  EXPECT_EQ(store::read_metrics(run / "metrics.jsonl").steps.size(), 3U);
}

TEST_F(Records, ALogHasEveryStep) {
  const std::string said = recorded([](Recorder& r) {
    for (std::int64_t step = 1; step <= 4; ++step) {
      StepRecord record = record_of(step);
      record.step_s = 2.0 * static_cast<double>(step);
      r.step(record);
    }
  });
  for (int step = 1; step <= 4; ++step) EXPECT_EQ(count_of(said, fmt::format("step {}/20 ", step)), 1) << said;
  EXPECT_NE(said.find("loss 3.2500"), std::string::npos) << said;
  // 14 steps remain, of 5 s each: the mean of 2, 4, 6 and 8.
  EXPECT_NE(said.find("eta 01:10"), std::string::npos) << said;
  EXPECT_NE(said.find("~0.25 J/tok"), std::string::npos) << said;
}

TEST_F(Records, ALogHasTheWattsOfAllDevices) {
  ::testing::internal::CaptureStdout();
  RunConsole console(job, 20, 4);
  store::StepMetrics m;
  m.step = 1;
  m.step_s = 1;
  m.tokens_per_s = 64, m.tokens_per_s_per_device = 16;
  m.j_per_token = 0.5;
  console.step(m, false, 450.4);
  std::fflush(stdout);
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("| model 450 W |"), std::string::npos) << said;
}

// Runs `use` while standard output is a terminal of 90 columns, and returns the text that the terminal received.
std::string said_to_terminal(const std::function<void()>& use) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) return "no terminal can be made here";
  const int slave = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  const struct winsize size { 24, 90, 0, 0 };
  ::ioctl(slave, TIOCSWINSZ, &size);
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO);
  ::dup2(slave, STDOUT_FILENO);
  use();
  std::fflush(stdout);
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  std::string said;
  ::fcntl(master, F_SETFL, O_NONBLOCK);
  char block[4096];
  for (ssize_t n; (n = ::read(master, block, sizeof block)) > 0;) said.append(block, static_cast<std::size_t>(n));
  ::close(slave);
  ::close(master);
  return said;
}

TEST_F(Records, ATerminalKeepsTheFirstAndTheLastStep) {
  const auto steps = [&] {
    RunConsole console(job, 20, 4);
    for (std::int64_t step = 1; step <= 4; ++step) {
      store::StepMetrics m;
      m.step = step;
      m.loss = 3.25;
      m.step_s = 1;
      console.step(m, false, std::nullopt);
    }
    console.note(std::string(60, 'a') + " " + std::string(60, 'b'));
  };
  const std::string said = said_to_terminal(steps);
  for (int step = 1; step <= 4; ++step) {
    EXPECT_GE(count_of(said, fmt::format("] {}/20", step)), 1) << step << " is shown in place: " << said;
    EXPECT_EQ(count_of(said, fmt::format("step {}/20", step)), step == 1 || step == 4) << said;
  }
  EXPECT_EQ(said.find("a b"), std::string::npos) << "a note is wrapped at the terminal's width: " << said;
  job.options.verbose = true;
  const std::string all = said_to_terminal(steps);
  for (int step = 1; step <= 4; ++step) EXPECT_EQ(count_of(all, fmt::format("step {}/20", step)), 1) << all;
}

}  // namespace
}  // namespace molen::train
