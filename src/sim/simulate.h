// The simulator, which takes step programs as exec does. An op starts when exec would start it: in list order on its
// stream, after the ops that it waits for. It takes the time that the cost model gives, and longer when more threads
// share the cores meanwhile. The simulator runs the stages of a pipeline together, because they wait for each other.
// All ranks of a stage run the same program at the same pace, so one timeline stands for them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "program/ir/stages.h"
#include "program/ir/timeline.h"
#include "sim/costs.h"

namespace molen::sim {

// Returns the timeline of each stage. Attention within documents takes the FLOPs that its steps state: those of whole
// sequences, unless attend_within_documents (attended.h) has said what the data leaves of them. OpTime::waited_s is how
// long an op waited for the last stage that takes part in it. Throws UsageError for an op whose kind was not measured,
// and Error for ops that wait for each other.
std::vector<program::Timeline> simulate(const program::Stages& stages, const Costs& costs);

// Does the same. Returns nothing as soon as `accepts` refuses timelines: it gets those of ops that do not slow each
// other down, and, where costs have an interference, those of ops that do.
std::optional<std::vector<program::Timeline>> simulate_if(
    const program::Stages& stages, const Costs& costs,
    const std::function<bool(const std::vector<program::Timeline>&)>& accepts);

// Whether threads of the stages may share cores. If not, ops take the time of the longest path to them.
bool may_slow_down(const program::Stages& stages, const CoreContention& sharing);

// Does the same from the work of each op of each stage: its seconds on cores of its own, finite and not negative.
std::vector<program::Timeline> simulate(const program::Stages& stages, std::vector<std::vector<double>> work,
                                        const CoreContention& sharing);

// Does the same event by event, which also covers threads that share cores. `simulate` calls it where they may.
std::vector<program::Timeline> simulate_events(const program::Stages& stages, std::vector<std::vector<double>> work,
                                               const CoreContention& sharing);

// Returns the stage with the most seconds. Stages that differ by rounding alone count as equal: the first one is it.
std::size_t busiest_of(const std::vector<double>& seconds);

// Returns the stage that computes for the longest time, which decides the step.
std::size_t busiest_stage(const program::Stages& stages, const std::vector<program::Timeline>& timelines);

// Returns the duration of a step, which ends when its last stage does.
double step_seconds(const std::vector<program::Timeline>& stages);

}  // namespace molen::sim
