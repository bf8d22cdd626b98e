// Pipeline schedules as data: the actions of each stage, in order. A schedule does not depend on bodies, buffers or
// transports; pass::pipeline turns the actions into instances.
//
// Each of p stages holds v chunks (virtual stages) of the model; a step has m micro-batches. Chunks are numbered
// through the model by their *global stage* g = 0 .. p*v-1. Actions of one stage run in list order. Between stages:
//   F(g, i) runs after F(g-1, i)
//   B(g, i) and I(g, i) run after F(g, i), and after B(g+1, i) or I(g+1, i)
//   W(g, i) runs after I(g, i)
// Every schedule made here runs the backward (or weight) actions of one chunk in ascending micro-batch order. All of
// them therefore sum gradients in the same order and give the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/ir/pipeline.h"
#include "program/ir/timeline.h"

namespace molen::program {

// An action is a pass of a chunk of layers; a recomputation belongs to the backward that needs it.
struct Action {
  Pass kind{};
  int chunk = 0, micro_batch = 0;
  bool operator==(const Action&) const = default;
};

struct Schedule {
  int stages = 1, chunks = 1, micro_batches = 1;
  Placement placement = Placement::kInterleaved;
  std::vector<std::vector<Action>> order;  // by stage, in run order

  int global_stages() const { return stages * chunks; }
  int global_stage(int stage, int chunk) const { return global_stage_of(placement, stages, stage, chunk); }
  int stage_of(int global_stage) const { return program::stage_of(placement, stages, global_stage); }
  int chunk_of(int global_stage) const { return global_stage / stages; }
  bool operator==(const Schedule&) const = default;
};

// Limit on the actions of a schedule; larger schedules are refused because the list would not fit into memory.
inline constexpr std::int64_t kMaxScheduleActions = std::int64_t{1} << 24;

// Throws UsageError, which suggests the nearest name, for a name that is no kind.
ScheduleKind parse_schedule_kind(std::string_view name);

// Makes the schedule of a kind, for any number of micro-batches. `chunks` is 1 for 1f1b and zb-h1, 2 for zb-v, and any
// number for gpipe (breadth first) and interleaved (which with 1 chunk is 1f1b). The table gives the peak number of
// activations on a stage. An activation counts from F to B, or to W when backwards are split.
//   gpipe         m*v chunks' activations on each stage
//   1f1b          min(m, p-s) on stage s
//   interleaved   min(m*v, 2(p-s-1) + (v-1)N + 1) chunks' activations. Micro-batches go through the chunks in groups
//                 of N (Narayanan et al. 2021; Megatron-LM warms up with 2(p-s-1) + (v-1)N). Megatron-LM requires m
//                 divisible by N; here floor(m/p) groups are as even as possible, so
//                 N = ceil(m / max(1, floor(m/p))), which is p when p divides m. A group smaller than p would starve
//                 the chunks, and so would a padded one.
//   zb-h1         at most min(m, p) on every stage (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", 2.1)
//   zb-v          at most min(2m, 2p) half stages' activations on every stage: as many as 1f1b has on stage 0 (ibid.,
//                 section 6)
// Throws UsageError for counts that the kind does not support.
Schedule make_schedule(ScheduleKind kind, int stages, int chunks, int micro_batches);

// Returns the Pipeline of a Setting for a kind. zb-v always has 2 chunks, placed in a V, whatever `chunks` says.
Pipeline pipeline_of(ScheduleKind kind, int chunks);
// Returns whether backwards run in halves (I and W).
bool has_halves(const Schedule& schedule);

// Returns the share of a step in which stages are idle, from its start to the barrier at its end. The formula assumes
// that F = I = W = B/2 for each chunk, that transfers are free, and that m is at least p (for zb-v, 2p-1). No schedule
// on the V idles less than zb-v: stage p-1 cannot start before p-1 chunks have run, and it has 6m chunk actions to run.
double ideal_idle_share(ScheduleKind kind, int stages, int chunks, int micro_batches);

// Throws UsageError, which names stage, action and reason, for an action that is missing, repeated, of no chunk or
// micro-batch, or earlier than an action of its own stage that it needs. Also throws when stages wait for each other in
// a circle. Takes O(actions).
void check(const Schedule& schedule);

// Seconds of each action by global stage, and of a transfer between neighbours on different stages. A transfer is a
// latency: it keeps no stage busy.
struct ScheduleCosts {
  std::vector<double> forward_s, backward_s, backward_input_s, backward_weight_s;
  double transfer_s = 0.0;
};
// Returns costs that are the same for all global stages. B takes as long as I and W together.
ScheduleCosts uniform_costs(const Schedule& schedule, double forward_s, double backward_input_s,
                            double backward_weight_s, double transfer_s = 0.0);

struct ScheduleTimes {
  std::vector<std::vector<OpTime>> actions;  // by stage and position
  double total_s = 0.0;                      // the end of the last action of all stages
};
// Starts each action when its stage is free and its inputs have arrived. Throws as check() does. Also throws UsageError
// for costs that are negative, not finite, or not one for each global stage.
ScheduleTimes simulate(const Schedule& schedule, const ScheduleCosts& costs);
// Returns the idle seconds of all stages from the step's start to total_s, divided by (stages x total_s).
double idle_share(const ScheduleTimes& times);

// Returns PyTorch's CSV with compute actions only (docs/formats/pipeline-schedule.md). For each s that check() accepts,
// parse_schedule(print_schedule(s)) == s.
std::string print_schedule(const Schedule& schedule);
// Returns the schedule of a text, which check() accepts. Throws UsageError with `origin`, the line, the cell, and the
// expected text.
Schedule parse_schedule(std::string_view text, std::string_view origin);
// Returns "3I7": global stage, kind (F, B, I, W), micro-batch.
std::string to_string(const Schedule& schedule, int stage, const Action& action);

}  // namespace molen::program
