// Builds the programs of a pipeline one by one, for whoever may not need all of them.
#pragma once

#include <functional>

#include "program/build/build.h"

namespace molen::program {

// Does what build_stages does, and gives each program to `take` before it builds the next one. Ends when that returns
// false.
void build_each_stage(const arch::Architecture& arch, Setting setting, const Schedule* file, bool types,
                      const std::function<bool(Program)>& take);

namespace pass {

// A schedule and the times of its actions, by which all stages order their messages.
struct Ordered {
  Schedule schedule;
  ScheduleTimes times;
};
Ordered with_times(Schedule schedule);
// Does what the pass `pipeline` does, for stages that share one schedule.
Program pipeline(Program program, const Ordered& ordered);

}  // namespace pass
}  // namespace molen::program
