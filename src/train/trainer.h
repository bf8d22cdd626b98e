// The training loop of one rank: from a resolved configuration to checkpoints, metrics and a finished run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arch/parts.h"
#include "comm/communicator.h"
#include "config/config.h"
#include "plan/resolve.h"
#include "program/program.h"
#include "train/device_peak.h"
#include "train/resume.h"

namespace molen::train {

struct TrainOptions {
  std::string resume = "auto";              // auto, never, or a step
  std::vector<std::string> allow_change;    // keys that may differ from the checkpoint's run
  std::optional<std::string> program_file;  // a step program in text form, in the place of the built one
  bool dry_run = false;                     // build, verify, print what would run
  bool verbose = false;                     // on a terminal, a full line every step
  bool save_initial = false;                // a checkpoint of step 0 too: the starting point for comparisons
  arch::FlopsConvention mfu = arch::FlopsConvention::kCausal;  // how model FLOPs are counted in what the run says
  std::optional<std::string> cluster;                          // a calibration: predicted beside measured at the end
};

// Everything that is decided once and is the same on every rank of the job, but for what a stage of a pipeline has of
// its own: setting.pipeline.stage, and the program.
struct Job {
  config::Config config;  // resolved
  arch::Architecture arch;
  program::Setting setting;
  std::optional<program::Schedule> schedule;  // of a pipeline, where a file says it
  program::Program program;
  // Of any stage.
  program::Program program_of(int stage) const;
  // What validation runs, beside the training's weights.
  program::Program evaluation() const;
  plan::Machine machine;
  std::string communicator;
  TrainOptions options;
  bool named = true;                                   // by run.name
  bool new_name = false;                               // made up for a new run
  std::optional<std::string> resume_from;              // checkpoint directory
  std::shared_ptr<const checkpoint::Checkpoint> from;  // the same, opened; let go once it is loaded
  std::vector<Damaged> damaged;                        // rank 0: newer ones that were passed over, newest first
  std::string note;                                    // what the user should know before it starts; mostly nothing
  DevicePeak peak;                                     // what MFU and HFU are taken against
};

// Resolves the configuration (on rank 0's findings), finds the checkpoint to continue from, builds or loads the program
// and has it verified. `held_name`: rank 0's, of the run directory that it owns already. Collective over `world`.
// Writes nothing. Throws UsageError, and as find_checkpoint does.
Job prepare_job(config::Config config, const plan::Machine& machine, const std::string& communicator,
                const TrainOptions& options, comm::Communicator& world,
                const std::optional<std::string>& held_name = std::nullopt);

// Trains on this rank; or says what it would do (TrainOptions::dry_run). Returns when the horizon, stop_after or a stop
// signal was reached and the state is saved. A checkpoint that is found damaged while it is loaded is set aside, and
// the job prepared again. Collective over `world`. Throws as prepare_job does before anything is written, later Error.
void train(const config::Config& config, const plan::Machine& machine, const std::string& communicator,
           const TrainOptions& options, comm::Communicator& world);

// What the process will hold, by name: the arena of each of its ranks, and what lies outside of them: what was there
// before, measured at the start, and what the loaders hold.
struct MemoryPrediction {
  Bytes arena, base, other;
  Bytes workspace;  // of the products' library, in `base`
  int ranks = 1;    // in this process
  Bytes arenas;     // of all of them; those of pipeline stages differ
  Bytes total() const { return base + arenas + Bytes(other.value * ranks); }
};

// Directory of the run: run.dir/run.name. prepare_job gives a name where the configuration has none.
fs::path run_directory(const config::Config& config);
fs::path checkpoint_directory(const config::Config& config);

}  // namespace molen::train
