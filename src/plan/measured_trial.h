// A trial that trains: `molen train` runs some steps of a configuration, and the step is measured from its records.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "plan/trial.h"
#include "store/metrics.h"

namespace molen::plan {

// Steps before the measured ones: the first steps fill caches, start threads and open connections.
inline constexpr int kWarmupSteps = 2;

struct MeasureOptions {
  std::vector<std::string> launch;  // words that start the ranks: {"srun", "-n", "4"}; empty: threads of one process
  int ranks = 1;                    // threads, where `launch` is empty
  int steps = 10;                   // measured steps, at least 1; kWarmupSteps more are trained before them
  std::filesystem::path folder;     // run directory of the trial; a file with its name and ".toml" is written beside it
  std::filesystem::path molen;      // the program `molen`
};

// Returns a configuration as TOML with the keys that were set alone. Some defaults give way to other keys, and a value
// in a file does not.
std::string toml_of_set_keys(const config::Config& config);

// Returns the configuration with which a trial of `config` trains: in the folder of `options`, for its steps alone,
// without validation, with no checkpoint before the end.
config::Config training_of(const config::Config& config, const MeasureOptions& options);

// Trains a trial anew and measures it. The step is the median of the measured steps, and 80 % of them took between
// `low_s` and `high_s`; memory is the highest byte of the plan that the fullest rank had in use. The run directory
// keeps the records of the training, and not its checkpoint. Relative paths of `config` begin at the current folder, as
// those of `molen train` do. A training that fails is an outcome. Throws Error when no process can be started, and
// IoError when the folder cannot be written.
Outcome measure(const config::Config& config, const MeasureOptions& options);

// Returns the figures of the last `steps` lines of a run's metrics; `metrics` has at least as many, and `steps` is at
// least 1. A figure that some of these lines lack is absent.
Outcome outcome_of_metrics(const std::vector<store::StepMetrics>& metrics, int steps, std::int64_t tokens, int ranks);

// Returns the outcome of a training that ended with an exit status other than 0, or too early, from what it wrote.
// Messages that say that memory is too little, of molen (kTooLittleMemory) or of a library ("out of memory"), mean
// kOutOfMemory; exit status 2 means kRefused; else the training failed.
Outcome outcome_of_failure(int status, std::string_view output);

}  // namespace molen::plan
