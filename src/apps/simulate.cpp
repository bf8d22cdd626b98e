// molen simulate: the predicted Timeline of one layout.
#include <fmt/format.h>

#include <iterator>

#include "apps/cli.h"
#include "apps/clock_plan.h"
#include "apps/measured_run.h"
#include "apps/simulated.h"
#include "base/error.h"
#include "base/file.h"
#include "base/processor.h"
#include "cluster/cluster.h"
#include "plan/clock_plan.h"
#include "plan/documents.h"
#include "plan/resolve.h"
#include "plan/static_check.h"
#include "plan/trial.h"
#include "program/build/build.h"
#include "program/ir/trace.h"
#include "sim/attended.h"
#include "sim/calibration.h"
#include "sim/described_costs.h"
#include "sim/described_errors.h"
#include "sim/forecast.h"
#include "sim/intervals.h"

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

// A configuration and the programs of its stages, which the verifier has accepted.
struct Built {
  config::Config config;  // resolved
  program::Setting setting;
  std::vector<program::Program> stages;
  // With data.document_mask: the share that the FLOPs of attention are left with, and the stages with less and with
  // more
  // of them, between which 80 % of the batches of a rank lie.
  std::optional<data::Attended> attended;
  std::vector<std::vector<program::Program>> less_and_more;
};

Built build_for(config::Config c, const plan::Machine& machine) {
  const auto a = plan::resolve_architecture(c);
  const auto setting = plan::resolve_setting(c, a, machine);

  const auto schedule = plan::read_schedule(c);
  auto programs = program::build_stages(a, setting, schedule ? &*schedule : nullptr, false);
  plan::require_sound(programs);
  std::optional<data::Attended> attended;
  std::vector<std::vector<program::Program>> less_and_more;
  if (setting.document_mask) {
    attended = plan::attended_of(c, a);
    const auto [low, high] = data::interval_of(*attended, setting.global_batch / setting.data_ranks());
    for (const double share : {low, high}) {
      less_and_more.push_back(programs);
      sim::attend_within_documents(less_and_more.back(), share, machine.cuda);
    }
    sim::attend_within_documents(programs, attended->mean, machine.cuda);
  }
  return {std::move(c), setting, std::move(programs), attended, std::move(less_and_more)};
}

std::optional<AttendedStep> attended_step(Built& built, const sim::Costs& costs) {
  if (!built.attended) return std::nullopt;
  const auto step = [&](std::size_t i) { return sim::Forecast(std::move(built.less_and_more[i]), costs).seconds(); };
  return AttendedStep{*built.attended, step(0), step(1)};
}

// How far a prediction may be off: its step, and the kinds of ops of the stage that is shown.
struct Spreads {
  sim::Errors step;
  std::map<std::string, double> kinds;
};
// A stage that there is not has no kinds; it is refused later.
Spreads spreads_of(const Built& built, const sim::Forecast& step, const sim::Costs& costs,
                   const sim::OpErrors& of_costs, bool device, std::size_t stage) {
  const double more = built.attended ? plan::most_over_mean(*built.attended, built.setting) : 1.0;
  const sim::DocumentErrors errors(of_costs, costs, more, device);
  Spreads spreads{step.errors(errors), {}};
  if (stage < step.size()) spreads.kinds = step.spreads_of_kinds(stage, errors);
  return spreads;
}

// The inputs of a prediction on a calibration besides the configuration.
struct Calibrated {
  const sim::Calibration& calibration;
  std::string communicator;  // "": the usual one
  std::size_t stage = 0;     // that is shown
};

// Returns a failure when the calibration has no data for the prediction.
Result<Simulated> simulate_on(config::Config c, const plan::Machine& machine, const Calibrated& on,
                              const SimulateArguments& o) {
  Built built = build_for(std::move(c), machine);
  const std::string comm = !on.communicator.empty()              ? on.communicator
                           : machine.ranks == 1                  ? "self"
                           : machine.ranks > machine.local_ranks ? "mpi"
                                                                 : "threads";
  auto costs = on.calibration.find(sim::conditions_of(built.setting, comm));
  if (!costs) return Failure{costs.reason()};
  sim::Forecast step(std::move(built.stages), costs.value(), o.every_op());
  Spreads spreads = spreads_of(built, step, costs.value(), sim::MeasuredErrors(costs.value()), machine.cuda, on.stage);
  auto whole_run = whole_run_of_calibration(built.config);
  return Simulated{.config = std::move(built.config),
                   .step = std::move(step),
                   .attended = attended_step(built, costs.value()),
                   .extrapolated = costs.value().extrapolated(),
                   .whole_run = std::move(whole_run),
                   .errors = std::move(spreads.step),
                   .kinds = std::move(spreads.kinds)};
}

// `stage`: the one that is shown.
Simulated simulate_described(config::Config c, const cluster::Cluster& on, const plan::Machine& machine,
                             const SimulateArguments& o, std::size_t stage) {
  if (c.device.kind == "cpu")
    throw UsageError("{}: {} describes {} devices; device.kind = \"auto\" takes them", c.where("device.kind"), on.name,
                     on.device.name);

  Built built = build_for(std::move(c), machine);
  const sim::Factors& factors = sim::Factors::shipped();
  const sim::DescribedCosts costs(on, factors);
  sim::Forecast step(std::move(built.stages), costs, o.every_op());
  Spreads spreads = spreads_of(built, step, costs, sim::DescribedErrors(on, factors), machine.cuda, stage);
  const double spread = sim::spread_of(spreads.step);
  const auto energy = step.energy(on, factors, spread);
  const PredictedStep predicted{step.seconds(), spread, energy};
  auto whole_run = whole_run_of(built.config, step.program(0).arch, built.setting, machine, on, costs, predicted);
  std::optional<plan::ClockPlan> clocks;
  if (o.clocks) clocks = plan::clock_plan(step.stages(), step.timelines(), on, factors, costs, o.slowdown);
  return {.config = std::move(built.config),
          .step = std::move(step),
          .attended = attended_step(built, costs),
          .whole_run = std::move(whole_run),
          .errors = std::move(spreads.step),
          .kinds = std::move(spreads.kinds),
          .cluster = on,
          .local_ranks = machine.local_ranks,
          .energy = energy,
          .clocks = std::move(clocks)};
}

bool measured_here(const sim::Calibration& calibration) {
  return calibration.cpu == cpu_model();
}

// For an open precision: uses the precision of a run on this machine if the calibration is of this machine; else the
// calibrated type that is predicted to be fastest.
Simulated simulate_open(const config::Config& c, plan::Machine machine, const Calibrated& on,
                        const SimulateArguments& o) {
  if (!measured_here(on.calibration)) machine.measure_precision = nullptr;
  if (machine.measure_precision) {
    auto simulated = simulate_on(c, machine, on, o);
    if (simulated) return std::move(simulated).value();
  }
  std::optional<Simulated> fastest;
  std::string refused;
  const auto& all = on.calibration.entries;
  for (const char* name : {"fp32", "bf16"}) {  // what "auto" may come to
    if (c.precision.compute != "auto" ||
        std::none_of(all.begin(), all.end(), [&](const auto& e) { return e.conditions.compute == name; }))
      continue;
    config::Config fixed = c;
    config::assign(fixed, "precision.compute", std::string(name),
                   {config::Origin::Kind::kOther,
                    fmt::format("predicted to be the fastest of what {} holds; \"auto\" measures", o.cluster)});
    try {
      auto simulated = simulate_on(std::move(fixed), machine, on, o);
      if (simulated && (!fastest || simulated.value().step_s() < fastest->step_s()))
        fastest.emplace(std::move(simulated).value());
    } catch (const UsageError& error) {  // another type may still be valid
      refused = error.what();
    }
  }
  if (fastest) return std::move(*fastest);
  if (!refused.empty()) throw UsageError("{}", refused);
  auto simulated = simulate_on(c, machine, on, o);
  if (!simulated)
    throw UsageError("{}: {}; --ranks, math.threads, precision.compute and --communicator choose", o.cluster,
                     simulated.reason());
  return std::move(simulated).value();
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
  if (!sim::is_calibration(o.cluster)) {
    if (!o.communicator.empty())
      throw UsageError("--communicator: {} is a description, not a calibration; its devices use their own", o.cluster);
    const cluster::Cluster on = cluster::find(o.cluster);
    return simulate_described(c, on, plan::machine_on(on, planned_ranks(options).ranks, options.ranks_per_node), o,
                              stage);
  }
  if (o.clocks)
    throw UsageError(
        "--clocks: {} is a calibration, which measures a machine at one clock; --cluster with the name of a "
        "description plans the clocks of its devices",
        o.cluster);
  if (c.device.kind == "cuda")
    throw UsageError(
        "{}: `molen calibrate` measures processors; --cluster with the name of a description simulates "
        "cuda devices",
        c.where("device.kind"));
  plan::Machine machine = planned_machine(options, c);
  machine.cuda = false;
  const sim::Calibration calibration = sim::read_calibration(o.cluster);
  return simulate_open(c, machine, {calibration, o.communicator, stage}, o);
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
