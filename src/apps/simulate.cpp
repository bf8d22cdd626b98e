// molen simulate: the predicted Timeline of one layout.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/cli.h"
#include "base/error.h"
#include "base/json.h"
#include "plan/resolve.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/provenance/provenance.h"
#include "sim/calibration.h"
#include "sim/simulate.h"
#ifdef MOLEN_HAS_TORCH
#include "measure/calibrate.h"
#endif

namespace molen::apps {
namespace {

struct Simulated {
  config::Config config;  // resolved
  program::Program program;
  sim::Costs costs;
  program::Timeline timeline;
};

// Returns a failure when the calibration has no data for the prediction.
Result<Simulated> simulate_on(config::Config c, const plan::Machine& machine, const sim::Calibration& calibration,
                              const std::string& communicator) {
  const auto a = plan::resolve_architecture(c);
  const auto setting = plan::resolve_setting(c, a, machine);
  if (const auto not_yet = sim::unsimulated(setting)) throw UsageError("{}: {}", c.where(not_yet->key), not_yet->why);
  auto p = program::build(a, setting);
  program::require_sound(p, "the built program");
  const std::string comm = !communicator.empty()                 ? communicator
                           : machine.ranks == 1                  ? "self"
                           : machine.ranks > machine.local_ranks ? "mpi"
                                                                 : "threads";
  auto costs = calibration.find(sim::conditions_of(p.setting, comm));
  if (!costs) return Failure{costs.reason()};
  auto timeline = sim::simulate(p, program::expand(p), costs.value());
  return Simulated{std::move(c), std::move(p), std::move(costs).value(), std::move(timeline)};
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
      if (simulated && (!fastest || simulated.value().timeline.total_s < fastest->timeline.total_s))
        fastest = std::move(simulated).value();
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

int run_simulate(const ConfigOptions& options, const std::string& cluster, const std::string& communicator,
                 const std::string& format) {
  const config::Config c = load_config(options);
  plan::Machine machine = planned_machine(options, c);
  if (c.device.kind == "cuda")
    throw UsageError("{}: `molen calibrate` measures processors; cuda devices cannot be simulated yet",
                     c.where("device.kind"));
  machine.cuda = false;
  const auto [resolved, p, costs, timeline] =
      simulate_open(c, machine, sim::read_calibration(cluster), cluster, communicator);
  const auto choices = open_choices(c, resolved, p.arch, p.setting);
  const auto ops = program::expand(p);
  const auto phases = program::phase_seconds(p.setting, ops, timeline).values();
  const auto phase_keys = program::phase_keys();
  const auto memory = program::plan_memory(p);
  const double tokens = static_cast<double>(p.setting.global_batch * p.setting.sequence);
  // Only its rows are used, which hold the time of each kind of op; nothing is measured here.
  auto kinds = program::compare(ops, timeline, timeline).rows;
  if (format == "json") {
    Json by_phase;
    for (std::size_t i = 0; i < phases.size(); ++i) by_phase[phase_keys[i]] = phases[i];
    std::map<std::string, double> computing;
    for (std::size_t i = 0; i < ops.size(); ++i)
      for (const program::Work& work : program::work_of(*ops[i].step, timeline.ops[i]))
        computing[work.kind] += work.cpu_s;
    Json by_kind = Json::array();
    for (const auto& row : kinds)
      by_kind.push_back({{"kind", row.kind},
                         {"count", row.count},
                         {"seconds", row.predicted_s},
                         {"computing_s", computing[row.kind]},
                         {"bytes", row.bytes}});
    fmt::print("{}\n", Json{{"step_s", timeline.total_s},
                            {"tokens_per_s", tokens / timeline.total_s},
                            {"compute", name_of(p.setting.compute)},
                            {"open_choices", to_json(choices)},
                            {"memory_bytes", memory.peak.value},
                            {"host_bytes", memory.host.value},
                            {"extrapolated", costs.extrapolated().empty() ? Json() : Json(costs.extrapolated())},
                            {"phase_s", by_phase},
                            {"ops", by_kind}}
                           .dump(2));
    return kOk;
  }
  fmt::print("{}predicted step {} ({:.0f} tokens/s) in {}, memory of a rank {}{}\n", to_text(choices),
             human(Seconds(timeline.total_s)), tokens / timeline.total_s, name_of(p.setting.compute),
             human(memory.peak), memory.host.value > 0 ? fmt::format(", on the host {}", human(memory.host)) : "");
  if (!costs.extrapolated().empty())
    fmt::print("these ranks were not measured: extrapolated from {}\n", costs.extrapolated());
  for (std::size_t i = 0; i < phases.size(); ++i)
    if (phases[i] > 0)
      fmt::print("  {:<18} {:>10} {:>6.1f}%\n", phase_keys[i], human(Seconds(phases[i])),
                 100.0 * phases[i] / timeline.total_s);
  fmt::print("\n  {:<28} {:>6} {:>12} {:>12}\n", "op", "count", "predicted", "bytes");
  for (const auto& row : kinds)
    fmt::print("  {:<28} {:>6} {:>12} {:>12}\n", row.kind, row.count, human(Seconds(row.predicted_s)),
               row.bytes > 0 ? human(Bytes(row.bytes)) : "-");
  return kOk;
}

}  // namespace

void add_simulate_verb(CLI::App& app, Chosen& chosen) {
  CLI::App* verb = app.add_subcommand("simulate", "predicted Timeline of one layout");
  auto options = add_config_options(*verb);
  add_node_option(*verb, *options);
  auto cluster = std::make_shared<std::string>(), communicator = std::make_shared<std::string>();
  verb->add_option("--cluster", *cluster, "what `molen calibrate` wrote")->required();
  verb->add_option("--communicator", *communicator, "as calibrated: self, threads, mpi");
  auto format = add_format_option(*verb);
  verb->callback([&chosen, options, cluster, communicator, format] {
    chosen.action = [=] { return run_simulate(*options, *cluster, *communicator, *format); };
  });
}

}  // namespace molen::apps
