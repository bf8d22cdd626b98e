// molen tune: searches the keys of a configuration for the best step, predicted on a cluster or a calibration, or
// trained.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <thread>

#include "apps/cli.h"
#include "apps/plan_calculus.h"
#include "apps/plan_search.h"
#include "apps/trials.h"
#include "base/console.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "plan/framework.h"
#include "plan/measured_trial.h"
#include "plan/sweep.h"
#include "sim/factors.h"
#include "tune/journal.h"
#include "tune/plots.h"
#include "tune/search.h"
#include "tune/sensitivity.h"

namespace molen::apps {
namespace {

struct TuneArguments {
  TrialArguments trials;
  std::vector<std::string> search;
  std::optional<std::string> space;
  std::optional<int> nodes, parallel;
  int number = 60;  // of trials
  std::uint64_t seed = 0;
  std::string objective = "throughput", format = "text";
};

constexpr int kShownTrials = 5, kUsualParallel = 4;

void require_tune_modes(const ConfigOptions& options, const TuneArguments& o) {
  require_trial_modes(o.trials, "tune");
  if (o.search.empty() && !o.space)
    throw UsageError(
        "`molen tune` needs the space to search: --search key=1,2,4 or --search key=4..20 for each key, "
        "--space FILE.toml, or --space frontier");
  if (!o.search.empty() && o.space) throw UsageError("--space: give --space or --search, not both");
  if (options.ranks && o.nodes) throw UsageError("--nodes: give --ranks or --nodes, not both");
  const bool loss = tune::objective_from_name(o.objective) == tune::Objective::kLoss;
  if (loss && !o.trials.noise_scale)
    throw UsageError(
        "--objective loss: how many more tokens a larger batch needs follows from --noise-scale TOKENS, or from a run "
        "that measured it");
  if (!loss && o.trials.noise_scale)
    throw UsageError("--noise-scale: has no effect on --objective {}; --objective loss takes it", o.objective);
}

tune::Space space_of(const TuneArguments& o) {
  if (!o.space) return tune::parse_space(o.search);
  if (*o.space == "frontier") return tune::frontier_space();
  if (!o.space->ends_with(".toml") && o.space->find('/') == std::string::npos)
    throw UsageError("--space {}: is no space that molen has (frontier), and no file that ends in .toml", *o.space);
  return tune::parse_space_file(read_file(*o.space, 1 << 20), *o.space);
}

Tried tried_in_search(const ConfigOptions& options, const TuneArguments& o, const tune::Space& space) {
  const TrialArguments& t = o.trials;
  if (!t.real) return {trials_predicted_on(t), nullptr};
  const bool nodes = o.nodes || space.find(tune::kNodes);
  const TrialSizes sizes{options.ranks.has_value(), nodes, options.ranks_per_node, o.parallel.value_or(1)};
  Tried tried;
  tried.real = std::make_unique<RealTrials>(t, sizes);
  if (nodes && !options.ranks_per_node)
    throw UsageError("--nodes: --real needs --ranks-per-node too, the ranks that --launch starts on a node");
  if (t.launch && !options.ranks && !options.ranks_per_node && space.find(tune::kAccumulation))
    throw UsageError(
        "gas: the global batch follows from the ranks; --ranks, or --ranks-per-node, says how many --launch starts");
  return tried;
}

// Returns the ranks of the job where --real trains it; `of_node`: 1 if nothing says how many ranks a node has.
tune::JobRanks real_ranks(const ConfigOptions& options, const TuneArguments& o, const RealTrials& real) {
  const int of_node = options.ranks_per_node.value_or(1);
  if (options.ranks && *options.ranks % of_node != 0)
    throw UsageError("--ranks-per-node: {} ranks are not whole nodes of {}", *options.ranks, of_node);
  if (options.ranks) return {*options.ranks, of_node};
  if (options.ranks_per_node) return {o.nodes.value_or(real.allocated().value_or(1)) * of_node, of_node};
  return {.ranks = 1, .of_node = 1};
}

// Returns the ranks of the job. Throws UsageError where a dimension of the space and an option both decide them.
tune::JobRanks job_ranks(const ConfigOptions& options, const TuneArguments& o, const tune::Space& space,
                         const Tried& tried) {
  const auto nodes = space.find(tune::kNodes);
  if (nodes && (options.ranks || o.nodes))
    throw UsageError("--{}: the space has nodes, which decide the ranks", o.nodes ? "nodes" : "ranks");
  if (tried.real) return real_ranks(options, o, *tried.real);
  if (tried.on->calibrated()) {
    if (nodes || o.nodes)
      throw UsageError("{}: {} is a calibration, which measures one machine; --ranks says how many ranks it has",
                       nodes ? "nodes" : "--nodes", tried.on->name);
    return {options.ranks.value_or(1), options.ranks.value_or(1)};
  }
  const cluster::Cluster& on = *tried.described();
  const int of_node = options.ranks_per_node.value_or(on.node.devices);
  tune::JobRanks job{.ranks = of_node, .of_node = of_node};
  if (nodes) {
    for (const Json& value : space.dimensions()[*nodes].values) nodes_on(on, value.get<int>());
    return job;
  }
  job.ranks = options.ranks ? *options.ranks : nodes_on(on, o.nodes) * of_node;
  plan::machine_on(on, job.ranks, options.ranks_per_node);
  return job;
}

tune::SearchPlan search_plan(const ConfigOptions& options, const TuneArguments& o, tune::Space space,
                             const Tried& tried) {
  const tune::JobRanks job = job_ranks(options, o, space, tried);
  const bool real = o.trials.real;
  tune::SearchPlan plan{.space = std::move(space),
                        .base = load_config(options),
                        .job = job,
                        .objective = tune::objective_from_name(o.objective),
                        .noise_scale = o.trials.noise_scale ? noise_scale_of(*o.trials.noise_scale) : 0.0,
                        .seed = o.seed,
                        .trials = o.number,
                        .parallel = o.parallel.value_or(real ? 1 : kUsualParallel)};
  if (tried.on && tried.on->calibrated() && plan.objective == tune::Objective::kEnergy)
    throw UsageError("--objective energy: {} is a calibration, which has no joules; --cluster with a description has",
                     tried.on->name);
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  // A prediction on a calibration may measure the rates that an open precision follows from, which others would slow.
  plan.concurrent = real ? plan.parallel : tried.described() ? std::min(plan.parallel, cores) : 1;
  if (tried.on) plan::require_device(plan.base, *tried.on);
  config::Config config = plan.base;
  plan::resolve_architecture(config);
  return plan;
}

tune::Conditions tune_conditions(const Tried& tried) {
  if (tried.on) return {tried.on->name, tried.on->text + tried.on->communicator};
  return {"", tried.real->conditions()};
}

// A configuration that cannot be resolved is an outcome of its trial.
tune::Attempt attempt_of(const ConfigOptions& options, const TuneArguments& o, const Tried& tried) {
  return [&](const config::Config& config, int ranks, int number) {
    try {
      if (tried.on) return predicted_trial(options, *tried.on, config, ranks);
      // Without --ranks and --ranks-per-node a launcher decides how many there are.
      const bool known = options.ranks || options.ranks_per_node || !tried.real->launches();
      const bool all_nodes = !known && tried.real->launcher_has("nodes");
      const plan::JobSize size{all_nodes ? tried.real->allocated().value_or(0) : 0, known ? ranks : 0};
      return tried.real->train(config, size, fs::path(*o.trials.output) / fmt::format("runs/trial-{:03}", number));
    } catch (const UsageError& error) {
      plan::Outcome refused;
      refused.kind = plan::Outcome::Kind::kRefused, refused.why = error.what();
      return refused;
    }
  };
}

// Returns the text of the best configuration, after it was read back and tried again as `molen train` would read it.
std::string best_text(const ConfigOptions& options, const tune::SearchPlan& plan, const tune::Trial& best,
                      const Tried& tried) {
  const auto choice = plan.space.choice(best.point, plan.base, plan.job);
  MOLEN_CHECK(choice.ok(), "the best trial cannot be configured: {}", choice.reason());
  std::string text = plan::toml_of_set_keys(choice.value().config);
  const config::Config again = config::parse(text, "best.toml");
  const auto changes = config::diff(choice.value().config, again);
  MOLEN_CHECK(changes.empty(), "{} of the best trial reads back as another value", changes.front().key);
  if (tried.on && !best.kept) {
    const auto outcome = predicted_trial(options, *tried.on, again, choice.value().ranks);
    MOLEN_CHECK(outcome.kind == plan::Outcome::Kind::kStep && outcome.figures.step_s == best.outcome.figures.step_s,
                "the configuration of the best trial stands for another step, {}", outcome.figures.layout);
  }
  return text;
}

// The result of a search that has ended, as it is shown.
struct TuneResult {
  std::vector<tune::Trial> trials, best;
  std::optional<tune::Sensitivity> sensitivity;  // absent: fewer than two trials have a step
  std::vector<std::string> files;
  int ranks = 0;  // of the best trial
};

// Returns framework.kind of all trials; nullopt: they differ.
std::optional<std::string> shared_framework(const tune::SearchPlan& plan) {
  return plan.space.find("framework.kind") ? std::nullopt : std::optional(plan.base.framework.kind);
}

std::string title_of_search(const tune::SearchPlan& plan, const Tried& tried) {
  return fmt::format("{}{} {}", plan::resolve_architecture(plan.base).name,
                     plan::framework_text(" with ", shared_framework(plan).value_or("molen")),
                     tried.on ? "on " + tried.on->name : "trained");
}

void write_tune_files(const ConfigOptions& options, const tune::SearchPlan& plan, const TuneArguments& o,
                      const Tried& tried, TuneResult& r) {
  const std::string best = best_text(options, plan, r.best.front(), tried);
  const std::optional<std::string>& output = o.trials.output;
  if (!output) return;
  const auto write = [&](const char* name, const std::string& text) {
    r.files.push_back((fs::path(*output) / name).string());
    write_file_atomic(r.files.back(), text);
  };
  r.files.push_back((fs::path(*output) / "tune.jsonl").string());
  write("best.toml", best);
  const std::string title = title_of_search(plan, tried);
  write("trajectory.svg",
        tune::trajectory_svg(r.trials, plan.objective, fmt::format("Search: {}", title), plan.noise_scale));
  if (r.sensitivity)
    write("sensitivity.svg", tune::sensitivity_svg(*r.sensitivity, plan.space, plan.objective,
                                                   fmt::format("Impact of each key: {}", title)));
}

constexpr plan::Outcome::Kind kTuneFailures[] = {plan::Outcome::Kind::kOutOfMemory, plan::Outcome::Kind::kRefused,
                                                 plan::Outcome::Kind::kFailed, plan::Outcome::Kind::kNotCalibrated};

std::int64_t trials_with(const std::vector<tune::Trial>& trials, plan::Outcome::Kind kind) {
  return std::ranges::count(trials, kind, [](const tune::Trial& t) { return t.outcome.kind; });
}

std::string tune_counts(const tune::SearchPlan& plan, const std::vector<tune::Trial>& trials) {
  std::string text =
      fmt::format("{} of {} points: {} with a step", counted(static_cast<std::int64_t>(trials.size()), "trial"),
                  plan.space.points(), trials_with(trials, plan::Outcome::Kind::kStep));
  std::string reasons;
  for (const auto kind : kTuneFailures) {
    const auto first = std::ranges::find(trials, kind, [](const tune::Trial& t) { return t.outcome.kind; });
    if (first == trials.end()) continue;
    text += fmt::format(", {} {}", trials_with(trials, kind), plan::name_of(kind));
    reasons += fmt::format("\nthe first {}: trial {}, {}", plan::name_of(kind), first->number, first->outcome.why);
  }
  return text + reasons;
}

// The best trials: the values of each key, where another trial has another one than the first, and the figures.
std::vector<std::vector<std::string>> best_table(const tune::SearchPlan& plan, const TuneResult& r, bool measured) {
  std::vector<std::string> header{"trial"};
  for (std::size_t d = 0; d < plan.space.dimensions().size(); ++d) header.push_back(plan.space.short_name(d));
  header.insert(header.end(), {std::string(tune::unit_of(plan.objective)), "beside the best", "step",
                               plan::interval_name(measured), "MFU", "J/token", "memory"});
  std::vector<std::vector<std::string>> table{header};
  const double first = tune::figure_of(plan.objective, r.best.front().outcome.figures, plan.noise_scale);
  for (std::size_t i = 0; i < std::min<std::size_t>(kShownTrials, r.best.size()); ++i) {
    const tune::Trial& t = r.best[i];
    const plan::StepFigures& f = t.outcome.figures;
    std::vector<std::string> row{std::to_string(t.number)};
    for (std::size_t d = 0; d < plan.space.dimensions().size(); ++d)
      row.push_back(plan.space.dimensions()[d].text(t.point[d]));
    const double figure = tune::figure_of(plan.objective, f, plan.noise_scale);
    row.push_back(figure >= 1000.0 ? fmt::format("{:.0f}", figure) : fmt::format("{:.4g}", figure));
    row.push_back(i == 0 ? "" : fmt::format("{:+.1f}%", 100.0 * (figure / first - 1.0)));
    row.push_back(human(Seconds(f.step_s)));
    row.push_back(fmt::format("{} - {}", human(Seconds(f.low_s)), human(Seconds(f.high_s))));
    row.push_back(f.mfu ? fmt::format("{:.1f}%", 100.0 * *f.mfu) : "");
    row.push_back(f.step_j ? fmt::format("{:.3g}", *f.step_j / static_cast<double>(f.tokens)) : "");
    row.push_back(t.outcome.memory ? human(*t.outcome.memory) : "");
    table.push_back(std::move(row));
  }
  return table;
}

void print_tune(const tune::SearchPlan& plan, const Tried& tried, const TuneResult& r) {
  fmt::print("{}, best {}\n", title_of_search(plan, tried), tune::name_of(plan.objective));
  const auto table = best_table(plan, r, !tried.on);
  std::set<std::size_t> right;
  for (std::size_t i = 0; i < table.front().size(); ++i) right.insert(i);
  print_columns(table, right);
  fmt::print("\n{}\n", tune_counts(plan, r.trials));
  if (const auto kept = std::ranges::count_if(r.trials, [](const auto& t) { return t.kept; }); kept > 0)
    fmt::print("{} kept from an earlier start of this search\n", counted(kept, "trial"));
  if (r.sensitivity) {
    std::vector<std::string> words;
    for (std::size_t d = 0; d < r.sensitivity->value.size(); ++d)
      words.push_back(fmt::format("{} {:.0f}%", plan.space.short_name(d), 100.0 * r.sensitivity->value[d]));
    fmt::print("variance of log {} that a key explains alone, by the model: {}\n", tune::name_of(plan.objective),
               fmt::join(words, ", "));
  }
  fmt::print("the best runs on {}\n", counted(r.ranks, "rank"));
  for (const auto& file : r.files) fmt::print("{}\n", file);
}

Json json_of_tune(const tune::SearchPlan& plan, const Tried& tried, const TuneResult& r) {
  Json trials = Json::array(), best = Json::array(), failures = Json::object();
  for (const auto& t : r.trials) trials.push_back(tune::to_json(t, plan));
  for (std::size_t i = 0; i < std::min<std::size_t>(kShownTrials, r.best.size()); ++i)
    best.push_back(tune::to_json(r.best[i], plan));
  for (const auto kind : kTuneFailures)
    if (const auto first = std::ranges::find(r.trials, kind, [](const tune::Trial& t) { return t.outcome.kind; });
        first != r.trials.end())
      failures[tune::outcome_name(kind)] = {
          {"count", trials_with(r.trials, kind)}, {"first", first->number}, {"why", first->outcome.why}};
  Json impact = Json::object();
  for (std::size_t d = 0; r.sensitivity && d < plan.space.dimensions().size(); ++d)
    impact[plan.space.dimensions()[d].key] = {
        {"objective", r.sensitivity->value[d]},
        {"memory", r.sensitivity->load.empty() ? Json() : Json(r.sensitivity->load[d])},
        {"success", r.sensitivity->success.empty() ? Json() : Json(r.sensitivity->success[d])}};
  const auto framework = shared_framework(plan);
  return {{"cluster", tried.on ? Json(tried.on->name) : Json()},
          {"source", tried.on ? "predicted" : "measured"},
          {"framework", framework ? Json(*framework) : Json()},
          {"objective", tune::name_of(plan.objective)},
          {"unit", tune::unit_of(plan.objective)},
          {"noise_scale_tokens", plan.noise_scale > 0.0 ? Json(plan.noise_scale) : Json()},
          {"points", plan.space.points()},
          {"kept", std::ranges::count_if(r.trials, [](const auto& t) { return t.kept; })},
          {"failures", failures},
          {"sensitivity", impact},
          {"best", best},
          {"trials", trials},
          {"files", r.files}};
}

int run_tune(const ConfigOptions& options, const TuneArguments& o) {
  require_tune_modes(options, o);
  tune::Space space = space_of(o);
  const Tried tried = tried_in_search(options, o, space);
  const tune::SearchPlan plan = search_plan(options, o, std::move(space), tried);
  std::optional<tune::Journal> journal;
  if (o.trials.output)
    journal.emplace(*o.trials.output, plan, tune_conditions(tried), [](const std::string& text) { say(text); });
  const auto progress = make_progress("tune");
  tune::SearchCalls calls{.attempt = attempt_of(options, o, tried)};
  calls.begin = [&](int number, const std::string& doing) {
    if (journal) journal->require();

    progress->at("trials", static_cast<double>(number - 1) / plan.trials, doing);
  };
  calls.end = [&](const tune::Trial& trial) {
    if (journal) journal->append(trial);
  };
  TuneResult r;
  r.trials = tune::run_search(plan, calls, journal ? journal->kept() : std::map<int, tune::Trial>());
  progress->finish();
  r.best = tune::ranked(r.trials, plan.objective, plan.noise_scale);
  if (r.best.empty()) throw Error("no trial of the search has a step\n{}", tune_counts(plan, r.trials));
  r.ranks = r.best.front().outcome.figures.ranks;
  if (r.best.size() >= 2) {
    std::vector<tune::Observation> seen;
    for (const auto& trial : r.trials) seen.push_back(tune::observation_of(trial, plan));
    r.sensitivity = tune::sensitivity_of(tune::Models(plan.space, seen, plan.seed), plan.space, plan.seed);
  }
  if (journal) journal->require();
  write_tune_files(options, plan, o, tried, r);

  if (o.format == "json")
    fmt::print("{}\n", json_of_tune(plan, tried, r).dump(2));
  else
    print_tune(plan, tried, r);
  return kOk;
}

void add_tune_options(CLI::App& verb, TuneArguments& o) {
  verb.add_option(
          "--search", o.search,
          "key=1,2,4 (a list), key=4..20 (whole numbers) or key=1..64:log: values to search; once for each key. "
          "gas: micro-batches of a step, from which batch.global follows; nodes: nodes of the cluster")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  verb.add_option("--space", o.space,
                  "instead of --search: a TOML file (docs/formats/tune.md), or frontier, the space of the search for "
                  "175 B parameters on Frontier");
  add_trial_options(verb, o.trials);
  verb.add_option("--nodes", o.nodes, "nodes of the job instead of --ranks (default: all of the cluster)");
  verb.add_option("--trials", o.number, "trials in all, with those of an earlier start")
      ->check(CLI::Range(1, tune::kMostTrials))
      ->capture_default_str();
  verb.add_option("--parallel", o.parallel,
                  fmt::format("trials that are proposed together and run at a time (default: {}; 1 with --real, where "
                              "each needs nodes of its own in a Slurm allocation)",
                              kUsualParallel))
      ->check(CLI::Range(1, tune::kMostParallel));
  verb.add_option("--seed", o.seed, "seed of the first trials and of the models")->capture_default_str();
  verb.add_option("--objective", o.objective,
                  "what the best trial has most of, throughput (tokens/s per device), or least of: time (seconds for a "
                  "million tokens), energy (J per token) or loss (seconds to the loss of a million tokens in small "
                  "batches, with --noise-scale)")
      ->capture_default_str();
  verb.add_option("--output", o.trials.output,
                  "folder for tune.jsonl, best.toml and plots (docs/formats/tune.md); a search goes on there");
}

}  // namespace

void add_tune_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("tune",
                                      "Bayesian optimisation of configuration keys for throughput, time or energy, "
                                      "predicted on a cluster or a calibration, or trained");
  auto options = add_config_options(*verb);
  add_node_option(*verb, *options);
  auto o = std::make_shared<TuneArguments>();
  add_tune_options(*verb, *o);
  auto format = add_format_option(*verb);
  verb->callback([&chosen, options, o, format] {
    chosen.action = [=] {
      o->format = *format;
      return run_tune(*options, *o);
    };
  });
}

}  // namespace molen::apps
