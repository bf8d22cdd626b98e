// The search for the best layout of a job on a described cluster: it bounds all layouts without building a program, and
// simulates them in the order of their bounds until no other one can be better.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arch/architecture.h"
#include "base/units.h"
#include "cluster/cluster.h"
#include "data/attended.h"
#include "plan/calculus.h"
#include "program/ir/program.h"
#include "program/ir/timeline.h"
#include "sim/described_costs.h"
#include "sim/described_energy.h"

namespace molen::plan {

// The figure that the best layout has least of. CO2 is that of the site's electricity, and cost that of electricity and
// of device hours (`site_costs`). CO2 ranks layouts as the energy does; so does cost where the site has no price of
// device hours.
enum class Objective { kTime, kEnergy, kCost, kCo2, kMemory };
std::string_view name_of(Objective objective);           // "time", "energy", "cost", "co2", "memory"
Objective objective_from_name(const std::string& name);  // throws UsageError with the nearest name
// Throws UsageError that names the key if the site's figures for the objective are 0: all layouts would be equal.
void require_figure(Objective objective, const cluster::Cluster& cluster);

// The choices that distinguish the layouts of a search.
struct Candidate {
  int tensor = 1, stages = 1, chunks = 1, context = 1;
  int zero = 0, shards = 1;  // ZeRO stage, and the data-parallel ranks that share one copy in stages 2 and 3
  bool sequence_parallel = false;
  std::int64_t micro_batch = 1;
  program::ScheduleKind schedule = program::ScheduleKind::k1f1b;
  program::Recompute recompute = {};
  // The choices that variants have, as the members of program::Setting.
  std::int64_t unit_layers = 1;
  int prefetch = 1;
  bool stages_inside = false;  // neighbours of a pipeline are nearer than neighbours of data-parallel ranks
  program::ContextForm context_form = program::ContextForm::kGather;
  std::int64_t tensor_chunks = 1;
  program::Offload offload = {};
  bool variant = false;  // whether it differs from its layout in these choices or in what is computed again
};

// Returns every layout over exactly `ranks` ranks of nodes of `local_ranks`:
//   - tensor ranks that fit the model and share a node
//   - numbers of stages that the model has layers for: 1F1B, interleaved (2, 4 and 8 chunks), ZB-H1 and ZB-V
//   - context ranks, for sequences of at least 16384 tokens
//   - ZeRO 0 to 3 over all data-parallel ranks, and 2 and 3 over those of a node
//   - micro-batches of powers of two sequences that divide a rank's share of the batch
//   - nothing, attention, or everything computed again
// Tensor ranks have sequence parallelism. Each layout is followed by its variants. All combinations of:
//   - ZeRO 2 and 3: units of one layer, of half a layer and of two layers
//   - ZeRO 3: one and two units gathered ahead
//   - stages of nodes with room for several: data-parallel ranks inside of stages, and the other way round
// And one at a time:
//   - tensor ranks: rows in two pieces, whose exchanges run beside the other's compute; no sequence parallelism
//   - context ranks: keys and values along a ring
//   - everything computed again: in every second layer alone; attention computed again: with it the norms and the
//     activation, whose products are not
//   - on the host: the optimizer's states, the activations of layers, or everything that can be there
// GPipe is left out: it takes the time of 1F1B and at least its memory.
std::vector<Candidate> candidates_of(const arch::Architecture& arch, const program::Setting& base, int ranks,
                                     int local_ranks);
// Returns the name of a setting's layout, with the choices of variants.
std::string name_with_variant(const program::Setting& setting);
// Returns the setting of a candidate: `base` with its choices.
program::Setting setting_of(const Candidate& candidate, const program::Setting& base, int ranks);

// Lower bounds, from closed formulas. They hold for dense models, which are all that run on devices. `attended` is the
// share of attention's work that a document mask leaves (data::Attended); 1 without one.
struct Bound {
  double step_s = 0.0;        // of the step that sim::simulate would give
  double energy_j = 0.0;      // of the computers in that step
  double memory_bytes = 0.0;  // of the plan of the fullest rank
};
class Bounds {
 public:
  Bounds(const arch::Architecture& arch, const program::Setting& base, int ranks, const sim::DescribedCosts& costs,
         const sim::Factors& factors, double attended = 1.0);
  Bound of(const Candidate& candidate) const;

 private:
  double layer_s(const Candidate& candidate, bool forward) const;  // products of one micro-batch on one rank
  double exchange_s(const Candidate& candidate) const;             // of tensor ranks, around one block of a layer

  const arch::Architecture& arch_;
  const program::Setting& base_;
  int ranks_;
  const sim::DescribedCosts& costs_;
  const sim::Factors& factors_;
  double layer_flops_ = 0.0, head_flops_ = 0.0;  // forward FLOPs of one sequence
  double down_share_ = 0.0;                      // share of the MLP's last product in the FLOPs of a layer
  double parameters_ = 0.0;
};

// The seconds that each kind of op works, by program::Phase and by program::kCommStreams. Ops of different streams work
// beside each other, so these seconds do not add up to the step.
struct OpSeconds {
  std::vector<std::map<std::string, double>> of_phase, of_stream;
};

// A layout that was simulated.
struct Simulation {
  Candidate candidate;
  program::Setting setting;
  Bound bound;
  double step_s = 0.0;
  double spread = 0.0;  // with a probability of 80 % the true step is within this (sim::ends_of)
  sim::StepEnergy energy;
  SiteCosts site;                        // of that energy, and of the devices for that time
  Bytes memory;                          // plan of the fullest rank
  program::PhaseSeconds phases;          // of the stage that computes for the longest time
  std::vector<double> exposed_s;         // of that stage, by program::kCommStreams: communication beside idle compute
  sim::WhereJoules where;                // of the devices of all stages
  OpSeconds ops;                         // of the stage that computes for the longest time
  double of(Objective objective) const;  // in s, J of the computers, euros, kg CO2e or bytes
};

struct LayoutLimits {
  // The bytes of a device that a plan may take. If absent, a plan may take what the driver and the communicators of its
  // layout leave (MemoryOverheads).
  std::optional<Bytes> memory = {};
  std::size_t shown = 5;  // best layouts to return
  // Most layouts to simulate; ten times as many programs are built at most. A quarter is for the variants of the best.
  std::size_t simulated = 200;
  std::optional<double> watts = {};  // of a node, over a step
  // Limits of the whole run, which has `run_steps` steps like the predicted one. Evaluations and checkpoints are left
  // out.
  double run_steps = 0.0;
  std::optional<double> run_s = {};  // s
  std::optional<double> run_j = {};  // J of the site, with its PUE
};

// Returns the most bytes of a device that a plan may take: the limit, or what the driver's context leaves.
Bytes most_for_a_plan(const LayoutLimits& limits, const cluster::Device& device);

// Returns whether a layout takes no more time, energy and memory than the figures of another, and less of one of them.
bool dominates(const Simulation& layout, const Bound& other);

struct SearchResult {
  std::vector<Simulation> best;  // the best first
  // The Pareto front of step time, energy and memory: the simulated layouts within the limits that no other one of
  // these dominates, by ascending step time. Of equal ones, the first is there.
  std::vector<Simulation> front;
  // Layouts that were not simulated and whose bounds no layout of the front reaches: they may belong to the front. 0:
  // the front is that of all layouts.
  std::size_t front_open = 0;
  // Layouts in all; those whose kept state exceeds the memory by its bound, whose run exceeds a limit by its bound,
  // whose plan exceeds the memory, which cannot be built, which were simulated, and which the bound excludes.
  std::size_t all = 0, too_large_kept = 0, beyond_run = 0, too_large = 0, refused = 0, simulated = 0, excluded = 0;
  // Layouts among the simulated ones that exceed a limit, by the first of the limits that they exceed.
  std::size_t too_much_power = 0, too_long = 0, too_much_energy = 0;
  std::string refusal;  // why the first layout that cannot be built cannot
  // CPU seconds to find and to bound all layouts, and to build and to simulate. The search has one thread.
  double bounded_cpu_s = 0.0, simulated_cpu_s = 0.0;
  bool complete = false;  // whether no layout that was not simulated can be better than those returned
};

// `attended`: what the documents of the data leave of attention's work; needed if `base` has a document mask.
// `progress` gets the share of the work that is done and the layout that is simulated.
SearchResult search(const arch::Architecture& arch, const program::Setting& base, int ranks, int local_ranks,
                    Objective objective, const LayoutLimits& limits, const sim::DescribedCosts& costs,
                    const sim::Factors& factors, const std::optional<data::Attended>& attended = std::nullopt,
                    const std::function<void(double share, const std::string& doing)>& progress = {});

// A reason why a layout loses against the best: what it has more of in a phase, in a wait, or in idle hosts. The
// seconds are those of the stage that computes for the longest time; the joules are those of all devices, or of the
// hosts.
struct Reason {
  std::string name;  // "forward", "bubble", "waiting for tp", "hosts"
  double seconds = 0.0, joules = 0.0;
  // The kind of op of that phase, or of the stream that is waited for, that works the most seconds more; empty if none
  // works a tenth of `seconds` more.
  std::string op = {};
  double op_seconds = 0.0;
  // "bubble +1.20 s (+340 kJ)", "bubble +340 kJ (+1.20 s)", "forward +1.20 s (+340 kJ; forward attention +0.90 s)"
  std::string text(bool joules_first) const;
};
// Returns at most three reasons, largest first: by joules if `of_energy`, else by seconds. Each is more than 1 % of the
// step of the best or of its energy.
std::vector<Reason> reasons_beside(const Simulation& loser, const Simulation& best, bool of_energy);
// Returns whether a layout loses by joules and not by seconds. It does for energy and CO2, and for cost if device hours
// cost nothing.
bool is_of_energy(Objective objective, const cluster::Site& site);

// Returns the configuration keys of a candidate with their values, as `config::assign` takes them.
std::vector<std::pair<std::string, Json>> keys_of(const Candidate& candidate, const program::Setting& setting);

}  // namespace molen::plan
