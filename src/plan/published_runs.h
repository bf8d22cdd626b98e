// Predicts a run of a table: the step program of its layout, on the described devices, as its training program would
// compute it.
#pragma once

#include "arch/architecture.h"
#include "cluster/cluster.h"
#include "plan/runs.h"
#include "program/ir/program.h"
#include "sim/described_costs.h"

namespace molen::plan {

// The model, the layout and the machine of a run. Each fails with a sentence that names column and value.
arch::Architecture architecture_of(const Run& run);
program::Setting setting_of(const Run& run, const arch::Architecture& arch);
cluster::Cluster cluster_of(const Run& run);

// Returns the prediction, or why there is none.
Result<RunPrediction> predict(const Run& run, const sim::Factors& factors);

// Returns the seconds of a step under each of several sets of factors, of which there is at least one. Blanks are
// chosen by the first. It builds the program once, so it is much faster than as many predictions; memory is left out.
Result<std::vector<double>> predict_times(const Run& run, const std::vector<sim::Factors>& sets);

}  // namespace molen::plan
