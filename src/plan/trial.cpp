#include "plan/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "plan/documents.h"
#include "plan/layouts.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "sim/attended.h"
#include "sim/described_costs.h"
#include "sim/described_errors.h"
#include "sim/forecast.h"
#include "sim/intervals.h"

namespace molen::plan {
namespace {
double peak_of_type(const cluster::Device& device, DType compute) {
  return compute == DType::kF32 || compute == DType::kF64 ? device.peak_fp32.value : device.peak_16bit.value;
}

// Returns why the plan of the fullest rank exceeds the memory of a device, or of the node's processors, of which each
// of `local_ranks` ranks has an equal part; empty when it fits.
std::string exceeded(const program::PlannedPeak& need, const cluster::Cluster& on, int local_ranks) {
  const auto bytes = [](double value) { return Bytes(static_cast<std::int64_t>(value)); };
  const Bytes device = bytes(sim::Factors::shipped().of("plannable_memory") * on.device.memory.value),
              host = bytes(on.node.host_memory.value / local_ranks);
  if (need.device > device)
    return fmt::format("needs {} of a device of which a plan may take {}", human(need.device), human(device));
  if (need.host > host)
    return fmt::format("needs {} of the host's memory of which a rank has {}", human(need.host), human(host));
  return "";
}

}  // namespace

Machine machine_on(const cluster::Cluster& on, int ranks, std::optional<int> ranks_per_node) {
  if (ranks > on.devices()) throw UsageError("--ranks: {} ranks, but {} has {} devices", ranks, on.name, on.devices());
  if (ranks_per_node && *ranks_per_node > on.node.devices)
    throw UsageError("--ranks-per-node: {} ranks, but a node of {} has {} devices", *ranks_per_node, on.name,
                     on.node.devices);
  Machine machine;
  machine.ranks = ranks;
  machine.local_ranks = ranks_per_node.value_or(std::min(ranks, on.node.devices));
  if (ranks % machine.local_ranks != 0)
    throw UsageError("--ranks: {} ranks are not whole nodes of {} devices of {}; --ranks-per-node says otherwise",
                     ranks, machine.local_ranks, on.name);
  machine.cuda = true;
  machine.threads = 1;
  return machine;
}

Outcome predict(config::Config config, const cluster::Cluster& on, const Machine& machine) {
  on.require_programs();
  if (config.device.kind == "cpu")
    throw UsageError("{}: {} describes {} devices; device.kind = \"auto\" takes them", config.where("device.kind"),
                     on.name, on.device.name);
  const auto arch = resolve_architecture(config);
  const sim::Factors& factors = sim::Factors::shipped();
  Outcome outcome;
  std::vector<program::Program> programs;
  double more = 1.0;  // of attention's work, by the documents of the data
  try {
    const program::Setting s = resolve_setting(config, arch, machine);

    const auto schedule = read_schedule(config);
    programs = program::build_stages(arch, s, schedule ? &*schedule : nullptr, false);
    if (s.document_mask) {
      const data::Attended attended = attended_of(config, arch);
      sim::attend_within_documents(programs, attended.mean, machine.cuda);
      more = most_over_mean(attended, s);
    }
  } catch (const UsageError& error) {
    outcome.why = error.what();
    return outcome;
  }
  const program::Setting s = programs.front().setting;
  program::PlannedPeak most;
  for (const auto& p : programs) {
    const program::PlannedPeak peak = program::planned_peak(p);
    most = {std::max(most.device, peak.device), std::max(most.host, peak.host)};
  }
  outcome.memory = most.device;
  if (const std::string why = exceeded(most, on, machine.local_ranks); !why.empty()) {
    outcome.kind = Outcome::Kind::kOutOfMemory, outcome.why = fmt::format("{} {}", layout_of(s).name, why);
    return outcome;
  }
  const sim::DescribedCosts costs(on, factors);
  const sim::Forecast step(std::move(programs), costs);
  const sim::DescribedErrors of_figures(on, factors);
  const double spread = sim::spread_of(step.errors(sim::DocumentErrors(of_figures, costs, more, machine.cuda)));
  outcome.kind = Outcome::Kind::kStep;
  StepFigures& f = outcome.figures;
  f.step_s = step.seconds();
  std::tie(f.low_s, f.high_s) = sim::ends_of(f.step_s, spread);
  f.tokens = s.positions(), f.ranks = machine.ranks, f.layout = layout_of(s).name;
  f.mfu = arch::model_flops(arch, s.positions(), s.sequence, arch::FlopsConvention::kCausal).value / f.step_s /
          machine.ranks / peak_of_type(on.device, s.compute);
  f.step_j = step.energy(on, factors, spread).computers().value;
  return outcome;
}

}  // namespace molen::plan
