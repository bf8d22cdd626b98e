// The plots of an experiment: what the talks on GPT-NL and Frontier showed of theirs.
#pragma once

#include <string>
#include <vector>

#include "plan/sweep.h"

namespace molen::plan {

// More bars than this are hard to read: a plot then has those with the most tokens a second, and says so.
inline constexpr std::size_t kMostBars = 150;

struct SweepPlot {
  std::string file;  // "tokens_per_s_per_device.svg"
  std::string svg;
};

// Returns the plots of the figures that at least one row has: tokens/s per device, MFU and kWh per step, as bars over
// the trials of a grid, or as lines over the sizes of a job, with speed-up and efficiency beside the ideal ones.
std::vector<SweepPlot> plots_of(const SweepPlan& plan, const std::vector<TrialRow>& rows);

}  // namespace molen::plan
