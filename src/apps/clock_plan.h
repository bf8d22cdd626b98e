// The plan of clocks of `molen simulate --clocks`, as JSON and as text.
#pragma once

#include "base/json.h"
#include "base/units.h"
#include "plan/clock_plan.h"

namespace molen::apps {

// `hosts`: what the nodes take in the step beside their devices, with any plan.
Json clock_plan_json(const plan::ClockPlan& plan, Joules hosts);
void print_clock_plan(const plan::ClockPlan& plan, Joules hosts);

}  // namespace molen::apps
