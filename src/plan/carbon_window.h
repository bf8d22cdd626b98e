// When to start a run so that its electricity emits least, by a forecast of the grid's carbon intensity.
#pragma once

#include "cluster/intensity.h"

namespace molen::plan {

// A time in which a run may take place: seconds since 1970, and the mean intensity in between (kg CO2e per J).
struct CarbonWindow {
  double start_s = 0.0, end_s = 0.0;
  double kg_per_j = 0.0;
};

struct CarbonWindows {
  CarbonWindow best;     // least intensity; of equal ones, the first
  CarbonWindow at_once;  // starts at the earliest time
  CarbonWindow worst;    // most intensity
  double latest_start_s = 0.0;
};

// Returns the windows of a run that draws a constant power for `duration_s` (above 0), starts at `earliest_s` or later
// and ends by `deadline_s`. A run of another power at some times has the same best window only on average.
// The mean over a window is linear in the start between the times at which a value changes at either end of the window,
// so the best and the worst start are the earliest one, the latest one, or such that a change is at an end of theirs.
// Throws UsageError that says by how much the run is too long for the time that is left, or the forecast too short.
CarbonWindows carbon_windows(const cluster::IntensitySeries& forecast, double duration_s, double earliest_s,
                             double deadline_s);

}  // namespace molen::plan
