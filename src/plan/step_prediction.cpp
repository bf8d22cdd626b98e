#include "plan/step_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "plan/documents.h"
#include "plan/static_check.h"
#include "program/build/build.h"
#include "sim/attended.h"
#include "sim/described_costs.h"
#include "sim/described_errors.h"
#include "sim/not_measured.h"

namespace molen::plan {
namespace {

StepPrediction priced(StepPrograms programs, std::shared_ptr<const sim::Costs> costs,
                      std::shared_ptr<const sim::OpErrors> of_costs, const StepDetail& detail) {
  sim::Forecast step(std::move(programs.stages), *costs, detail.every_op);
  const double more = programs.attended ? most_over_mean(*programs.attended, programs.setting) : 1.0;
  auto of_ops = std::make_shared<sim::DocumentErrors>(*of_costs, *costs, more, programs.machine.cuda);
  auto errors = step.errors(*of_ops);
  StepPrediction prediction{.config = std::move(programs.config),
                            .arch = std::move(programs.arch),
                            .setting = std::move(programs.setting),
                            .costs = std::move(costs),
                            .of_costs = std::move(of_costs),
                            .of_ops = std::move(of_ops),
                            .step = std::move(step),
                            .errors = std::move(errors)};
  if (programs.less_and_more.size() == 2) {
    const auto seconds = [&](std::size_t i) {
      return sim::Forecast(std::move(programs.less_and_more[i]), *prediction.costs).seconds();
    };
    prediction.attended = AttendedStep{*programs.attended, seconds(0), seconds(1)};
  }
  return prediction;
}

// Predicts a step with the precision that the configuration and the machine give.
Result<StepPrediction> predict_closed(config::Config config, const Machine& machine, const OnCalibration& on,
                                      const StepDetail& detail) {
  StepPrograms programs = step_programs(std::move(config), machine, detail);
  const std::string communicator = !on.communicator.empty()              ? on.communicator
                                   : machine.ranks == 1                  ? "self"
                                   : machine.ranks > machine.local_ranks ? "mpi"
                                                                         : "threads";
  const sim::Conditions wanted = sim::conditions_of(programs.setting, communicator);
  const auto found = on.calibration.find(wanted);
  if (!found) return Failure{found.reason()};
  const auto costs = std::make_shared<sim::MeasuredCosts>(found.value());
  try {
    StepPrediction prediction =
        priced(std::move(programs), costs, std::make_shared<sim::MeasuredErrors>(*costs), detail);
    std::vector<const program::Program*> stages;
    for (std::size_t s = 0; s < prediction.step.size(); ++s) stages.push_back(&prediction.step.program(s));
    prediction.extrapolated = costs->extrapolated(stages);
    return Result<StepPrediction>(std::move(prediction));
  } catch (const sim::NotMeasured& lack) {
    const std::string why = lack.what();  // where kernels must be chosen, it says how to measure them
    if (why.ends_with("measures it")) return Failure{why};
    return Failure{fmt::format("{}; {}", why, sim::call_that_measures(wanted))};
  }
}

// Returns the fastest of the calibrated types that "auto" may come to; a failure, with no reason, if none of them can
// be predicted. Throws UsageError if the configuration is refused with each of them.
Result<StepPrediction> fastest_type(const config::Config& config, const Machine& machine, const OnCalibration& on,
                                    const StepDetail& detail) {
  std::optional<StepPrediction> fastest;
  std::string refused;
  const auto& all = on.calibration.entries;
  for (const char* name : {"fp32", "bf16"}) {
    if (std::none_of(all.begin(), all.end(), [&](const auto& e) { return e.conditions.compute == name; })) continue;
    config::Config fixed = config;
    config::assign(fixed, "precision.compute", std::string(name),
                   {config::Origin::Kind::kOther,
                    fmt::format("predicted to be the fastest of what {} holds; \"auto\" measures", on.name)});
    try {
      auto prediction = predict_closed(std::move(fixed), machine, on, detail);
      if (prediction && (!fastest || prediction.value().step.seconds() < fastest->step.seconds()))
        fastest.emplace(std::move(prediction).value());
    } catch (const UsageError& error) {  // another type may still be valid
      refused = error.what();
    }
  }
  if (fastest) return std::move(*fastest);
  if (!refused.empty()) throw UsageError("{}", refused);
  return Failure{""};
}

}  // namespace

StepPrograms step_programs(config::Config config, const Machine& machine, const StepDetail& detail) {
  StepPrograms p;
  p.arch = resolve_architecture(config), p.machine = machine;
  p.setting = resolve_setting(config, p.arch, machine);

  const auto schedule = read_schedule(config);
  p.stages = program::build_stages(p.arch, p.setting, schedule ? &*schedule : nullptr, false, detail.threads);
  if (detail.verified) require_sound(p.stages, detail.threads);
  p.framework = framework_of(config, p.arch, p.setting);
  if (p.framework) set_streams(*p.framework, p.stages);
  if (p.setting.document_mask) {
    p.attended = attended_of(config, p.arch);
    const auto [low, high] = data::interval_of(*p.attended, p.setting.global_batch / p.setting.data_ranks());
    for (const double share : {low, high}) {
      if (!detail.documents) break;
      p.less_and_more.push_back(p.stages);
      sim::attend_within_documents(p.less_and_more.back(), share, machine.cuda);
    }
    sim::attend_within_documents(p.stages, p.attended->mean, machine.cuda);
  }
  p.config = std::move(config);
  return p;
}

void require_calibrated_device(const config::Config& config) {
  if (config.device.kind == "cuda")
    throw UsageError(
        "{}: `molen calibrate` measures processors; --cluster with the name of a description simulates cuda devices",
        config.where("device.kind"));
}

std::optional<FrameworkMemory> framework_memory(const StepPrograms& programs, const cluster::Cluster& on) {
  if (!programs.framework) return std::nullopt;
  return memory_of(*programs.framework, programs.stages, on.device.memory.value);
}

StepPrediction predict_step(StepPrograms programs, const cluster::Cluster& on, const StepDetail& detail) {
  const sim::Factors& factors = sim::Factors::shipped();
  const sim::Framework framework = programs.framework ? costs_of(*programs.framework) : sim::Framework{};
  std::vector<FrameworkMemory> memory;
  if (programs.framework)
    for (const program::Program& stage : programs.stages)
      memory.push_back(memory_of(*programs.framework, {stage}, on.device.memory.value));
  StepPrediction prediction = priced(std::move(programs), std::make_shared<sim::DescribedCosts>(on, factors, framework),
                                     std::make_shared<sim::DescribedErrors>(on, factors, framework), detail);
  prediction.framework_memory = std::move(memory);
  prediction.energy = prediction.step.energy(on, factors, prediction.spread());
  return prediction;
}

Result<StepPrediction> predict_step(const config::Config& config, Machine machine, const OnCalibration& on,
                                    const StepDetail& detail) {
  require_calibrated_device(config);
  require_molen(config, fmt::format("{} has measured", on.name));
  machine.cuda = machine.described = false;
  const bool open = config.precision.compute == "auto";
  std::string lacks;
  if (machine.measure_precision || !open) {
    auto prediction = predict_closed(config, machine, on, detail);
    if (prediction) return prediction;
    lacks = prediction.reason();
  }
  if (open) {
    machine.measure_precision = nullptr;
    auto prediction = fastest_type(config, machine, on, detail);
    if (prediction) return prediction;
  }
  return lacks.empty() ? predict_closed(config, machine, on, detail) : Result<StepPrediction>(Failure{lacks});
}

}  // namespace molen::plan
