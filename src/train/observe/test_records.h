// A run directory with a Recorder of a small job, and what the Recorder wrote, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "comm/self/self.h"
#include "energy/open.h"
#include "energy/test_processors.h"
#include "program/build/build.h"
#include "store/tensorboard.h"
#include "train/observe/recorder.h"

namespace molen::train {

inline constexpr double kPeak = 2e11, kHardwareFlops = 3e10;
inline constexpr std::int64_t kTokens = 4 * 16;  // of a step

inline Job small_job(const fs::path& folder) {
  Job job;
  job.config.run.dir = folder.string();
  job.config.run.name = "records";
  job.config.data.validation = {{"held-out", 1.0, {}}, {"news", 1.0, {}}};
  job.arch = arch::preset("llama-tiny");
  job.arch.name = "small";
  job.arch.layers = 1;
  job.setting.global_batch = 4;
  job.setting.micro_batch = 2;
  job.setting.sequence = 16;
  job.program = program::build(job.arch, job.setting);
  job.machine.ranks = 2;
  job.communicator = "threads";
  job.peak = {kPeak, "measured in a test"};
  return job;
}

// Returns the meters of a host with GPUs on which only the processor has a meter.
inline energy::Meters recorded_meters(const fs::path& file) {
  write_file_atomic(file,
                    "{\"time_s\": 0, \"energy_j\": {\"cpu-package0\": 0}}\n"
                    "{\"time_s\": 1000, \"energy_j\": {\"cpu-package0\": 100000}}\n");
  energy::OpenOptions options;
  options.machine.clock = [] { return 0.0; };
  return energy::open_meters({"replay:" + file.string()}, options);
}

inline StepRecord record_of(std::int64_t step) {
  StepRecord r;
  r.step = step;
  r.loss = 3.25;
  r.grad_norm = 0.75;
  r.lr = 0.001953125;
  r.router = {1.25, 10.5, {}};
  r.loss_scale = 1024;
  r.skipped_steps = 3;
  r.tokens_total = 640;
  r.step_s = 0.5;
  r.data_wait_s = 0.125;
  r.phase_s = {{"forward", 0.2}, {"idle", 0.3}};
  r.memory_peak = std::int64_t{3} << 29;
  r.memory_planned = std::int64_t{1} << 31;
  r.first_sample = 36;
  r.last_sample = 39;
  r.energy.scopes["cpu-package0"] = {16.0, energy::Source::kCounter, ""};
  r.energy.total_j = 16.0;
  return r;
}

class Records : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("molen_recorder_" + std::to_string(::getpid()));
  fs::path run = folder / "records";
  Job job;
  std::unique_ptr<comm::Communicator> world = comm::make_self();
  std::unique_ptr<JobEnergy> energy;

  void SetUp() override {
    fs::create_directories(folder);
    job = small_job(folder);
    energy = std::make_unique<JobEnergy>(
        *world, EnergyHost{"boot", "host", {}}, [&](const auto&) { return recorded_meters(folder / "joules"); },
        [](const auto&) { return true; });
  }
  void TearDown() override { fs::remove_all(folder); }

  // Records what `use` does and returns what it prints, without the breaks of long lines.
  std::string recorded(const std::function<void(Recorder&)>& use, std::int64_t start_step = 0,
                       std::int64_t start_tokens = 0) {
    ::testing::internal::CaptureStdout();
    {
      Recorder recorder(job, *energy, 20, 18);
      MemoryPrediction memory{Bytes(1 << 20), Bytes(3 << 20), Bytes(1 << 10), Bytes(2 << 20), 2, Bytes(2 << 20)};
      if (start_step > 0) job.resume_from = "checkpoints/step-6";
      recorder.begin(start_step, start_tokens, memory, "0123456789abcdef", kHardwareFlops);
      use(recorder);
      recorder.sync();
    }
    return captured();
  }
  static std::string captured() {
    std::fflush(stdout);
    std::string said = ::testing::internal::GetCapturedStdout();
    for (std::size_t at; (at = said.find("\n    ")) != std::string::npos;) said.replace(at, 5, " ");
    return said;
  }
  std::vector<Json> lines(const char* file) const {
    std::vector<Json> all;
    std::istringstream in(read_file(run / file));
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
    return all;
  }
  // Returns the only event with this name.
  Json event(const std::string& name) const {
    Json found;
    for (const Json& line : lines("events.jsonl"))
      if (line["event"] == name) {
        EXPECT_TRUE(found.is_null()) << name << " twice";
        found = line;
      }
    EXPECT_FALSE(found.is_null()) << "no event " << name;
    return found;
  }
  // Returns whether TensorBoard's file has the scalar, at any wall time.
  bool has_scalar(const std::string& tag, double value, std::int64_t step) const {
    std::string all;
    for (const auto& entry : fs::directory_iterator(run / "tensorboard")) all += read_file(entry.path());
    const std::string record = store::scalar_record(tag, static_cast<float>(value), step, 0.0);
    constexpr std::size_t kHead = 12 + 9, kTail = 4;  // length and checksum, wall time; checksum
    return all.find(record.substr(kHead, record.size() - kHead - kTail)) != std::string::npos;
  }
  // Values of metrics.prom by name, without labels; `labels` gets the labels.
  std::map<std::string, double> prometheus(std::map<std::string, std::string>* labels = nullptr) const {
    std::map<std::string, double> values;
    std::istringstream in(read_file(run / "metrics.prom"));
    for (std::string line; std::getline(in, line);) {
      if (line.empty() || line[0] == '#') continue;
      const std::size_t brace = line.find('{'), space = line.rfind(' ');
      const std::string name = line.substr(0, brace);
      values[name] = std::stod(line.substr(space));
      if (labels) (*labels)[name] = line.substr(brace, space - brace);
    }
    return values;
  }
  double model_flops() const { return arch::model_flops(job.arch, kTokens, 16, job.options.mfu).value; }
};

}  // namespace molen::train
