// A search: trials of a space, each proposed from those before it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "plan/trial.h"
#include "tune/optimizer.h"
#include "tune/space.h"

namespace molen::tune {

// More trials than this are not modelled.
inline constexpr int kMostTrials = 500;
inline constexpr int kMostParallel = 64;

// The figure that the best trial has most or least of.
enum class Objective { kThroughput, kTime, kEnergy, kLoss };
std::string_view name_of(Objective objective);           // "throughput", "time", "energy", "loss"
Objective objective_from_name(const std::string& name);  // throws UsageError with the nearest name
// The figure by which trials are compared, in units that do not depend on the size of a step, which trials may change:
//   throughput  tokens/s of a device: what a device-hour yields
//   time        seconds for a million tokens, on all devices of a trial
//   energy      J for a token, of devices and hosts
//   loss        seconds to a loss (plan::StepFigures::loss_time_s), which needs the gradient noise scale in tokens
double figure_of(Objective objective, const plan::StepFigures& figures, double noise_scale = 0.0);
std::string_view unit_of(Objective objective);
inline bool more_is_better(Objective objective) {
  return objective == Objective::kThroughput;
}

struct Trial {
  int number = 1;
  Point point;
  plan::Outcome outcome;
  bool kept = false;  // from an earlier start of the search
  bool has_step() const { return outcome.kind == plan::Outcome::Kind::kStep; }
};

struct SearchPlan {
  Space space;
  config::Config base;
  JobRanks job;
  Objective objective = Objective::kThroughput;
  double noise_scale = 0.0;  // gradient noise scale in tokens, for Objective::kLoss; 0: not known
  std::uint64_t seed = 0;
  int trials = 60;
  int parallel = 4;    // points of one proposal
  int concurrent = 1;  // trials that run at a time
};

// The values that the optimiser gets of a trial: larger is better, a trial without a step failed, and the load is its
// memory over what the plan of the search says of it. Throws UsageError for a step without the figure.
Observation observation_of(const Trial& trial, const SearchPlan& plan);

// Predicts or measures one trial. May be called by several threads at once, if the plan says so.
using Attempt = std::function<plan::Outcome(const config::Config& config, int ranks, int number)>;

struct SearchCalls {
  Attempt attempt;
  // Called by one thread at a time: before a trial that is not kept, and after it.
  std::function<void(int number, const std::string& doing)> begin = {};
  std::function<void(const Trial& trial)> end = {};
};

// Runs the trials that `kept` does not have, until there are as many as the plan says or the space has no more. Each
// batch is proposed from all trials of earlier batches, so a search that was cut off and goes on tries the points that
// it would have tried. Trials come back by number. An error of `attempt` ends the search when its batch has ended.
std::vector<Trial> run_search(const SearchPlan& plan, const SearchCalls& calls, const std::map<int, Trial>& kept);

// Returns trials with a step, the best first; of equal ones the earlier first.
std::vector<Trial> ranked(const std::vector<Trial>& trials, Objective objective, double noise_scale = 0.0);

}  // namespace molen::tune
