// molen sweep: the trials of a grid or of a scaling experiment, predicted on a described cluster or trained.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "apps/cli.h"
#include "apps/computing.h"
#include "apps/plan_search.h"
#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "cluster/cluster.h"
#include "comm/mpi/mpi.h"
#include "plan/measured_trial.h"
#include "plan/sweep.h"
#include "plan/sweep_file.h"
#include "plan/sweep_plots.h"
#include "sim/calibration.h"

namespace molen::apps {
namespace {

struct SweepArguments {
  std::vector<std::string> grid;
  std::optional<std::string> cluster, scaling, ranks, nodes, launch, output;
  bool real = false;
  std::optional<int> steps;
  std::string format = "text";
};

constexpr int kDefaultSteps = 10;

bool has_place(const SweepArguments& o, std::string_view place) {
  return o.launch && o.launch->find(place) != std::string::npos;
}

// Refuses options that have no meaning together, or none without another.
void require_modes(const SweepArguments& o) {
  if (o.real && o.cluster)
    throw UsageError("--real: the trials train here, so --cluster has no effect; give one of the two");
  if (!o.real && !o.cluster)
    throw UsageError(
        "`molen sweep` needs --cluster NAME, on whose description trials are predicted (molen has {}), or "
        "--real, which trains them",
        fmt::join(cluster::shipped(), ", "));
  if (o.cluster && sim::is_calibration(*o.cluster))
    throw UsageError(
        "--cluster: {} is a calibration; `molen sweep --cluster` takes the description of a cluster ({}, or a file "
        "*.toml), and --real measures",
        *o.cluster, fmt::join(cluster::shipped(), ", "));
  if (o.grid.empty() && !o.scaling)
    throw UsageError(
        "`molen sweep` needs --grid key=value,value,... or --scaling strong|weak: what differs between "
        "trials");
  if (!o.real && o.launch) throw UsageError("--launch: starts the ranks of --real; nothing is started on --cluster");
  if (!o.real && o.steps) throw UsageError("--steps: is for --real; a prediction is of one step");
  if (o.real && !o.output) throw UsageError("--output: --real needs a folder for the runs of its trials");
  if (o.ranks && o.nodes) throw UsageError("--nodes: give --ranks or --nodes, not both");
  if (o.scaling && !o.ranks && !o.nodes)
    throw UsageError("--scaling: --nodes 1,2,4 or --ranks 1,2,4 says over which sizes of the job");
  if (o.real && comm::launch_environment().size > 1)
    throw UsageError(
        "--real: this process is one of several ranks; start `molen sweep` once, and --launch starts the "
        "ranks of each trial");
}

// With --launch, a launcher decides how many ranks there are; it can be told only what its line has a place for.
void require_places(const SweepArguments& o) {
  if (!o.real) return;
  if (!o.launch && o.nodes)
    throw UsageError(
        "--nodes: without --launch the ranks are threads of one process; --launch \"srun -N {nodes}\" "
        "starts nodes");
  for (const auto& [option, place, given] :
       {std::tuple{"--nodes", "{nodes}", o.nodes.has_value()}, {"--ranks", "{ranks}", o.ranks.has_value()}}) {
    if (o.launch && given && !has_place(o, place))
      throw UsageError("{}: --launch has no {} in it, in whose place the number goes", option, place);
    if (!given && has_place(o, place)) throw UsageError("--launch: {} needs {}", place, option);
  }
}

std::vector<plan::JobSize> sizes_of(const SweepArguments& o, const std::optional<cluster::Cluster>& on) {
  const std::string option = o.nodes ? "--nodes" : "--ranks";
  const std::vector<int> amounts = o.nodes   ? plan::parse_sizes(option, *o.nodes)
                                   : o.ranks ? plan::parse_sizes(option, *o.ranks)
                                             : std::vector<int>{};
  if (o.scaling && amounts.size() < 2) throw UsageError("{}: --scaling needs at least two sizes of the job", option);
  if (!o.scaling && amounts.size() > 1)
    throw UsageError("{}: several sizes need --scaling strong or --scaling weak, which says what becomes of the batch",
                     option);
  if (amounts.empty() && on)
    throw UsageError("--nodes: `molen sweep` needs --nodes or --ranks: how much of {} the job takes", on->name);
  if (amounts.empty()) return {{0, o.launch ? 0 : 1}};
  std::vector<plan::JobSize> sizes;
  for (const int amount : amounts) {
    plan::JobSize size{o.nodes ? amount : 0, o.nodes ? 0 : amount};
    if (on && o.nodes) size.ranks = nodes_on(*on, amount) * on->node.devices;
    if (on && size.ranks > on->node.devices && size.ranks % on->node.devices != 0)
      throw UsageError("--ranks: {} ranks are not whole nodes of {} devices of {}", size.ranks, on->node.devices,
                       on->name);
    if (on) plan::machine_on(*on, size.ranks);
    sizes.push_back(size);
  }
  return sizes;
}

std::string conditions_of(const SweepArguments& o, const std::optional<cluster::Cluster>& on) {
  if (!on)
    return fmt::format("{} steps by `{}` from {}", o.steps.value_or(kDefaultSteps), o.launch.value_or(""),
                       computing().this_machine());
  return std::string(on->origin == "shipped" ? cluster::shipped_text(on->name) : read_file(on->origin));
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

plan::SweepPlan plan_of(const ConfigOptions& options, const SweepArguments& o,
                        const std::optional<cluster::Cluster>& on) {
  plan::SweepPlan plan;
  plan.grid = plan::parse_grid(o.grid);
  plan.scaling = !o.scaling               ? plan::Scaling::kNone
                 : *o.scaling == "strong" ? plan::Scaling::kStrong
                                          : plan::Scaling::kWeak;
  plan.sizes = sizes_of(o, on);
  plan.measured = o.real;
  if (on) plan.cluster = on->name;
  plan.conditions = conditions_of(o, on);
  if (plan.trials() > plan::kMostTrials)
    throw UsageError("--grid: the grid and its sizes have {} trials, more than {}", plan.trials(), plan::kMostTrials);
  const config::Config first = load_first(options, plan);
  plan::require_weak_batches(plan, first.batch.global);
  const bool each_device = std::ranges::any_of(plan.grid, [](const auto& axis) { return axis.key == "device.kind"; });
  if (on && !each_device && first.device.kind == "cpu")
    throw UsageError("{}: {} describes {} devices; device.kind = \"auto\" takes them", first.where("device.kind"),
                     on->name, on->device.name);
  return plan;
}

std::vector<std::string> launch_of(const SweepArguments& o, const plan::JobSize& size) {
  if (!o.launch) return {};
  std::vector<std::string> words = plan::words_of("--launch", *o.launch);
  for (std::string& word : words)
    for (const auto& [place, number] : {std::pair{"{nodes}", size.nodes}, {"{ranks}", size.ranks}})
      for (std::size_t at = 0; (at = word.find(place, at)) != std::string::npos;)
        word.replace(at, std::string_view(place).size(), std::to_string(number));
  return words;
}

plan::TryTrial predicting(const cluster::Cluster& on) {
  return [on](const config::Config& config, plan::TrialRow& row) {
    return plan::predict(config, on, plan::machine_on(on, row.size.ranks));
  };
}

plan::TryTrial measuring(const SweepArguments& o) {
  return [o](const config::Config& config, plan::TrialRow& row) {
    plan::MeasureOptions m;
    m.launch = launch_of(o, row.size);
    m.ranks = row.size.ranks, m.nodes = row.size.nodes;
    m.steps = o.steps.value_or(kDefaultSteps);
    row.run = "runs/trial-" + row.trial.substr(0, 12);
    m.folder = fs::path(*o.output) / row.run;
    m.molen = fs::read_symlink("/proc/self/exe");
    return plan::measure(config, m);
  };
}

std::vector<std::string> write_files(const SweepArguments& o, const plan::SweepPlan& plan,
                                     const std::vector<plan::TrialRow>& rows) {
  const fs::path folder = *o.output;
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
  for (const Kind kind : {Kind::kStep, Kind::kOutOfMemory, Kind::kRefused, Kind::kFailed}) {
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
    fmt::print("a step is the median of {} after {} of warm-up\n", o.steps.value_or(kDefaultSteps), plan::kWarmupSteps);
  if (const auto machines = plan::machines_of(rows); machines.size() > 1)
    fmt::print("the trials ran on different machines, so that their figures do not compare: {}\n",
               fmt::join(machines, "; "));
  if (const auto kept = std::ranges::count_if(rows, [](const auto& row) { return row.kept; }); kept > 0)
    fmt::print("{} kept from an earlier sweep in this folder, and not trained again\n", counted(kept, "trial"));
  for (const auto& file : files) fmt::print("{}\n", file);
}

Json json_of_sweep(const plan::SweepPlan& plan, const std::vector<plan::TrialRow>& rows, const SweepArguments& o,
                   const std::vector<std::string>& files) {
  Json trials = Json::array();
  for (const auto& row : rows) trials.push_back(plan::to_json(plan, row));
  return {{"title", plan::title_of(plan, rows)},
          {"source", plan.measured ? "measured" : "predicted"},
          {"cluster", plan.cluster.empty() ? Json() : Json(plan.cluster)},
          {"scaling", o.scaling ? Json(*o.scaling) : Json()},
          {"kept", std::ranges::count_if(rows, [](const auto& row) { return row.kept; })},
          {"trials", trials},
          {"files", files}};
}

int run_sweep_verb(const ConfigOptions& options, const SweepArguments& o) {
  require_modes(o);
  require_places(o);
  if (o.launch) plan::words_of("--launch", *o.launch);
  const std::optional<cluster::Cluster> on = o.cluster ? std::optional(cluster::find(*o.cluster)) : std::nullopt;
  if (on) on->require_programs();
  const plan::SweepPlan plan = plan_of(options, o, on);
  std::unique_ptr<plan::SweepFile> file;
  if (o.output) file = std::make_unique<plan::SweepFile>(*o.output, [](const std::string& text) { say(text); });
  const auto progress = make_progress("sweep");
  const auto share = [&](std::int64_t done) { return static_cast<double>(done) / static_cast<double>(plan.trials()); };
  plan::SweepCalls calls;
  calls.load = [&](const std::vector<std::string>& sets) { return load_trial(options, sets); };
  calls.attempt = o.real ? measuring(o) : predicting(*on);
  calls.begin = [&](const plan::TrialRow& row, std::int64_t i) {
    progress->at("trials", share(i), plan::label_of(plan, row));
  };
  calls.end = [&](const plan::TrialRow& row, std::int64_t) {
    if (file && !row.kept) file->append(plan, row);
  };
  // A prediction takes less time than it is worth to keep it, and a newer molen may predict better.
  const auto rows = plan::run_sweep(plan, calls, o.real ? file->kept() : std::map<std::string, plan::TrialRow>());
  progress->finish();
  if (file) file->finish(plan, rows);
  const std::vector<std::string> files = o.output ? write_files(o, plan, rows) : std::vector<std::string>();
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
                         "on a cluster, or trained");
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
  verb->add_option("--cluster", o->cluster,
                   "predicts the trials on this cluster, by name or TOML file (docs/formats/cluster.md)");
  verb->add_flag("--real", o->real, "trains the trials, one after the other, and measures their steps");
  verb->add_option("--ranks", o->ranks, "ranks of the job; with --scaling a list, 1,2,4");
  verb->add_option("--nodes", o->nodes, "nodes of the job instead of ranks; with --scaling a list, 1,2,4");
  verb->add_option("--launch", o->launch,
                   "real: the command that starts the ranks, \"srun -N {nodes} --ntasks-per-node 4\" or \"mpirun -n "
                   "{ranks}\"; without it they are threads");
  verb->add_option(
          "--steps", o->steps,
          fmt::format("real: steps to measure, after {} of warm-up (default: {})", plan::kWarmupSteps, kDefaultSteps))
      ->check(CLI::Range(1, 1000000));
  verb->add_option("--output", o->output,
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
