#include "apps/simulated.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/beside.h"
#include "apps/clock_plan.h"
#include "plan/framework.h"
#include "plan/memory_overheads.h"
#include "plan/resolve_parallel.h"
#include "program/memory/memory.h"
#include "sim/factors.h"

namespace molen::apps {
namespace {

// One row of the table of stages.
struct StageRow {
  double busy_s = 0.0, bubble_s = 0.0;
  Bytes memory, host;
  Bytes allocator;  // of a framework: the part of `memory` that its own buffers take
};

std::vector<StageRow> rows_of(const Simulated& s) {
  std::vector<StageRow> rows;
  for (std::size_t i = 0; i < s.step.size(); ++i) {
    StageRow row;
    s.step.each_op(i, [&](const program::Expanded& op, const program::OpTime& time, std::int64_t times) {
      if (op.step->stream == program::Stream::kCompute) row.busy_s += static_cast<double>(times) * time.seconds();
    });
    row.bubble_s = s.step.phases(i).bubble_s;
    const auto memory = program::planned_peak(s.step.program(i));
    row.memory = memory.device, row.host = memory.host;
    if (!s.framework.empty()) {
      row.memory = Bytes(static_cast<std::int64_t>(s.framework[i].device));
      row.allocator = Bytes(static_cast<std::int64_t>(s.framework[i].allocator));
    }
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
  return sim::ends_of(s.step_s(), s.spread());
}

// Returns what a rank takes of a device beside its plan. The stages of a pipeline open the same communicators.
plan::MemoryOverheads overheads_of(const Simulated& s) {
  return plan::memory_overheads(s.step.program(0));
}

// Returns the bytes of a device that a plan may take. The memory of a framework counts what the driver and libraries
// take, so it may take all of them.
Bytes plannable(const Simulated& s) {
  const Bytes device = plan::memory_of_device(s.cluster->device);
  return s.framework.empty() ? overheads_of(s).left_of(device) : device;
}

// Names the parts that lie between the memory of a device and what a plan may take; null for a framework, which counts
// them in its memory.
Json overheads_json(const Simulated& s) {
  if (!s.framework.empty()) return nullptr;
  const plan::MemoryOverheads o = overheads_of(s);
  return {{"context_bytes", o.context.value},
          {"communicators", o.communicators},
          {"communicator_bytes", o.of_communicator.value}};
}

// Returns the bytes that a rank may take of the memory of its node's processors.
double plannable_host(const Simulated& s) {
  return s.cluster->node.host_memory.value / s.local_ranks;
}

bool fits(const Simulated& s, Bytes memory, Bytes host) {
  if (!s.framework.empty()) return std::ranges::all_of(s.framework, [](const auto& stage) { return stage.fits; });
  return memory <= plannable(s) && static_cast<double>(host.value) <= plannable_host(s);
}

Json cluster_json(const Simulated& s, Bytes memory, Bytes host) {
  if (!s.cluster) return nullptr;
  const auto [low, high] = interval_of(s);
  return {{"name", s.cluster->name},
          {"device", s.cluster->device.name},
          {"interval_s", {low, high}},
          {"device_memory_bytes", s.cluster->device.memory.value},
          {"overheads", overheads_json(s)},
          {"plannable_memory_bytes", plannable(s).value},
          {"plannable_host_bytes", plannable_host(s)},
          {"fits", fits(s, memory, host)},
          {"devices_j", s.energy.devices.value},
          {"hosts_j", s.energy.hosts.value},
          {"site_j", s.energy.site},
          {"kg_co2e", s.energy.kg_co2e},
          {"energy_spread", s.energy.spread},
          {"site_j_spread", s.energy.site_spread},
          {"kg_co2e_spread", s.energy.co2e_spread}};
}

// The interval of the step, and by source what would make the step longer by itself.
Json interval_json(const Simulated& s) {
  const auto [low, high] = interval_of(s);
  return {{"low_s", low}, {"high_s", high}, {"spread", s.spread()}, {"sources", s.errors}};
}

// Names the framework whose step is predicted. Says which ZeRO stage the configuration asks for, and which stage the
// simulated program has. Returns null where molen's own step is predicted.
Json framework_json(const Simulated& s, const program::Setting& setting) {
  if (s.framework.empty()) return nullptr;
  return {{"kind", s.config.framework.kind}, {"zero", setting.zero}, {"zero_asked", plan::zero_stage(s.config)}};
}

double spread_of_kind(const Simulated& s, const std::string& kind) {
  const auto found = s.kinds.find(kind);
  return found == s.kinds.end() ? 0.0 : found->second;
}

Json attended_json(const std::optional<plan::AttendedStep>& attended) {
  if (!attended) return nullptr;
  return {{"share", attended->share.mean},
          {"deviation", attended->share.deviation},
          {"sequences", attended->share.sequences},
          {"interval_s", {attended->low_s, attended->high_s}}};
}

// A kind of op of a stage in the whole step.
struct KindSums {
  std::int64_t count = 0, bytes = 0;
  double predicted_s = 0.0, waited_s = 0.0, computing_s = 0.0;  // computing_s: of the threads
};

// Returns the kinds of ops of a stage, those with the most seconds first.
std::vector<std::pair<std::string, KindSums>> kinds_of(const Simulated& s, std::size_t stage) {
  std::map<std::string, KindSums> kinds;
  s.step.each_op(stage, [&](const program::Expanded& op, const program::OpTime& time, std::int64_t times) {
    const auto all = static_cast<double>(times);
    for (const program::Work& work : program::work_of(*op.step, time)) {
      KindSums& of = kinds[work.kind];
      of.count += times, of.bytes += times * work.bytes;
      of.predicted_s += all * work.seconds, of.computing_s += all * work.cpu_s;
    }
    kinds[program::kind_of(op.step->op)].waited_s += all * time.waited_s;
  });
  std::vector<std::pair<std::string, KindSums>> rows(kinds.begin(), kinds.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.second.predicted_s + a.second.waited_s > b.second.predicted_s + b.second.waited_s;
  });
  return rows;
}

double total_of(const Simulated& s, std::size_t stage) {
  return s.step.sum([&](const auto&, const auto& timelines) { return timelines[stage].total_s; });
}

void print_stages(const std::vector<StageRow>& rows, double step_s) {
  fmt::print("\n  {:<6} {:>10} {:>10} {:>7} {:>14}\n", "stage", "compute", "bubble", "", "memory a rank");
  for (std::size_t i = 0; i < rows.size(); ++i)
    fmt::print("  {:<6} {:>10} {:>10} {:>6.1f}% {:>14}\n", i, human(Seconds(rows[i].busy_s)),
               human(Seconds(rows[i].bubble_s)), 100.0 * rows[i].bubble_s / step_s, human(rows[i].memory));
  fmt::print("\n");
}

// Says between which times steps are expected, and how far the step moves by each of the largest sources of error.
void print_interval(const Simulated& s) {
  constexpr std::size_t kNamed = 3;
  std::vector<std::pair<double, std::string>> sources;
  for (const auto& [source, error] : s.errors) sources.emplace_back(error, source);
  std::sort(sources.rbegin(), sources.rend());
  std::vector<std::string> named;
  for (std::size_t i = 0; i < std::min(kNamed, sources.size()); ++i)
    named.push_back(fmt::format("{} {:.1f} %", sources[i].second, 100.0 * sources[i].first));
  const auto [low, high] = interval_of(s);
  fmt::print("80 % of steps are expected from {} to {}{}{}\n", human(Seconds(low)), human(Seconds(high)),
             named.empty() ? "" : "; the largest sources of error: ", fmt::join(named, ", "));
}

void print_cluster(const Simulated& s, Bytes memory, Bytes host) {
  const auto& device = s.cluster->device;
  const double tokens = static_cast<double>(s.step.program(0).setting.positions());
  const Bytes room = plannable(s);
  if (s.framework.empty())
    fmt::print("on the description of {} ({}), the plan {} the {} of a device that remain beside {}\n", s.cluster->name,
               device.name, memory <= room ? "fits into" : "exceeds", human(room), overheads_of(s).text());
  else
    fmt::print(
        "on the description of {} ({}), the framework's memory, with the driver's context and the buffers of "
        "libraries, {} the {} of a device\n",
        s.cluster->name, device.name, fits(s, memory, host) ? "fits into" : "exceeds", human(room));
  if (host.value > 0)
    fmt::print("the plan {} the {} of the host's memory that a rank has\n",
               static_cast<double>(host.value) <= plannable_host(s) ? "fits into" : "exceeds",
               human(Bytes(static_cast<std::int64_t>(plannable_host(s)))));
  fmt::print(
      "energy of a step {:.4g} J +- {:.0f} % ({:.4g} J devices, {:.4g} J hosts), {:.3g} J a token; with the site "
      "{:.4g} J, {:.3g} kg CO2e +- {:.0f} %\n",
      s.energy.computers().value, 100.0 * s.energy.spread, s.energy.devices.value, s.energy.hosts.value,
      s.energy.computers().value / tokens, s.energy.site, s.energy.kg_co2e, 100.0 * s.energy.co2e_spread);
}

}  // namespace

Json simulated_json(const Simulated& s, std::size_t stage, const std::vector<OpenChoice>& choices,
                    const std::optional<MeasuredRun>& measured) {
  const std::vector<StageRow> rows = rows_of(s);
  const auto& setting = s.step.program(stage).setting;
  const auto phases = s.step.phases(stage).values();

  const auto keys = program::phase_keys();
  Json by_phase, by_stage = Json::array(), by_kind = Json::array();
  for (std::size_t i = 0; i < phases.size(); ++i) by_phase[keys[i]] = phases[i];
  for (const StageRow& row : rows)
    by_stage.push_back({{"compute_s", row.busy_s},
                        {"bubble_s", row.bubble_s},
                        {"memory_bytes", row.memory.value},
                        {"host_bytes", row.host.value}});
  for (const auto& [kind, row] : kinds_of(s, stage)) {
    const auto [low, high] = sim::ends_of(row.predicted_s, spread_of_kind(s, kind));
    by_kind.push_back({{"kind", kind},
                       {"count", row.count},
                       {"seconds", row.predicted_s},
                       {"interval_s", {low, high}},
                       {"waiting_s", row.waited_s},
                       {"computing_s", row.computing_s},
                       {"bytes", row.bytes}});
  }
  return {{"step_s", s.step_s()},
          {"interval", interval_json(s)},
          {"tokens_per_s", static_cast<double>(setting.positions()) / s.step_s()},
          {"compute", name_of(setting.compute)},
          {"open_choices", to_json(choices)},
          {"memory_bytes", largest_of(rows, &StageRow::memory).value},
          {"host_bytes", largest_of(rows, &StageRow::host).value},
          {"framework", framework_json(s, setting)},
          {"allocator_bytes", s.framework.empty() ? Json() : Json(largest_of(rows, &StageRow::allocator).value)},
          {"attended", attended_json(s.attended)},
          {"extrapolated", s.extrapolated.empty() ? Json() : Json(s.extrapolated)},
          {"measured", measured ? to_json(*measured) : Json()},
          {"cluster", cluster_json(s, largest_of(rows, &StageRow::memory), largest_of(rows, &StageRow::host))},
          {"whole_run", whole_run_json(s.whole_run)},
          {"clock_plan", s.clocks ? clock_plan_json(*s.clocks, s.energy.hosts) : Json()},
          {"stage", stage},
          {"stages", by_stage},
          {"phase_s", by_phase},
          {"ops", by_kind}};
}

void print_simulated(const Simulated& s, std::size_t stage, const std::vector<OpenChoice>& choices,
                     const std::optional<MeasuredRun>& measured) {
  const std::vector<StageRow> rows = rows_of(s);
  const auto& setting = s.step.program(stage).setting;
  const Bytes memory = largest_of(rows, &StageRow::memory), host = largest_of(rows, &StageRow::host);
  fmt::print("{}predicted step{} {} ({:.0f} tokens/s) in {}, memory of a rank {}{}\n", to_text(choices),
             s.framework.empty() ? "" : plan::framework_text(" of ", s.config.framework.kind) + ":",
             human(Seconds(s.step_s())), static_cast<double>(setting.positions()) / s.step_s(),
             name_of(setting.compute), human(memory),
             host.value > 0 ? fmt::format(", on the host {}", human(host)) : "");
  if (!s.framework.empty() && setting.pipelined() && setting.zero < plan::zero_stage(s.config))
    fmt::print(
        "sharded parameters (zero {}) of a pipeline are predicted as ZeRO-{}: gathered once a step, with gradients "
        "reduced after the last micro-batch\n",
        plan::zero_stage(s.config), setting.zero);
  if (s.attended)
    fmt::print(
        "attention within documents: {:.1f} % of the causal scores of a sequence, with a standard deviation of {:.1f} "
        "points over {} sequences of the data; by it, 80 % of steps lie between {} and {}\n",
        100.0 * s.attended->share.mean, 100.0 * s.attended->share.deviation, s.attended->share.sequences,
        human(Seconds(s.attended->low_s)), human(Seconds(s.attended->high_s)));
  print_interval(s);
  if (!s.extrapolated.empty()) fmt::print("not all of this was measured: extrapolated from {}\n", s.extrapolated);
  if (s.cluster) print_cluster(s, memory, host);
  if (measured) print_beside(s, *measured);

  if (rows.size() > 1) {
    print_stages(rows, s.step_s());
    fmt::print("stage {}:\n", stage);
  }
  const auto phases = s.step.phases(stage).values();
  const double total_s = total_of(s, stage);
  const auto keys = program::phase_keys();
  for (std::size_t i = 0; i < phases.size(); ++i)
    if (phases[i] > 0)
      fmt::print("  {:<18} {:>10} {:>6.1f}%\n", keys[i], human(Seconds(phases[i])), 100.0 * phases[i] / total_s);

  fmt::print("\n  {:<28} {:>6} {:>12} {:>7} {:>12} {:>12}\n", "op", "count", "predicted", "80 %", "waiting", "bytes");
  for (const auto& [kind, row] : kinds_of(s, stage))
    fmt::print("  {:<28} {:>6} {:>12} {:>7} {:>12} {:>12}\n", kind, row.count, human(Seconds(row.predicted_s)),
               program::spread_text(spread_of_kind(s, kind)), row.waited_s > 0 ? human(Seconds(row.waited_s)) : "-",
               row.bytes > 0 ? human(Bytes(row.bytes)) : "-");
  print_whole_run(s.whole_run);
  if (s.clocks) print_clock_plan(*s.clocks, s.energy.hosts);
}

}  // namespace molen::apps
