// The plan of clocks of `molen simulate --clocks`, as JSON and as text.
#pragma once

#include <filesystem>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "plan/clock_plan.h"

namespace molen::apps {

// `hosts`: what the nodes take in the step beside their devices, with any plan.
Json clock_plan_json(const plan::ClockPlan& plan, Joules hosts);
void print_clock_plan(const plan::ClockPlan& plan, Joules hosts);

// Writes the programs of all stages that set the plan's clocks, as `molen train --program FOLDER` reads them: `built`
// with the plan's ops that set clocks. `built` are programs of the same configuration as the plan's, with types. Throws
// UsageError where the folder has such files already.
void write_clock_programs(const plan::ClockPlan& plan, std::vector<program::Program> built,
                          const std::filesystem::path& folder);

}  // namespace molen::apps
