// The whole run that follows a predicted step on a described cluster, as JSON and as text (plan/whole_run.h).
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "cluster/cluster.h"
#include "config/config.h"
#include "plan/resolve.h"
#include "plan/whole_run.h"
#include "program/ir/stages.h"
#include "sim/costs.h"
#include "sim/described_energy.h"

namespace molen::apps {

// A whole run, or why there is none.
struct WholeRun {
  std::optional<plan::WholeRun> run;
  std::string absent;  // the reason; empty when nothing says how long the run is
  plan::RunPlan plan;  // from which `run` follows
  // Evaluations of the run that are not counted, and why; empty: all are.
  std::string uncounted;
};

// A predicted step.
struct PredictedStep {
  double seconds = 0.0, spread = 0.0;
  sim::StepEnergy energy;
};

// Returns the run of a configuration whose train.until is given. Evaluations are the predicted forward-only program of
// `setting`, as often as the data that the configuration names asks for.
WholeRun whole_run_of(const config::Config& config, const arch::Architecture& arch, const program::Setting& setting,
                      const plan::Machine& machine, const cluster::Cluster& on, const sim::Costs& costs,
                      const PredictedStep& step);
// Returns the same for measured costs, which say nothing of a whole run.
WholeRun whole_run_of_calibration(const config::Config& config);

// Returns null when nothing says how long the run is, and an object with the key "absent" when there is another reason.
Json whole_run_json(const WholeRun& run);
void print_whole_run(const WholeRun& run);

}  // namespace molen::apps
