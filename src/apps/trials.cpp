#include "apps/trials.h"

#include <fmt/format.h>

#include <tuple>

#include "apps/computing.h"
#include "base/error.h"
#include "base/file.h"
#include "base/processor.h"
#include "cluster/cluster.h"
#include "comm/mpi/mpi.h"
#include "config/values.h"
#include "plan/measured_trial.h"

namespace molen::apps {
namespace {

constexpr const char* kUsualLimit = "1 h";

bool measured_here(const sim::Calibration& calibration) {
  return kBuild.libtorch && calibration.cpu == cpu_model();
}

Seconds limit_of(const TrialArguments& o) {
  const auto limit = config::parse_seconds(o.limit.value_or(kUsualLimit));
  if (!limit) throw UsageError("--time-limit: {}", limit.reason());
  if (limit.value().value <= 0.0) throw UsageError("--time-limit: \"{}\" leaves a trial no time", *o.limit);
  return limit.value();
}

}  // namespace

void add_trial_options(CLI::App& verb, TrialArguments& o) {
  verb.add_option("--cluster", o.cluster,
                  "predicts the trials, as `molen simulate` does, on this cluster (by name or TOML file, "
                  "docs/formats/cluster.md) or on a calibration (what `molen calibrate` wrote)");
  verb.add_option("--communicator", o.communicator, "of a calibration, as calibrated: self, threads, mpi");
  verb.add_option("--noise-scale", o.noise_scale,
                  "gradient noise scale in tokens, or the run that measured it (train.noise_scale_every): the time to "
                  "a loss beside that of a step, since a larger batch needs more tokens to the same loss");
  verb.add_flag("--real", o.real, "trains the trials and measures their steps");
  verb.add_option("--launch", o.launch,
                  "real: the command that starts the ranks, \"mpirun -n {ranks}\" or \"srun -N {nodes} -n {ranks}\"; "
                  "without it they are threads. Its places: {ranks}, {nodes} (without --nodes those of the Slurm "
                  "allocation), {first_node} (for srun --relative), {config}, {run}");
  verb.add_option(
          "--steps", o.steps,
          fmt::format("real: steps to measure, after {} of warm-up (default: {})", plan::kWarmupSteps, kTrialSteps))
      ->check(CLI::Range(1, 1000000));
  verb.add_option("--time-limit", o.limit,
                  fmt::format("real: the time that a trial may take, as \"20 min\"; then it is ended, and has failed "
                              "(default: {})",
                              kUsualLimit));
}

void require_trial_modes(const TrialArguments& o, const std::string& verb) {
  if (o.real && o.cluster)
    throw UsageError("--real: the trials train here, so --cluster has no effect; give one of the two");
  if (!o.real && !o.cluster)
    throw UsageError(
        "`molen {}` needs --cluster NAME, on whose description (molen has {}) or calibration trials are predicted, or "
        "--real, which trains them",
        verb, fmt::join(cluster::shipped(), ", "));
  for (const auto& [option, given] : {std::pair{"--launch", o.launch.has_value()},
                                      {"--steps", o.steps.has_value()},
                                      {"--time-limit", o.limit.has_value()}})
    if (!o.real && given)
      throw UsageError("{}: is for --real; --cluster predicts one step, and starts nothing", option);
  if (!o.real) return;
  if (o.communicator)
    throw UsageError("--communicator: says which measurements of a calibration count; --real measures");
  if (!o.output) throw UsageError("--output: --real needs a folder for the runs of its trials");
  if (comm::launch_environment().size > 1)
    throw UsageError(
        "--real: this process is one of several ranks; start `molen {}` once, and --launch starts the ranks of each "
        "trial",
        verb);
}

plan::Machine predicted_machine(const ConfigOptions& options, const plan::PredictedOn& on, const config::Config& c) {
  if (const cluster::Cluster* described = on.described())
    return plan::machine_on(*described, planned_ranks(options).ranks, options.ranks_per_node);
  config::Config of = c;
  if (on.calibrated() && of.device.kind == "auto") of.device.kind = "cpu";  // which a calibration is of
  plan::Machine machine = planned_machine(options, of);
  if (!measured_here(*on.calibrated())) machine.measure_precision = nullptr;
  return machine;
}

plan::PredictedOn trials_predicted_on(const TrialArguments& o) {
  plan::PredictedOn on = plan::predicted_on(*o.cluster, o.communicator.value_or(""));
  if (on.calibrated() && measured_here(*on.calibrated())) computing();
  return on;
}

plan::Outcome predicted_trial(const ConfigOptions& options, const plan::PredictedOn& on, const config::Config& config,
                              int ranks) {
  ConfigOptions of_trial = options;
  if (ranks > 0) of_trial.ranks = ranks;
  plan::require_device(config, on);
  return plan::predict(config, on, predicted_machine(of_trial, on, config));
}

RealTrials::RealTrials(const TrialArguments& o, const TrialSizes& sizes)
    : ranks_per_node_(sizes.ranks_per_node), steps_(o.steps.value_or(kTrialSteps)), limit_(limit_of(o)) {
  if (o.launch) launcher_.emplace(*o.launch), allocated_ = plan::allocated_nodes();
  require_places(sizes);
  if (allocated_) pool_.emplace(*allocated_);
}

// A launcher decides how many ranks there are; it can be told only what its line has a place for.
void RealTrials::require_places(const TrialSizes& s) const {
  if (!launcher_ && s.nodes)
    throw UsageError(
        "--nodes: without --launch the ranks are threads of one process; --launch \"srun -N {nodes}\" starts nodes");
  if (!launcher_ && s.ranks_per_node)
    throw UsageError("--ranks-per-node: without --launch the ranks are threads of one process");
  if (s.at_once > 1 && (!launcher_ || !allocated_ || !launcher_->has("first_node")))
    throw UsageError(
        "--parallel: trials of --real that run at the same time need nodes of their own: a Slurm allocation "
        "(SLURM_JOB_NUM_NODES), and a --launch that starts each on its nodes, \"srun -N {nodes} --relative "
        "{first_node}\"");
  if (!launcher_) return;
  const bool all_nodes = allocated_ && !s.ranks;  // without a number, a trial has the whole allocation
  const bool knows_nodes = s.nodes || all_nodes || (s.ranks && s.ranks_per_node);
  const bool knows_ranks = s.ranks || ((s.nodes || all_nodes) && s.ranks_per_node);
  if (s.nodes && !launcher_->has("nodes"))
    throw UsageError("--nodes: --launch has no {nodes} in it, in whose place the number goes");
  if (s.ranks && !launcher_->has("ranks") && !(launcher_->has("nodes") && s.ranks_per_node))
    throw UsageError("--ranks: --launch has no {ranks} in it, in whose place the number goes");
  if (launcher_->has("nodes") && !knows_nodes)
    throw UsageError(
        "--launch: {nodes} needs --nodes, a Slurm allocation (SLURM_JOB_NUM_NODES), or --ranks with "
        "--ranks-per-node");
  if (launcher_->has("ranks") && !knows_ranks)
    throw UsageError("--launch: {ranks} needs --ranks, or --ranks-per-node beside nodes");
  if (launcher_->has("first_node") && (!allocated_ || !knows_nodes))
    throw UsageError(
        "--launch: {first_node} counts the nodes of a Slurm allocation (SLURM_JOB_NUM_NODES), of which each trial "
        "has {nodes}");
}

int RealTrials::nodes_of(const plan::JobSize& size) const {
  if (size.nodes > 0) return size.nodes;
  return ranks_per_node_ && size.ranks > 0 ? (size.ranks + *ranks_per_node_ - 1) / *ranks_per_node_ : 0;
}

std::string RealTrials::conditions() const {
  return fmt::format("{} steps by `{}`", steps_, launcher_ ? launcher_->line() : "");
}

plan::Outcome RealTrials::train(const config::Config& config, const plan::JobSize& size, const fs::path& run) {
  plan::MeasureOptions m;
  m.launch = launcher_;
  m.ranks = size.ranks, m.nodes = nodes_of(size);
  m.steps = steps_, m.limit = limit_;
  m.folder = run;
  m.molen = fs::read_symlink("/proc/self/exe");
  if (!pool_ || m.nodes == 0) return plan::measure(config, m);
  if (m.nodes > pool_->nodes()) {
    plan::Outcome refused;
    refused.why = fmt::format("it needs {}, and the Slurm allocation has {} (SLURM_JOB_NUM_NODES)",
                              counted(m.nodes, "node"), pool_->nodes());
    return refused;
  }
  const auto taken = pool_->take(m.nodes);
  // Where a signal ended another trial, which left the nodes for which this one has waited, this one does not begin. It
  // throws the same, because nobody knows whose exception the caller sees first.
  if (const std::lock_guard lock(mutex_); ended_) std::rethrow_exception(ended_);
  m.first_node = taken.first();
  try {
    return plan::measure(config, m);
  } catch (...) {
    if (const std::lock_guard lock(mutex_); !ended_) ended_ = std::current_exception();
    throw;
  }
}

}  // namespace molen::apps
