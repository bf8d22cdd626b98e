// A trial that trains: `molen train` runs some steps of a configuration, and the step is measured from its records.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "config/config.h"
#include "plan/trial.h"
#include "plan/trial_launcher.h"
#include "store/metrics.h"

namespace molen::plan {

// Steps before the measured ones: the first steps fill caches, start threads and open connections.
inline constexpr int kWarmupSteps = 2;

struct MeasureOptions {
  std::optional<Launcher> launch;  // starts the ranks; absent: they are threads of one process
  int ranks = 1;                   // of the job, threads where `launch` is absent; 0: the launcher decides
  int nodes = 0;                   // of the job; 0: the launcher decides
  int first_node = 0;              // LaunchPlaces::first_node
  int steps = 10;                  // measured steps, at least 1; kWarmupSteps more are trained before them
  Seconds limit;                   // of the whole training, by the clock; 0: none
  Seconds grace = Seconds(30.0);   // from the request to end, after the limit or a signal, until processes are killed
  // Run directory of the trial. Two files with its name are written beside it: with ".toml" the configuration, and with
  // ".log" the last 64 KiB at least of what the training and its launcher wrote.
  std::filesystem::path folder;
  std::filesystem::path molen;  // the program `molen`
};

// Returns a configuration as TOML with the keys that were set alone. Some defaults give way to other keys, and a value
// in a file does not.
std::string toml_of_set_keys(const config::Config& config);

// Returns the configuration with which a trial of `config` trains: in the folder of `options`, for its steps alone,
// without validation, with no checkpoint before the end.
config::Config training_of(const config::Config& config, const MeasureOptions& options);

// Trains a trial anew and measures it. The step is the median of the measured steps (the upper of two in the middle),
// and `low_s` and `high_s` are their 10th and 90th percentiles; memory is the highest byte of the plan that the fullest
// rank had in use. The run directory keeps the records of the training, and not its checkpoint. Relative paths of
// `config` begin at the current folder, as those of `molen train` do. A training that fails is an outcome, and so is
// one that takes longer than its limit, or has other ranks or nodes than `options` say; it has the last lines that the
// training wrote. Throws Error when no process can be started, and when a signal asked this process to end: the
// training got it too, and has ended. If this process ends otherwise, the training does too; a launcher is asked to
// (SIGTERM), and everything that it has started on this machine is killed after `grace`. Several trials may be measured
// at a time. Throws IoError when the folder cannot be written.
Outcome measure(const config::Config& config, const MeasureOptions& options);

// Returns the figures of the last `steps` lines of a run's metrics; `metrics` has at least as many, and `steps` is at
// least 1. A figure that some of these lines lack is absent.
Outcome outcome_of_metrics(const std::vector<store::StepMetrics>& metrics, int steps, std::int64_t tokens, int ranks);

// Returns the version of molen in environment.json, or in another description of a machine: "0.1.0 (1a2b3c4)".
std::string version_in(const Json& machine);

// Returns why the ranks of a job are not those that `options` ask for: "the launcher started 1 rank, not 2"; "" if they
// are. A node has `local_ranks` of them.
std::string other_size(const MeasureOptions& options, int ranks, int local_ranks);

// Returns a message of a training in terms of the configuration that the trial was made from: a line of the trial's own
// file, which measure() wrote, becomes the line of the user's file or the option that has the key.
std::string with_origins(std::string text, const config::Config& config, const MeasureOptions& options);

// The lines of a failed trial's log that its outcome has, and the characters of a line.
inline constexpr std::size_t kLogLines = 12, kLogLineChars = 300;
// Returns the last lines of a training's output that are not blank, as text for a terminal.
std::vector<std::string> last_lines(std::string_view output);

// Returns the outcome of a training that ended with an exit status other than 0, or too early, from what it wrote.
// Messages that say that memory is too little, of molen (kTooLittleMemory) or of a library ("out of memory"), mean
// kOutOfMemory; exit status 2 means kRefused; else the training failed.
Outcome outcome_of_failure(int status, std::string_view output);

}  // namespace molen::plan
