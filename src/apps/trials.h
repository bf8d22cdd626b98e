// Trials of `molen sweep` and `molen tune`: the options that both have, and how a trial is predicted or trained.
#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "apps/cli.h"
#include "base/units.h"
#include "config/config.h"
#include "plan/resolve.h"
#include "plan/sweep.h"
#include "plan/trial.h"
#include "plan/trial_launcher.h"

namespace molen::apps {

inline constexpr int kTrialSteps = 10;

struct TrialArguments {
  std::optional<std::string> cluster, communicator, launch, output, limit, noise_scale;
  bool real = false;
  std::optional<int> steps;
};

// Adds --cluster, --communicator, --noise-scale, --real, --launch, --steps and --time-limit.
void add_trial_options(CLI::App& verb, TrialArguments& arguments);

// Refuses options that have no meaning together, or none without another. `verb`: "sweep".
void require_trial_modes(const TrialArguments& arguments, const std::string& verb);

// The options that say how large the job of a trial is, and how many trials run at a time.
struct TrialSizes {
  bool ranks = false, nodes = false;
  std::optional<int> ranks_per_node = std::nullopt;
  int at_once = 1;
};

// Returns the machine of a prediction, with the ranks of `options`: that of a description, or the one that a
// calibration is of. `molen simulate` has the same.
plan::Machine predicted_machine(const ConfigOptions& options, const plan::PredictedOn& on,
                                const config::Config& config);
// Reads what trials are predicted on. On a calibration of this machine, "auto" of precision.compute is measured, so
// molen goes on as molen-compute; to be called before anything is written.
plan::PredictedOn trials_predicted_on(const TrialArguments& arguments);
// Predicts a trial of so many ranks; 0: those of the configuration's run, or one.
plan::Outcome predicted_trial(const ConfigOptions& options, const plan::PredictedOn& on, const config::Config& config,
                              int ranks);

// Trials that train.
class RealTrials {
 public:
  // Throws UsageError for a launcher with places that nothing fills, for sizes that it has no place for, for several
  // trials at a time without nodes of their own, and for a time limit of another form.
  RealTrials(const TrialArguments& arguments, const TrialSizes& sizes);

  // Returns the nodes of the allocation, if --launch starts trials in one.
  const std::optional<int>& allocated() const { return allocated_; }
  // Returns the nodes that such a job takes; 0: nothing says it.
  int nodes_of(const plan::JobSize& size) const;
  bool launches() const { return launcher_.has_value(); }
  bool launcher_has(std::string_view place) const { return launcher_ && launcher_->has(place); }
  // Returns the conditions of a measurement that a command line says.
  std::string conditions() const;
  // Trains a trial in the folder `run`. A trial of more nodes than there are is refused. May be called by as many
  // threads as trials run at a time.
  plan::Outcome train(const config::Config& config, const plan::JobSize& size, const fs::path& run);

 private:
  void require_places(const TrialSizes& sizes) const;

  std::optional<plan::Launcher> launcher_;
  std::optional<int> allocated_, ranks_per_node_;
  std::optional<plan::NodePool> pool_;
  std::mutex mutex_;
  std::exception_ptr ended_;  // what the first trial threw that did; no other one begins then
  int steps_ = kTrialSteps;
  Seconds limit_;
};

// How trials are tried: predicted on a machine, or trained. One of the two is there.
struct Tried {
  std::optional<plan::PredictedOn> on;
  std::unique_ptr<RealTrials> real;
  // Returns the described cluster of a prediction; null on a calibration, and where trials train.
  const cluster::Cluster* described() const { return on ? on->described() : nullptr; }
};

}  // namespace molen::apps
