// The tasks of a step: what a stage computes without another choice of its clock, and what must end before it starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/clock_model.h"
#include "policy/task_graph.h"
#include "program/ir/stages.h"
#include "program/ir/timeline.h"
#include "program/schedule/schedule.h"

namespace molen::policy {

// The place of a task of the graph in the step. A message or another op that no clock changes has the stage -1.
struct Activity {
  int stage = -1;
  std::string kind;               // "forward", "backward", ..., or a phase for work that is of no micro-batch
  std::int64_t micro_batch = -1;  // -1: of none
};

struct StepGraph {
  TaskGraph graph;
  std::vector<Activity> activities;  // of each task
  // By stage and op of the expansion: the task that computes it, or -1 for an op on which no clock acts. Empty for the
  // graph of a schedule.
  std::vector<std::vector<int>> task_of_op;
};

// The choices of each kind of action, by global stage. Kinds that the schedule does not have may be empty.
struct ActionChoices {
  std::vector<std::vector<Choice>> forward, backward, backward_input, backward_weights;
  double transfer_s = 0.0;  // of a message between stages; it keeps no device busy
};

// Returns the graph of a schedule: the actions of a stage run in its order, and wait for those of other stages as
// program/schedule/schedule.h says. A device of each stage waits with `wait_watts`. Throws UsageError as
// program::check does, and for an action without choices.
StepGraph graph_of(const program::Schedule& schedule, const ActionChoices& choices, double wait_watts);

// Returns the graph of the programs of all stages, one device for each, from the seconds that their ops take in a
// Timeline, measured or predicted, at the highest clock. A task has the compute ops of an instance, with the
// collectives between them. It is split where it waits for other stages. Other ops, such as messages and reductions of
// gradients, are tasks without a choice. `one_at_a_time`: collectives of a rank take turns.
//
// Any choice of clocks takes no longer in the simulator than in the graph: an op may start within a task no earlier
// than at the highest clock, and what follows it in its task takes no less time.
// Throws UsageError for a program in which an op waits for a later one of its list.
StepGraph graph_of(const program::Stages& stages, const std::vector<program::Timeline>& timelines,
                   const ClockModel& clocks, bool one_at_a_time);

// Returns the seconds of each op of each stage with these choices, as sim::simulate takes them.
std::vector<std::vector<double>> work_with(const StepGraph& step, const program::Stages& stages,
                                           const std::vector<program::Timeline>& timelines, const ClockModel& clocks,
                                           const Choices& choices);

// Returns the seconds of each op without those in which it waited for other ranks.
std::vector<double> works_of(const program::Timeline& timeline);

// The load that the compute of an op puts on its device.
Load load_of(const program::Step& step);

}  // namespace molen::policy
