// A prediction of a run's step beside the medians of the run's own steps.
#pragma once

#include "apps/measured_run.h"
#include "apps/simulated.h"
#include "base/json.h"

namespace molen::apps {

void print_beside(const Simulated& simulated, const MeasuredRun& measured);

// Returns the comparison as the page of a run takes it (docs/formats/calibration.md).
Json beside_json(const Simulated& simulated, const MeasuredRun& measured);

// Predicts the step of a run on `cluster`, the description of one or a calibration, whose `communicator` counts.
// Throws UsageError where there is no such run, or the cluster or calibration cannot predict it.
Simulated simulated_run(const std::string& run, const std::string& cluster, const std::string& communicator);

}  // namespace molen::apps
