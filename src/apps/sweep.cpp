// molen sweep: the trials of a grid or of a scaling experiment, predicted on a cluster or a calibration, or trained.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "apps/cli.h"
#include "apps/computing.h"
#include "apps/plan_calculus.h"
#include "apps/plan_search.h"
#include "apps/trials.h"
#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/measured_trial.h"
#include "plan/sweep.h"
#include "plan/sweep_file.h"
#include "plan/sweep_plots.h"

namespace molen::apps {
namespace {

struct SweepArguments {
  TrialArguments trials;
  std::vector<std::string> grid;
  std::optional<std::string> scaling, ranks, nodes;
  std::optional<int> parallel;
  std::string format = "text";
};

// Refuses options that have no meaning together, or none without another.
void require_modes(const SweepArguments& o) {
  require_trial_modes(o.trials, "sweep");
  if (o.grid.empty() && !o.scaling)
    throw UsageError(
        "`molen sweep` needs --grid key=value,value,... or --scaling strong|weak: what differs between "
        "trials");
  if (!o.trials.real && o.parallel)
    throw UsageError("--parallel: is for --real; predictions are made one after the other");
  if (o.ranks && o.nodes) throw UsageError("--nodes: give --ranks or --nodes, not both");
  if (o.scaling && !o.ranks && !o.nodes)
    throw UsageError("--scaling: --nodes 1,2,4 or --ranks 1,2,4 says over which sizes of the job");
}

Tried tried_by(const ConfigOptions& options, const SweepArguments& o) {
  if (!o.trials.real) return {trials_predicted_on(o.trials), nullptr};
  const TrialSizes sizes{o.ranks.has_value(), o.nodes.has_value(), options.ranks_per_node, o.parallel.value_or(1)};
  Tried tried;
  tried.real = std::make_unique<RealTrials>(o.trials, sizes);
  return tried;
}

// Returns the size of a job of so many nodes or ranks.
plan::JobSize size_of(const ConfigOptions& options, const SweepArguments& o, const Tried& tried, int amount) {
  const std::optional<int> of_node = options.ranks_per_node;
  const cluster::Cluster* described = tried.described();
  plan::JobSize size{o.nodes ? amount : 0, o.nodes ? 0 : amount};
  if (o.nodes && of_node) size.ranks = amount * *of_node;
  if (described && o.nodes) size.ranks = nodes_on(*described, amount) * of_node.value_or(described->node.devices);
  if (described && !of_node && size.ranks > described->node.devices && size.ranks % described->node.devices != 0)
    throw UsageError("--ranks: {} ranks are not whole nodes of {} devices of {}", size.ranks, described->node.devices,
                     described->name);
  if (described) plan::machine_on(*described, size.ranks, of_node);
  if (of_node && size.ranks % *of_node != 0)
    throw UsageError("--ranks-per-node: {} ranks are not whole nodes of {}", size.ranks, *of_node);
  return size;
}

std::vector<plan::JobSize> sizes_of(const ConfigOptions& options, const SweepArguments& o, const Tried& tried) {
  const std::string option = o.nodes ? "--nodes" : "--ranks";
  const std::vector<int> amounts = o.nodes   ? plan::parse_sizes(option, *o.nodes)
                                   : o.ranks ? plan::parse_sizes(option, *o.ranks)
                                             : std::vector<int>{};
  if (o.scaling && amounts.size() < 2) throw UsageError("{}: --scaling needs at least two sizes of the job", option);
  if (!o.scaling && amounts.size() > 1)
    throw UsageError("{}: several sizes need --scaling strong or --scaling weak, which says what becomes of the batch",
                     option);
  if (tried.on && tried.on->calibrated() && o.nodes)
    throw UsageError("--nodes: {} is a calibration, which measures one machine; --ranks says how many ranks it has",
                     tried.on->name);
  if (amounts.empty() && tried.on && tried.on->described())
    throw UsageError("--nodes: `molen sweep` needs --nodes or --ranks: how much of {} the job takes", tried.on->name);
  std::vector<plan::JobSize> sizes;
  for (const int amount : amounts) sizes.push_back(size_of(options, o, tried, amount));
  if (!sizes.empty()) return sizes;
  if (tried.on) return {{0, 0}};  // the ranks of a run that CONFIG names, or one
  const RealTrials& real = *tried.real;
  if (real.launcher_has("nodes")) return {{*real.allocated(), *real.allocated() * options.ranks_per_node.value_or(0)}};
  return {{0, real.launches() ? 0 : 1}};
}

std::string conditions_of(const Tried& tried) {
  if (tried.on) return tried.on->text + tried.on->communicator;
  return fmt::format("{} from {}", tried.real->conditions(), computing().this_machine());
}

// The configuration with the values of a trial.
config::Config load_trial(const ConfigOptions& options, const std::vector<std::string>& sets) {
  ConfigOptions with = options;
  with.sets.insert(with.sets.end(), sets.begin(), sets.end());
  return load_config(with);
}

// Loads the configuration once before all trials, so that a missing file or a wrong key is one error. A configuration
// that needs the values of the grid is loaded with those of the first trial.
config::Config load_first(const ConfigOptions& options, const plan::SweepPlan& plan) {
  const auto with_model = [](config::Config config) {
    plan::resolve_architecture(config);
    return config;
  };
  try {
    return with_model(load_config(options));
  } catch (const UsageError&) {
    try {
      return with_model(load_trial(options, plan::assignments_at(plan.grid, 0)));
    } catch (const UsageError&) {  // the error without the grid is the clearer one
    }
    throw;
  }
}

plan::SweepPlan plan_of(const ConfigOptions& options, const SweepArguments& o, const Tried& tried) {
  plan::SweepPlan plan;
  plan.grid = plan::parse_grid(o.grid);
  plan.scaling = !o.scaling               ? plan::Scaling::kNone
                 : *o.scaling == "strong" ? plan::Scaling::kStrong
                                          : plan::Scaling::kWeak;
  plan.sizes = sizes_of(options, o, tried);
  plan.measured = o.trials.real;
  if (tried.on) plan.cluster = tried.on->name;
  plan.conditions = conditions_of(tried);
  plan.concurrent = o.parallel.value_or(1);
  if (o.trials.noise_scale) plan.noise_scale = noise_scale_of(*o.trials.noise_scale);
  if (plan.trials() > plan::kMostTrials)
    throw UsageError("--grid: the grid and its sizes have {} trials, more than {}", plan.trials(), plan::kMostTrials);
  const config::Config first = load_first(options, plan);
  plan::require_weak_batches(plan, first.batch.global);
  const bool each_device = std::ranges::any_of(plan.grid, [](const auto& axis) { return axis.key == "device.kind"; });
  if (tried.on && !each_device) plan::require_device(first, *tried.on);
  return plan;
}

plan::TryTrial trying(const ConfigOptions& options, const SweepArguments& o, Tried& tried) {
  if (tried.on)
    return [&options, &on = *tried.on](const config::Config& config, plan::TrialRow& row) {
      return predicted_trial(options, on, config, row.size.ranks);
    };
  return [&real = *tried.real, folder = fs::path(*o.trials.output)](const config::Config& config, plan::TrialRow& row) {
    row.run = "runs/trial-" + row.trial.substr(0, 12);
    return real.train(config, row.size, folder / row.run);
  };
}

std::vector<std::string> write_files(const SweepArguments& o, const plan::SweepPlan& plan,
                                     const std::vector<plan::TrialRow>& rows) {
  const fs::path folder = *o.trials.output;
  std::vector<std::string> files{(folder / "sweep.jsonl").string(), (folder / "sweep.csv").string()};
  write_file_atomic(files.back(), plan::to_csv(plan, rows));
  for (const auto& plot : plan::plots_of(plan, rows)) {
    files.push_back((folder / plot.file).string());
    write_file_atomic(files.back(), plot.svg);
  }
  return files;
}

// "12 trials: 8 with a step, 3 out of memory, 1 refused".
std::string trial_counts(const std::vector<plan::TrialRow>& rows) {
  using Kind = plan::Outcome::Kind;
  std::vector<std::string> words;
  for (const Kind kind : {Kind::kStep, Kind::kOutOfMemory, Kind::kRefused, Kind::kFailed, Kind::kNotCalibrated}) {
    const auto count = std::ranges::count(rows, kind, [](const auto& row) { return row.outcome.kind; });
    if (count > 0)
      words.push_back(kind == Kind::kStep ? fmt::format("{} with a step", count)
                                          : fmt::format("{} {}", count, plan::name_of(kind)));
  }
  return fmt::format("{}: {}", counted(static_cast<std::int64_t>(rows.size()), "trial"), fmt::join(words, ", "));
}

void print_sweep(const plan::SweepPlan& plan, const std::vector<plan::TrialRow>& rows, const SweepArguments& o,
                 const std::vector<std::string>& files) {
  fmt::print("{}\n", plan::title_of(plan, rows));
  const auto table = plan::table_of(plan, rows);
  std::set<std::size_t> right;
  for (std::size_t i = plan.grid.size(); i + 1 < table.front().size(); ++i) right.insert(i);
  print_columns(table, right);
  fmt::print("\n{}\n", trial_counts(rows));
  const bool steps = std::ranges::any_of(rows, &plan::TrialRow::has_step);
  if (steps && !plan.measured)
    fmt::print("a step takes with a probability of 80 % between the times beside its prediction\n");
  if (steps && plan.measured)
    fmt::print("a step is the median of {} after {} of warm-up\n", o.trials.steps.value_or(kTrialSteps),
               plan::kWarmupSteps);
  if (steps && plan.noise_scale > 0.0)
    fmt::print(
        "time to loss: until the loss is as low as after a million tokens in small batches; at a gradient noise scale "
        "of {} tokens, a batch of B tokens needs 1 + B / {} times as many\n",
        human_count(plan.noise_scale), human_count(plan.noise_scale));
  if (const auto machines = plan::machines_of(rows); machines.size() > 1)
    fmt::print("the trials ran on different machines, so that their figures do not compare: {}\n",
               fmt::join(machines, "; "));
  for (const auto& row : rows)
    if (row.outcome.kind == plan::Outcome::Kind::kFailed && !row.outcome.log.empty())
      fmt::print("{}.log ends with:\n  {}\n", row.run, fmt::join(row.outcome.log, "\n  "));
  if (const auto kept = std::ranges::count_if(rows, [](const auto& row) { return row.kept; }); kept > 0)
    fmt::print("{} kept from an earlier sweep in this folder, and not trained again\n", counted(kept, "trial"));
  for (const auto& file : files) fmt::print("{}\n", file);
}

Json json_of_sweep(const plan::SweepPlan& plan, const std::vector<plan::TrialRow>& rows, const SweepArguments& o,
                   const std::vector<std::string>& files) {
  Json trials = Json::array();
  for (const auto& row : rows) trials.push_back(plan::to_json(plan, row));
  const auto framework = plan::framework_of(rows);
  return {{"title", plan::title_of(plan, rows)},
          {"source", plan.measured ? "measured" : "predicted"},
          {"framework", framework ? Json(*framework) : Json()},
          {"cluster", plan.cluster.empty() ? Json() : Json(plan.cluster)},
          {"scaling", o.scaling ? Json(*o.scaling) : Json()},
          {"noise_scale_tokens", plan.noise_scale > 0.0 ? Json(plan.noise_scale) : Json()},
          {"kept", std::ranges::count_if(rows, [](const auto& row) { return row.kept; })},
          {"trials", trials},
          {"files", files}};
}

int run_sweep_verb(const ConfigOptions& options, const SweepArguments& o) {
  require_modes(o);
  Tried tried = tried_by(options, o);
  const plan::SweepPlan plan = plan_of(options, o, tried);
  std::optional<plan::SweepFile> file;
  if (o.trials.output) file.emplace(*o.trials.output, [](const std::string& text) { say(text); });
  const auto progress = make_progress("sweep");
  const auto share = [&](std::int64_t done) { return static_cast<double>(done) / static_cast<double>(plan.trials()); };
  plan::SweepCalls calls;
  calls.load = [&](const std::vector<std::string>& sets) { return load_trial(options, sets); };
  calls.attempt = trying(options, o, tried);
  calls.begin = [&](const plan::TrialRow& row, std::int64_t i) {
    progress->at("trials", share(i), plan::label_of(plan, row));
  };
  calls.end = [&](const plan::TrialRow& row, std::int64_t) {
    if (file && !row.kept) file->append(plan, row);
  };
  // A prediction takes less time than it is worth to keep it, and a newer molen may predict better.
  const auto rows =
      plan::run_sweep(plan, calls, plan.measured ? file->kept() : std::map<std::string, plan::TrialRow>());
  progress->finish();
  if (file) file->finish(plan, rows);
  const std::vector<std::string> files = o.trials.output ? write_files(o, plan, rows) : std::vector<std::string>();
  if (o.format == "json")
    fmt::print("{}\n", json_of_sweep(plan, rows, o, files).dump(2));
  else
    print_sweep(plan, rows, o, files);
  std::fflush(stdout);  // so that the error stands behind the rows where both go to one file
  if (std::ranges::none_of(rows, &plan::TrialRow::has_step))
    throw Error("no trial of the sweep has a step; {} why",
                o.format == "json" ? "\"why\" of each trial says" : "the rows above say");
  return kOk;
}

}  // namespace

void add_sweep_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb =
      app.add_subcommand("sweep",
                         "an experiment: a grid of configurations, or one over sizes of the job; predicted "
                         "on a cluster or a calibration, or trained");
  auto options = add_config_options(*verb, false);
  auto o = std::make_shared<SweepArguments>();
  verb->add_option("--grid", o->grid,
                   "key=value,value,...: a trial for each value; may be repeated, for all combinations, of which the "
                   "last key changes fastest")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  verb->add_option("--scaling", o->scaling,
                   "strong: batch.global is the same on all sizes of the job; weak: it belongs to the first size and "
                   "grows with it")
      ->check(CLI::IsMember({"strong", "weak"}));
  add_trial_options(*verb, o->trials);
  verb->add_option("--ranks", o->ranks, "ranks of the job; with --scaling a list, 1,2,4");
  verb->add_option("--nodes", o->nodes, "nodes of the job instead of ranks; with --scaling a list, 1,2,4");
  add_node_option(*verb, *options);
  verb->add_option("--parallel", o->parallel,
                   "real: trials that run at a time, each on nodes of its own in a Slurm allocation (default: 1)")
      ->check(CLI::Range(1, 64));
  verb->add_option("--output", o->trials.output,
                   "folder for sweep.jsonl, sweep.csv and plots (docs/formats/sweep.md), and for the runs of --real; "
                   "a sweep that was cut off goes on there");
  auto format = add_format_option(*verb);
  verb->callback([&chosen, options, o, format] {
    chosen.action = [=] {
      o->format = *format;
      return run_sweep_verb(*options, *o);
    };
  });
}

}  // namespace molen::apps
