// molen plan: the best layouts of a job, a table of runs, or the compute calculus.
#include <fmt/format.h>

#include <algorithm>

#include "apps/cli.h"
#include "apps/plan_calculus.h"
#include "apps/plan_runs.h"
#include "apps/plan_search.h"
#include "base/error.h"
#include "cluster/cluster.h"
#include "plan/runs.h"

namespace molen::apps {
namespace {

struct PlanArguments {
  bool calculus = false;
  std::string cluster, format = "text", output;
  std::optional<int> nodes;
  CalculusArguments of_calculus;
  PlanRunsArguments of_runs;
  PlanSearchArguments of_search;
};

void add_calculus_options(CLI::App& verb, PlanArguments& o) {
  CalculusArguments& c = o.of_calculus;
  verb.add_flag("--calculus", o.calculus,
                "days, energy, CO2, money, memory and loss by formulas alone (docs/calculus.md)");
  verb.add_option("--sizes", c.sizes,
                  "calculus: numbers of parameters instead of a CONFIG, 1e9,7e9 or 1B,7B (default: 1, 2, 7, 13, 30 and "
                  "70 B)");
  verb.add_option("--tokens", c.tokens, "calculus: tokens to train on, 450e9 or 450B (default: train.until of CONFIG)");
  verb.add_option("--devices", c.devices, "calculus: devices to train on, instead of --nodes");
  verb.add_option(
          "--mfu", c.mfu,
          "calculus: share of the devices' 16-bit peak that the counted FLOPs reach, or \"simulated\" for that of "
          "CONFIG's step as `molen simulate` predicts it")
      ->capture_default_str();
  verb.add_option("--mfu-spread", c.mfu_spread,
                  "calculus: the true share is within this of --mfu, relative to it, with a probability of 80 % "
                  "(default: 0.2)");
  verb.add_flag(
      "--recompute", c.recompute,
      "calculus: the backward computes all activations again, 8 N FLOPs per token instead of 6 N, all of them "
      "in --mfu");
  verb.add_option(
      "--noise-scale", c.noise_scale,
      "calculus: gradient noise scale in tokens, or the run that measured it (train.noise_scale_every), for a "
      "table of batch sizes with steps, tokens and days");
  verb.add_option("--plot", c.plot, "calculus: SVG file for tokens against days, with one line for each size");
}

void add_search_options(CLI::App& verb, PlanSearchArguments& s) {
  verb.add_option(
          "--objective", s.objective,
          "search: what the best layout has least of: time, energy, cost, co2 or memory. Cost and CO2 are those of the "
          "site's electricity alone, so they rank layouts as the energy does")
      ->capture_default_str();
  verb.add_option("--best", s.best, "search: layouts to show")->check(CLI::PositiveNumber)->capture_default_str();
  verb.add_option("--simulate", s.simulate, "search: most layouts to simulate; the search says when it ends here")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verb.add_option(
      "--memory", s.memory,
      "search: most memory that the plan of a rank may take, such as 70GiB (default: that of a device less the "
      "overheads that `molen simulate` names)");
  verb.add_option("--watts", s.watts, "search: most power of a node over a step, such as 3kW");
  verb.add_option("--days", s.days,
                  "search: most days that all steps until train.until may take, without evaluations and checkpoints");
  verb.add_option("--kwh", s.kwh, "search: most energy of the site, with its PUE, for all steps until train.until");
  auto* carbon =
      verb.add_option("--carbon", s.carbon.forecast,
                      "search: CSV file with a forecast of the grid's carbon intensity; says when the run of "
                      "the best layout should start to emit least (docs/formats/intensity.md)");
  verb.add_option("--deadline", s.carbon.deadline,
                  "carbon: time by which the run must end, such as 2026-12-24T12:00Z, or a length from the earliest "
                  "start on, such as \"10 days\" (default: the end of the forecast)")
      ->needs(carbon);
  verb.add_option("--from", s.carbon.from, "carbon: earliest start, such as 2026-11-29T06:00Z (default: now)")
      ->needs(carbon);
}

void add_runs_options(CLI::App& verb, PlanRunsArguments& r) {
  verb.add_option("--runs", r.runs, "predicts the rows of this CSV table (docs/formats/runs.md)");
  verb.add_option("--factors", r.factors, "runs: JSON file of factors to predict with, instead of the shipped ones");
  verb.add_flag("--print-factors", r.print_factors,
                "runs: prints the factors, with their meaning, and predicts nothing");
}

// The options of each mode, besides --format of those that print. CONFIG is the configuration of a search or a
// calculus.
struct Mode {
  const char* name;
  std::vector<std::string> options;
};
const Mode kSearch{
    "a search",
    {"CONFIG", "--model", "--set", "--ranks", "--cluster", "--nodes", "--format", "--output", "--objective", "--best",
     "--simulate", "--memory", "--watts", "--days", "--kwh", "--carbon", "--deadline", "--from"}};
const Mode kCalculus{"--calculus",
                     {"CONFIG", "--model", "--set", "--cluster", "--nodes", "--format", "--calculus", "--sizes",
                      "--tokens", "--devices", "--mfu", "--mfu-spread", "--recompute", "--noise-scale", "--plot"}};
const Mode kRuns{"--runs", {"--runs", "--factors", "--print-factors", "--output"}};

// Refuses an option that the mode does not take: it would have no effect.
void require_options_of(const CLI::App& verb, const Mode& mode) {
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    if (name == "--help" || option->count() == 0 || std::ranges::find(mode.options, name) != mode.options.end())
      continue;
    throw UsageError("{}: {} does not take it (`molen plan --help` says which does)", name, mode.name);
  }
}

int run_plan(const CLI::App& verb, const ConfigOptions& options, PlanArguments& o) {
  const bool runs = o.of_runs.print_factors || !o.of_runs.runs.empty();
  require_options_of(verb, runs ? kRuns : o.calculus ? kCalculus : kSearch);
  if (runs) {
    o.of_runs.output = o.output;
    return run_plan_runs(o.of_runs);
  }
  if (!o.calculus && o.format == "markdown") throw UsageError("--format: the search writes text or json");
  if (o.calculus) {
    o.of_calculus.cluster = o.cluster, o.of_calculus.nodes = o.nodes, o.of_calculus.format = o.format;
    return run_calculus(options, o.of_calculus);
  }
  if (!options.file && !options.model)
    throw UsageError("`molen plan` needs a CONFIG or --model for a search, --calculus, or --runs FILE");
  if (o.cluster.empty())
    throw UsageError("--cluster: the name of a cluster, or a file that describes one, is needed; molen has {}",
                     fmt::join(cluster::shipped(), ", "));
  o.of_search.cluster = o.cluster, o.of_search.nodes = o.nodes, o.of_search.format = o.format;
  o.of_search.output = o.output;
  return run_plan_search(options, o.of_search);
}

}  // namespace

void add_plan_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("plan",
                                      "best layouts of a job on a cluster, in place of the configuration's own; a "
                                      "table of runs; or the compute calculus");
  auto options = add_config_options(*verb);
  auto o = std::make_shared<PlanArguments>();
  verb->add_option("--cluster", o->cluster, "name of a cluster, or the TOML file of one (docs/formats/cluster.md)");
  auto* nodes = verb->add_option("--nodes", o->nodes, "nodes of the cluster to use (default: all)");
  verb->add_option("--format", o->format, "text or json; the calculus also writes markdown")
      ->check(CLI::IsMember({"text", "markdown", "json"}))
      ->capture_default_str();
  verb->add_option("--output", o->output,
                   "search: directory for the configurations of the best layouts; runs: file for the predictions");
  add_search_options(*verb, o->of_search);
  add_calculus_options(*verb, *o);
  add_runs_options(*verb, o->of_runs);
  verb->get_option("--devices")->excludes(nodes);
  verb->footer("\nColumns of --runs:\n" + plan::columns_help());
  verb->callback([&chosen, verb, options, o] { chosen.action = [=] { return run_plan(*verb, *options, *o); }; });
}

}  // namespace molen::apps
