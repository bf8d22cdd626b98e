// The times and joules that a run measured of its steps. They stand beside a prediction of the same run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/json.h"

namespace molen::apps {

// Medians over the last 51 steps of a run.
struct MeasuredRun {
  std::int64_t steps = 0;
  double step_s = 0.0;
  std::map<std::string, double> phase_s;  // mean over ranks, by program::phase_keys
  std::optional<double> step_j;           // of what the run's meters cover; absent: not measured
  std::string energy_coverage;            // the parts that `step_j` leaves out: "gpu only"; empty: none
};

// Reads the metrics of a run directory; nothing when the run has no step yet. Throws UsageError for damaged metrics.
std::optional<MeasuredRun> measured_run(const fs::path& run);

Json to_json(const MeasuredRun& run);

}  // namespace molen::apps
