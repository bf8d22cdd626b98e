// molen simulate: the predicted Timeline of one layout.
#include <fmt/format.h>

#include <iterator>

#include "apps/beside.h"
#include "apps/cli.h"
#include "apps/clock_plan.h"
#include "apps/measured_run.h"
#include "apps/simulated.h"
#include "apps/trials.h"
#include "base/error.h"
#include "base/file.h"
#include "cluster/cluster.h"
#include "plan/clock_plan.h"
#include "plan/resolve.h"
#include "plan/step_prediction.h"
#include "plan/trial.h"
#include "program/build/build.h"
#include "program/ir/trace.h"
#include "sim/factors.h"

namespace molen::apps {
namespace {
struct SimulateArguments {
  std::string cluster, communicator, format, trace, programs;
  int stage = 0;
  bool clocks = false;
  double slowdown = 0.0;
  // Whether a Timeline of every op is asked for, not only sums over it.
  bool every_op() const { return clocks || !trace.empty(); }
};

plan::StepDetail detail_of(const SimulateArguments& o) {
  return {.verified = true, .documents = true, .every_op = o.every_op(), .threads = plan::auto_threads(1)};
}

// `stage`: the one whose kinds of ops are shown. A stage that there is not has no kinds; it is refused later.
Simulated simulated_of(plan::StepPrediction prediction, std::size_t stage) {
  std::map<std::string, double> kinds;
  if (stage < prediction.step.size()) kinds = prediction.step.spreads_of_kinds(stage, *prediction.of_ops);
  return {.config = std::move(prediction.config),
          .step = std::move(prediction.step),
          .attended = prediction.attended,
          .extrapolated = std::move(prediction.extrapolated),
          .errors = std::move(prediction.errors),
          .kinds = std::move(kinds),
          .framework = std::move(prediction.framework_memory)};
}

Simulated simulate_described(const config::Config& c, const cluster::Cluster& on, const plan::Machine& machine,
                             const SimulateArguments& o, std::size_t stage) {
  if (o.clocks) plan::require_molen(c, "--clocks plans the clocks of");
  auto prediction = plan::predict_step(plan::step_programs(c, machine, detail_of(o)), on, detail_of(o));
  const auto energy = *prediction.energy;
  const auto costs = prediction.costs;
  const PredictedStep predicted{prediction.step.seconds(), prediction.spread(), energy};
  auto whole_run = whole_run_of(prediction.config, prediction.step.program(0).arch, prediction.setting, machine, on,
                                *costs, predicted);
  std::optional<plan::ClockPlan> clocks;
  if (o.clocks)
    clocks = plan::clock_plan(prediction.step.stages(), prediction.step.timelines(), on, sim::Factors::shipped(),
                              *costs, o.slowdown);
  Simulated s = simulated_of(std::move(prediction), stage);
  s.whole_run = std::move(whole_run), s.cluster = on, s.local_ranks = machine.local_ranks, s.energy = energy;
  s.clocks = std::move(clocks);
  return s;
}

Simulated simulate_calibrated(const config::Config& c, const plan::Machine& machine, const plan::PredictedOn& on,
                              const SimulateArguments& o, std::size_t stage) {
  if (o.clocks)
    throw UsageError(
        "--clocks: {} is a calibration, which measures a machine at one clock; --cluster with the name of a "
        "description plans the clocks of its devices",
        on.name);
  auto prediction = plan::predict_step(c, machine, {*on.calibrated(), on.name, on.communicator}, detail_of(o));
  if (!prediction)
    throw UsageError("{}: {}; --ranks, math.threads, precision.compute and --communicator choose", on.name,
                     prediction.reason());
  Simulated s = simulated_of(std::move(prediction).value(), stage);
  s.whole_run = whole_run_of_calibration(s.config);
  return s;
}

void write_predicted_trace(const Simulated& s, const std::string& file) {
  std::vector<store::TraceSpan> spans;
  for (std::size_t i = 0; i < s.step.size(); ++i)
    std::ranges::move(
        program::spans_of(s.step.stages().ops(i), s.step.timelines()[i], 0.0, 1, static_cast<std::int64_t>(i)),
        std::back_inserter(spans));
  write_file_atomic(file, store::trace_json(spans));
}

Simulated simulate_either(const ConfigOptions& options, const SimulateArguments& o, const config::Config& c) {
  const auto stage = static_cast<std::size_t>(o.stage);
  const plan::PredictedOn on = plan::predicted_on(o.cluster, o.communicator);
  plan::require_device(c, on);
  const plan::Machine machine = predicted_machine(options, on, c);
  if (const cluster::Cluster* described = on.described()) return simulate_described(c, *described, machine, o, stage);
  return simulate_calibrated(c, machine, on, o, stage);
}

int run_simulate(const ConfigOptions& options, const SimulateArguments& o) {
  const config::Config c = load_config(options);
  const Simulated s = simulate_either(options, o, c);
  const auto stage = static_cast<std::size_t>(o.stage);
  if (stage >= s.step.size())
    throw UsageError("--stage: {}; the layout has {} stage{}, counted from 0", o.stage, s.step.size(),
                     s.step.size() == 1 ? "" : "s");
  const auto& p = s.step.program(stage);
  const auto choices = open_choices(c, s.config, p.arch, p.setting);
  // The figures of a run are those of its own configuration and ranks.
  std::optional<MeasuredRun> measured;
  if (names_run(options) && options.sets.empty() && !options.model && !options.ranks)
    measured = measured_run(*options.file);
  if (!o.trace.empty()) write_predicted_trace(s, o.trace);
  if (!o.programs.empty()) {
    const auto schedule = plan::read_schedule(s.config);
    program::Setting setting = p.setting;
    setting.pipeline.stage = 0;
    write_clock_programs(*s.clocks, program::build_stages(p.arch, setting, schedule ? &*schedule : nullptr),
                         o.programs);
  }
  if (o.format == "json")
    fmt::print("{}\n", simulated_json(s, stage, choices, measured).dump(2));
  else
    print_simulated(s, stage, choices, measured);
  return kOk;
}

}  // namespace

Simulated simulated_run(const std::string& run, const std::string& cluster, const std::string& communicator) {
  ConfigOptions options;
  options.file = run;
  SimulateArguments o;
  o.cluster = cluster, o.communicator = communicator;
  return simulate_either(options, o, load_config(options));
}

void add_simulate_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("simulate", "predicted Timeline of one layout");
  auto options = add_config_options(*verb);
  add_node_option(*verb, *options);
  auto o = std::make_shared<SimulateArguments>();
  verb->add_option(
          "--cluster", o->cluster,
          fmt::format(
              "a calibration (what `molen calibrate` wrote), or the description of a cluster: a file *.toml, or one "
              "of {}",
              fmt::join(cluster::shipped(), ", ")))
      ->required();
  verb->add_option("--communicator", o->communicator, "as calibrated: self, threads, mpi");
  verb->add_option("--stage", o->stage, "pipeline stage whose phases and ops are shown")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  verb->add_option("--trace", o->trace, "file for the predicted step as a Chrome trace, with a process for each stage");
  CLI::Option* clocks = verb->add_flag("--clocks", o->clocks,
                                       "also plan a clock for each task of each stage, so that the devices take the "
                                       "least energy for the step (docs/energy.md)");
  verb->add_option("--slowdown", o->slowdown, "share of the step by which the plan of --clocks may be longer, 0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->needs(clocks)
      ->capture_default_str();
  verb->add_option("--programs", o->programs,
                   "folder for the programs of all stages, with ops that set the clocks of the plan of --clocks; "
                   "`molen train --program FOLDER` runs them")
      ->needs(clocks);
  auto format = add_format_option(*verb);
  verb->callback([&chosen, options, o, format] {
    chosen.action = [=] {
      o->format = *format;
      return run_simulate(*options, *o);
    };
  });
}

}  // namespace molen::apps
