// The training loop of one rank: from a resolved configuration to checkpoints, metrics and a finished run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "energy/power_figures.h"
#include "measure/device_peak.h"
#include "plan/resolve.h"
#include "program/ir/program.h"
#include "train/options.h"
#include "train/state/resume.h"

namespace molen::train {

// All decisions that are made once. They are the same on every rank of the job, except that each pipeline stage has its
// own setting.pipeline.stage and its own program.
struct Job {
  config::Config config;  // resolved
  arch::Architecture arch;
  program::Setting setting;
  std::optional<program::Schedule> schedule;  // of a pipeline, when a file gives it
  program::Program program;
  // Returns the program of any stage: built, or read again.
  program::Program program_of(int stage) const;
  std::vector<program::Program> programs() const;  // of all stages
  // Returns the forward-only program with which validation uses the weights of the training.
  program::Program evaluation() const;
  plan::Machine machine;
  std::string communicator;
  TrainOptions options;
  bool named = true;                                   // run.name is set
  bool new_name = false;                               // the name was generated for a new run
  std::optional<std::string> resume_from;              // checkpoint directory
  std::shared_ptr<const checkpoint::Checkpoint> from;  // the same, opened; released once it is loaded
  std::vector<Damaged> damaged;                        // rank 0: newer checkpoints that were skipped, newest first
  std::string note;                                    // what the user should know before the start; mostly empty
  std::optional<energy::PowerFigures> power_figures;   // of energy.model
  measure::DevicePeak peak;                            // the denominator of MFU and HFU
};

// Resolves the configuration (with rank 0's findings), finds the checkpoint to continue from, builds or loads the
// program and verifies it. `held_name`: the name of the run directory that rank 0 owns already. Collective over
// `world`. Writes nothing. Throws UsageError, and as find_checkpoint does.
Job prepare_job(config::Config config, const plan::Machine& machine, const std::string& communicator,
                const TrainOptions& options, comm::Communicator& world,
                const std::optional<std::string>& held_name = std::nullopt);

// How a training ended: by its horizon, stop_after or a stop signal, or because a budget of energy or emissions pays
// for no further step (energy.energy_budget, energy.co2_budget).
enum class Ended { kAsAsked, kByBudget };

// Trains on this rank, or prints what it would do (TrainOptions::dry_run). Returns, the same on all ranks, once the
// training has ended and the state is saved. A checkpoint that turns out damaged while it is loaded is set aside,
// and the job is prepared again. Collective over `world`. Throws as prepare_job does before anything is written, later
// Error.
Ended train(const config::Config& config, const plan::Machine& machine, const std::string& communicator,
            const TrainOptions& options, comm::Communicator& world);

// The memory that the process will hold, in three parts: the arenas of its ranks; the base, which is what the process
// held before and which is measured at the start; and what the loaders hold.
struct MemoryPrediction {
  Bytes arena, base, other;
  Bytes workspace;  // of the GEMM library; part of `base`
  int ranks = 1;    // in this process
  Bytes arenas;     // of all ranks in this process; those of pipeline stages differ
  Bytes total() const { return base + arenas + Bytes(other.value * ranks); }
};

// Returns the directory of the run: run.dir/run.name. prepare_job gives a name when the configuration has none.
fs::path run_directory(const config::Config& config);
fs::path checkpoint_directory(const config::Config& config);

}  // namespace molen::train
