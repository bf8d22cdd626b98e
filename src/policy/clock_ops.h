// The clocks of a plan as ops of the step's programs (program::SetClock), and the time that a step takes with such ops.
#pragma once

#include <vector>

#include "policy/clock_model.h"
#include "policy/step_graph.h"
#include "policy/task_graph.h"
#include "program/ir/stages.h"

namespace molen::policy {

// Seconds of each op of each stage.
using StageSeconds = std::vector<std::vector<double>>;

// Returns the choices with which a clock holds for whole instances. An instance gets the highest clock that one of its
// tasks has in `choices`. A clock that a stage would keep for less than `least_s` of compute is not worth a change: the
// instances that have it get the next higher clock beside them, and where there is none, the instances beside them get
// theirs. No task becomes slower. `work`: the seconds of the ops at the highest clock.
Choices hold_for_instances(const program::Stages& stages, const StepGraph& step, Choices choices,
                           const StageSeconds& work, double least_s);

// Returns the programs of all stages with ops that set the clocks of `choices`, as hold_for_instances returns them: one
// op before the first instance that computes, and one before each instance with another clock than the one before it.
std::vector<program::Program> with_clock_ops(const program::Stages& stages, const StepGraph& step,
                                             const Choices& choices);

// Returns seconds for the ops of programs that with_clock_ops returned, from those of the programs before: the ops that
// set clocks get 0.
StageSeconds with_ops_between(const program::Stages& with_clocks, const StageSeconds& work);

// Returns the seconds that ops take with the clocks that the programs set. `work`: their seconds at the highest clock.
// A change takes `change_s`, in which the device computes nothing. Steps follow each other, so a step begins with the
// clock that its last op of the kind has set.
StageSeconds work_with_clock_ops(const program::Stages& stages, StageSeconds work, const ClockModel& clocks,
                                 double change_s);

// How often the clock of a stage changes in a step that follows another one.
std::vector<int> changes_of_clock(const program::Stages& stages);

}  // namespace molen::policy
