// molen simulate: the predicted Timeline of one layout.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "apps/cli.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "cluster/cluster.h"
#include "data/attended.h"
#include "plan/documents.h"
#include "plan/resolve.h"
#include "plan/trial.h"
#include "program/build/build.h"
#include "program/ir/comparison.h"
#include "program/ir/trace.h"
#include "program/memory/memory.h"
#include "program/provenance/provenance.h"
#include "sim/attended.h"
#include "sim/calibration.h"
#include "sim/described_costs.h"
#include "sim/described_energy.h"
#include "sim/simulate.h"
#ifdef MOLEN_HAS_TORCH
#include "measure/calibrate.h"
#endif

namespace molen::apps {
namespace {

struct Simulated {
  config::Config config;  // resolved
  program::Stages stages;
  std::vector<program::Timeline> timelines;               // by stage
  std::optional<data::Attended> attended = std::nullopt;  // as Built has it
  std::string extrapolated = {};  // the measurements that the costs are derived from, if not these conditions
  // With a description of a cluster: the cluster, the spread of the step's time (sim::Factors), and the energy.
  std::optional<cluster::Cluster> cluster = std::nullopt;
  double spread = 0.0;
  sim::StepEnergy energy = {};
  double step_s() const { return sim::step_seconds(timelines); }
};

// A configuration and the programs of its stages, which the verifier has accepted.
struct Built {
  config::Config config;  // resolved
  program::Setting setting;
  program::Stages stages;
  std::optional<data::Attended> attended;  // with data.document_mask; the FLOPs of attention are those of this share
};
Built build_for(config::Config c, const plan::Machine& machine) {
  const auto a = plan::resolve_architecture(c);
  const auto setting = plan::resolve_setting(c, a, machine);

  const auto schedule = plan::read_schedule(c);
  auto programs = program::build_stages(a, setting, schedule ? &*schedule : nullptr);
  for (const auto& p : programs) program::require_sound(p, "the built program");
  if (const auto findings = program::check_world(programs); !findings.empty())
    throw Error("the pipeline's programs are refused: {}", findings.front().text);
  std::optional<data::Attended> attended;
  if (setting.document_mask) {
    attended = plan::attended_of(c, a);
    sim::attend_within_documents(programs, attended->mean);
  }
  return {std::move(c), setting, program::Stages(std::move(programs)), attended};
}

// Returns a failure when the calibration has no data for the prediction.
Result<Simulated> simulate_on(config::Config c, const plan::Machine& machine, const sim::Calibration& calibration,
                              const std::string& communicator) {
  Built built = build_for(std::move(c), machine);
  const std::string comm = !communicator.empty()                 ? communicator
                           : machine.ranks == 1                  ? "self"
                           : machine.ranks > machine.local_ranks ? "mpi"
                                                                 : "threads";
  auto costs = calibration.find(sim::conditions_of(built.setting, comm));
  if (!costs) return Failure{costs.reason()};
  auto timelines = sim::simulate(built.stages, costs.value());
  return Simulated{std::move(built.config), std::move(built.stages), std::move(timelines), built.attended,
                   costs.value().extrapolated()};
}

Simulated simulate_described(config::Config c, const cluster::Cluster& on, const plan::Machine& machine) {
  if (c.device.kind == "cpu")
    throw UsageError("{}: {} describes {} devices; device.kind = \"auto\" takes them", c.where("device.kind"), on.name,
                     on.device.name);

  Built built = build_for(std::move(c), machine);
  const sim::Factors& factors = sim::Factors::shipped();
  auto timelines = sim::simulate(built.stages, sim::DescribedCosts(on, factors));
  const auto energy = sim::energy_of(built.stages, timelines, on, factors, factors.spread());
  return {std::move(built.config),
          std::move(built.stages),
          std::move(timelines),
          built.attended,
          {},
          on,
          factors.spread(),
          energy};
}

bool measured_here(const sim::Calibration& calibration) {
#ifdef MOLEN_HAS_TORCH
  return calibration.cpu == measure::cpu_model();
#else
  return false;
#endif
}

// For an open precision: uses the precision of a run on this machine if the calibration is of this machine; else the
// calibrated type that is predicted to be fastest.
Simulated simulate_open(const config::Config& c, plan::Machine machine, const sim::Calibration& calibration,
                        const std::string& cluster, const std::string& communicator) {
  if (!measured_here(calibration)) machine.measure_precision = nullptr;
  if (machine.measure_precision) {
    auto simulated = simulate_on(c, machine, calibration, communicator);
    if (simulated) return std::move(simulated).value();
  }
  std::optional<Simulated> fastest;
  std::string refused;
  const auto& all = calibration.entries;
  for (const char* name : {"fp32", "bf16"}) {  // what "auto" may come to
    if (c.precision.compute != "auto" ||
        std::none_of(all.begin(), all.end(), [&](const auto& e) { return e.conditions.compute == name; }))
      continue;
    config::Config fixed = c;
    config::assign(fixed, "precision.compute", std::string(name),
                   {config::Origin::Kind::kOther,
                    fmt::format("predicted to be the fastest of what {} holds; \"auto\" measures", cluster)});
    try {
      auto simulated = simulate_on(std::move(fixed), machine, calibration, communicator);
      if (simulated && (!fastest || simulated.value().step_s() < fastest->step_s()))
        fastest.emplace(std::move(simulated).value());
    } catch (const UsageError& error) {  // another type may still be valid
      refused = error.what();
    }
  }
  if (fastest) return std::move(*fastest);
  if (!refused.empty()) throw UsageError("{}", refused);
  auto simulated = simulate_on(c, machine, calibration, communicator);
  if (!simulated)
    throw UsageError("{}: {}; --ranks, math.threads, precision.compute and --communicator choose", cluster,
                     simulated.reason());
  return std::move(simulated).value();
}

// One row of the table of stages.
struct StageRow {
  double busy_s = 0.0, bubble_s = 0.0;
  Bytes memory, host;
};

std::vector<StageRow> rows_of(const Simulated& s) {
  std::vector<StageRow> rows;
  for (std::size_t i = 0; i < s.stages.size(); ++i) {
    const auto& p = s.stages.program(i);
    StageRow row;
    for (std::size_t k = 0; k < s.stages.ops(i).size(); ++k)
      if (s.stages.ops(i)[k].step->stream == program::Stream::kCompute) row.busy_s += s.timelines[i].ops[k].seconds();
    row.bubble_s = program::phase_seconds(p.setting, s.stages.ops(i), s.timelines[i]).bubble_s;
    const auto memory = program::plan_memory(p);
    row.memory = memory.peak, row.host = memory.host;
    rows.push_back(row);
  }
  return rows;
}

Bytes largest_of(const std::vector<StageRow>& rows, Bytes StageRow::*of) {
  Bytes most;
  for (const StageRow& row : rows) most = std::max(most, row.*of);
  return most;
}

// With a probability of 80 %, the true step is within these seconds.
std::pair<double, double> interval_of(const Simulated& s) {
  return {s.step_s() / (1.0 + s.spread), s.step_s() * (1.0 + s.spread)};
}

// The bytes of a device that a plan may take.
double plannable(const cluster::Cluster& cluster) {
  return sim::Factors::shipped().of("plannable_memory") * cluster.device.memory.value;
}

// What a rank may take of the memory of its node's processors.
double plannable_host(const Simulated& s) {
  const int ranks = s.stages.program(0).grid.ranks();
  return s.cluster->node.host_memory.value / std::min(ranks, s.cluster->node.devices);
}

bool fits(const Simulated& s, Bytes memory, Bytes host) {
  return static_cast<double>(memory.value) <= plannable(*s.cluster) &&
         static_cast<double>(host.value) <= plannable_host(s);
}

Json cluster_json(const Simulated& s, Bytes memory, Bytes host) {
  if (!s.cluster) return nullptr;
  const double room = plannable(*s.cluster);
  const auto [low, high] = interval_of(s);
  return {{"name", s.cluster->name},         {"device", s.cluster->device.name},
          {"interval_s", {low, high}},       {"device_memory_bytes", s.cluster->device.memory.value},
          {"plannable_memory_bytes", room},  {"plannable_host_bytes", plannable_host(s)},
          {"fits", fits(s, memory, host)},   {"devices_j", s.energy.devices.value},
          {"hosts_j", s.energy.hosts.value}, {"site_j", s.energy.site},
          {"kg_co2e", s.energy.kg_co2e},     {"energy_spread", s.energy.spread}};
}

Json attended_json(const std::optional<data::Attended>& attended) {
  if (!attended) return nullptr;
  return {{"share", attended->mean}, {"deviation", attended->deviation}, {"sequences", attended->sequences}};
}

Json json_of(const Simulated& s, std::size_t stage, const std::vector<StageRow>& rows,
             const std::vector<OpenChoice>& choices) {
  const auto& setting = s.stages.program(stage).setting;
  const auto& ops = s.stages.ops(stage);
  const auto& timeline = s.timelines[stage];
  const auto phases = program::phase_seconds(setting, ops, timeline).values();
  const auto keys = program::phase_keys();
  Json by_phase, by_stage = Json::array(), by_kind = Json::array();
  for (std::size_t i = 0; i < phases.size(); ++i) by_phase[keys[i]] = phases[i];
  for (const StageRow& row : rows)
    by_stage.push_back({{"compute_s", row.busy_s},
                        {"bubble_s", row.bubble_s},
                        {"memory_bytes", row.memory.value},
                        {"host_bytes", row.host.value}});
  std::map<std::string, double> computing;
  for (std::size_t i = 0; i < ops.size(); ++i)
    for (const program::Work& work : program::work_of(*ops[i].step, timeline.ops[i]))
      computing[work.kind] += work.cpu_s;
  // Only the rows of the comparison are used, which hold the time of each kind of op; nothing is measured here.
  for (const auto& row : program::compare(ops, timeline, timeline).rows)
    by_kind.push_back({{"kind", row.kind},
                       {"count", row.count},
                       {"seconds", row.predicted_s},
                       {"waiting_s", row.waited_s},
                       {"computing_s", computing[row.kind]},
                       {"bytes", row.bytes}});
  return {{"step_s", s.step_s()},
          {"tokens_per_s", static_cast<double>(setting.positions()) / s.step_s()},
          {"compute", name_of(setting.compute)},
          {"open_choices", to_json(choices)},
          {"memory_bytes", largest_of(rows, &StageRow::memory).value},
          {"host_bytes", largest_of(rows, &StageRow::host).value},
          {"attended", attended_json(s.attended)},
          {"extrapolated", s.extrapolated.empty() ? Json() : Json(s.extrapolated)},
          {"cluster", cluster_json(s, largest_of(rows, &StageRow::memory), largest_of(rows, &StageRow::host))},
          {"stage", stage},
          {"stages", by_stage},
          {"phase_s", by_phase},
          {"ops", by_kind}};
}

void print_stages(const std::vector<StageRow>& rows, double step_s) {
  fmt::print("\n  {:<6} {:>10} {:>10} {:>7} {:>14}\n", "stage", "compute", "bubble", "", "memory a rank");
  for (std::size_t i = 0; i < rows.size(); ++i)
    fmt::print("  {:<6} {:>10} {:>10} {:>6.1f}% {:>14}\n", i, human(Seconds(rows[i].busy_s)),
               human(Seconds(rows[i].bubble_s)), 100.0 * rows[i].bubble_s / step_s, human(rows[i].memory));
  fmt::print("\n");
}

void print_cluster(const Simulated& s, Bytes memory, Bytes host) {
  const auto& device = s.cluster->device;
  const auto [low, high] = interval_of(s);
  const double tokens = static_cast<double>(s.stages.program(0).setting.positions());
  const Bytes room(static_cast<std::int64_t>(plannable(*s.cluster)));
  fmt::print("on the description of {} ({}): 80 % of steps are expected from {} to {}\n", s.cluster->name, device.name,
             human(Seconds(low)), human(Seconds(high)));
  fmt::print("the plan {} the {} of a device that the driver's context and the buffers of libraries leave\n",
             memory <= room ? "fits into" : "exceeds", human(room));
  if (host.value > 0)
    fmt::print("the plan {} the {} of the host's memory that a rank has\n",
               static_cast<double>(host.value) <= plannable_host(s) ? "fits into" : "exceeds",
               human(Bytes(static_cast<std::int64_t>(plannable_host(s)))));
  fmt::print(
      "energy of a step {:.4g} J +- {:.0f} % ({:.4g} J devices, {:.4g} J hosts), {:.3g} J a token; with the site "
      "{:.4g} J, {:.3g} kg CO2e\n",
      s.energy.computers().value, 100.0 * s.energy.spread, s.energy.devices.value, s.energy.hosts.value,
      s.energy.computers().value / tokens, s.energy.site, s.energy.kg_co2e);
}

void print_simulated(const Simulated& s, std::size_t stage, const std::vector<StageRow>& rows,
                     const std::vector<OpenChoice>& choices) {
  const auto& setting = s.stages.program(stage).setting;
  const auto& timeline = s.timelines[stage];
  const Bytes memory = largest_of(rows, &StageRow::memory), host = largest_of(rows, &StageRow::host);
  fmt::print("{}predicted step {} ({:.0f} tokens/s) in {}, memory of a rank {}{}\n", to_text(choices),
             human(Seconds(s.step_s())), static_cast<double>(setting.positions()) / s.step_s(),
             name_of(setting.compute), human(memory),
             host.value > 0 ? fmt::format(", on the host {}", human(host)) : "");
  if (s.attended)
    fmt::print(
        "attention within documents: {:.1f} % of the causal scores of a sequence, with a standard deviation of {:.1f} "
        "points over {} sequences of the data\n",
        100.0 * s.attended->mean, 100.0 * s.attended->deviation, s.attended->sequences);
  if (!s.extrapolated.empty()) fmt::print("these ranks were not measured: extrapolated from {}\n", s.extrapolated);
  if (s.cluster) print_cluster(s, memory, host);
  if (rows.size() > 1) {
    print_stages(rows, s.step_s());
    fmt::print("stage {}:\n", stage);
  }
  const auto phases = program::phase_seconds(setting, s.stages.ops(stage), timeline).values();
  const auto keys = program::phase_keys();
  for (std::size_t i = 0; i < phases.size(); ++i)
    if (phases[i] > 0)
      fmt::print("  {:<18} {:>10} {:>6.1f}%\n", keys[i], human(Seconds(phases[i])),
                 100.0 * phases[i] / timeline.total_s);
  fmt::print("\n  {:<28} {:>6} {:>12} {:>12} {:>12}\n", "op", "count", "predicted", "waiting", "bytes");
  for (const auto& row : program::compare(s.stages.ops(stage), timeline, timeline).rows)
    fmt::print("  {:<28} {:>6} {:>12} {:>12} {:>12}\n", row.kind, row.count, human(Seconds(row.predicted_s)),
               row.waited_s > 0 ? human(Seconds(row.waited_s)) : "-", row.bytes > 0 ? human(Bytes(row.bytes)) : "-");
}

struct SimulateArguments {
  std::string cluster, communicator, format, trace;
  int stage = 0;
};

void write_predicted_trace(const Simulated& s, const std::string& file) {
  std::vector<store::TraceSpan> spans;
  for (std::size_t i = 0; i < s.stages.size(); ++i)
    std::ranges::move(program::spans_of(s.stages.ops(i), s.timelines[i], 0.0, 1, static_cast<std::int64_t>(i)),
                      std::back_inserter(spans));
  write_file_atomic(file, store::trace_json(spans));
}

Simulated simulate_either(const ConfigOptions& options, const SimulateArguments& o, const config::Config& c) {
  plan::Machine machine = planned_machine(options, c);
  if (!sim::is_calibration(o.cluster)) {
    if (!o.communicator.empty())
      throw UsageError("--communicator: {} is a description, not a calibration; its devices use their own", o.cluster);
    const cluster::Cluster on = cluster::find(o.cluster);
    return simulate_described(c, on, plan::machine_on(on, machine.ranks, options.ranks_per_node));
  }
  if (c.device.kind == "cuda")
    throw UsageError(
        "{}: `molen calibrate` measures processors; --cluster with the name of a description simulates "
        "cuda devices",
        c.where("device.kind"));
  machine.cuda = false;
  return simulate_open(c, machine, sim::read_calibration(o.cluster), o.cluster, o.communicator);
}

int run_simulate(const ConfigOptions& options, const SimulateArguments& o) {
  const config::Config c = load_config(options);
  const Simulated s = simulate_either(options, o, c);
  const auto stage = static_cast<std::size_t>(o.stage);
  if (stage >= s.stages.size())
    throw UsageError("--stage: {}; the layout has {} stage{}, counted from 0", o.stage, s.stages.size(),
                     s.stages.size() == 1 ? "" : "s");
  const auto& p = s.stages.program(stage);
  const auto choices = open_choices(c, s.config, p.arch, p.setting);
  const std::vector<StageRow> rows = rows_of(s);
  if (!o.trace.empty()) write_predicted_trace(s, o.trace);
  if (o.format == "json")
    fmt::print("{}\n", json_of(s, stage, rows, choices).dump(2));
  else
    print_simulated(s, stage, rows, choices);
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
  auto format = add_format_option(*verb);
  verb->callback([&chosen, options, o, format] {
    chosen.action = [=] {
      o->format = *format;
      return run_simulate(*options, *o);
    };
  });
}

}  // namespace molen::apps
