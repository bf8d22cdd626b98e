#include "plan/trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "arch/parts.h"
#include "base/error.h"
#include "base/file.h"
#include "plan/layouts.h"
#include "plan/memory_overheads.h"
#include "program/memory/memory.h"

namespace molen::plan {
namespace {
double peak_of_type(const cluster::Device& device, DType compute) {
  return compute == DType::kF32 || compute == DType::kF64 ? device.peak_fp32.value : device.peak_16bit.value;
}

Bytes whole_bytes(double value) {
  return Bytes(static_cast<std::int64_t>(value));
}

// Returns why the plan of the fullest rank exceeds `room` of a device, or the memory of the node's processors, of which
// each of `local_ranks` ranks has an equal part; empty when it fits.
std::string exceeded(const program::PlannedPeak& need, Bytes room, const cluster::Cluster& on, int local_ranks) {
  const Bytes host = whole_bytes(on.node.host_memory.value / local_ranks);
  if (need.device > room)
    return fmt::format("needs {} of a device of which a plan may take {}", human(need.device), human(room));
  if (need.host > host)
    return fmt::format("needs {} of the host's memory of which a rank has {}", human(need.host), human(host));
  return "";
}

// The same of the memory of a framework, which counts the driver's context and the buffers of libraries.
std::string exceeded(const FrameworkMemory& need, const cluster::Cluster& on) {
  return need.fits ? ""
                   : fmt::format("needs {} of a device of {}", human(whole_bytes(need.device)),
                                 human(memory_of_device(on.device)));
}

void require_described_device(const config::Config& config, const cluster::Cluster& on) {
  if (config.device.kind == "cpu")
    throw UsageError("{}: {} describes {} devices; device.kind = \"auto\" takes them", config.where("device.kind"),
                     on.name, on.device.name);
}

// Returns the device memory that the plan of the fullest rank takes.
Bytes largest_peak(const sim::Forecast& step) {
  Bytes most;
  for (std::size_t i = 0; i < step.size(); ++i) most = std::max(most, program::planned_peak(step.program(i)).device);
  return most;
}

// Makes a prediction the step of an outcome. `device`: whose peak the MFU is a share of, if it is known.
void set_step(Outcome& outcome, const StepPrediction& prediction, int ranks, const cluster::Device* device = nullptr) {
  const program::Setting& s = prediction.setting;
  outcome.kind = Outcome::Kind::kStep;
  StepFigures& f = outcome.figures;
  f.step_s = prediction.step.seconds();
  std::tie(f.low_s, f.high_s) = prediction.interval();
  f.tokens = s.positions(), f.ranks = ranks, f.layout = layout_of(s).name, f.extrapolated = prediction.extrapolated;
  if (device)
    f.mfu = arch::model_flops(prediction.arch, s.positions(), s.sequence, arch::FlopsConvention::kCausal).value /
            f.step_s / ranks / peak_of_type(*device, s.compute);
  if (prediction.energy) f.step_j = prediction.energy->computers().value;
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
  machine.cuda = machine.described = true;
  machine.threads = 1;
  return machine;
}

PredictedOn predicted_on(const std::string& cluster, const std::string& communicator) {
  if (sim::is_calibration(cluster)) return {cluster, read_file(cluster), communicator, sim::read_calibration(cluster)};
  if (!communicator.empty())
    throw UsageError("--communicator: {} is a description, not a calibration; its devices use their own", cluster);
  cluster::Cluster on = cluster::find(cluster);
  on.require_programs();
  const std::string name = on.name, text(on.origin == "shipped" ? cluster::shipped_text(name) : read_file(on.origin));
  return {name, text, "", std::move(on)};
}

void require_device(const config::Config& config, const PredictedOn& on) {
  if (const cluster::Cluster* described = on.described()) require_described_device(config, *described);
  if (on.calibrated()) require_calibrated_device(config);
}

Outcome predict(const config::Config& config, const cluster::Cluster& on, const Machine& machine) {
  on.require_programs();
  require_described_device(config, on);
  resolve_architecture(config);  // what it throws is no outcome
  Outcome outcome;
  StepPrograms programs;
  try {
    programs = step_programs(config, machine);
  } catch (const UsageError& error) {
    outcome.why = error.what();
    return outcome;
  }
  program::PlannedPeak most;
  for (const auto& p : programs.stages) {
    const program::PlannedPeak peak = program::planned_peak(p);
    most = {std::max(most.device, peak.device), std::max(most.host, peak.host)};
  }
  const auto framework = framework_memory(programs, on);
  const Bytes device = memory_of_device(on.device);
  if (framework) most.device = whole_bytes(framework->device);
  outcome.memory = most.device;
  outcome.room = framework ? device : memory_overheads(programs.stages.front()).left_of(device);
  const std::string why = framework ? exceeded(*framework, on) : exceeded(most, *outcome.room, on, machine.local_ranks);
  if (!why.empty()) {
    outcome.kind = Outcome::Kind::kOutOfMemory;
    outcome.why = fmt::format("{} {}", layout_of(programs.setting).name, why);
    return outcome;
  }
  set_step(outcome, predict_step(std::move(programs), on), machine.ranks, &on.device);
  return outcome;
}

Outcome predict(const config::Config& config, const PredictedOn& on, const Machine& machine) {
  if (const cluster::Cluster* described = on.described()) return predict(config, *described, machine);
  require_calibrated_device(config);
  resolve_architecture(config);
  Outcome outcome;
  try {
    auto prediction = predict_step(config, machine, OnCalibration{*on.calibrated(), on.name, on.communicator});
    if (prediction) {
      outcome.memory = largest_peak(prediction.value().step);
      set_step(outcome, prediction.value(), machine.ranks);
    } else {
      outcome.kind = Outcome::Kind::kNotCalibrated, outcome.why = prediction.reason();
    }
  } catch (const UsageError& error) {
    outcome.why = error.what();
  }
  return outcome;
}

}  // namespace molen::plan
