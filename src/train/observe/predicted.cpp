#include "train/observe/predicted.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "base/error.h"
#include "base/processor.h"
#include "cluster/cluster.h"
#include "launch/throw_on_all_ranks.h"
#include "math/gemm.h"
#include "mesh/mesh.h"
#include "plan/documents.h"
#include "sim/attended.h"
#include "sim/calibration.h"
#include "sim/described_costs.h"
#include "sim/described_energy.h"
#include "sim/described_errors.h"
#include "sim/intervals.h"
#include "sim/simulate.h"

namespace molen::train {
void Predicted::add(const program::Timeline& timeline) {
  timelines_.push_back(timeline);
  if (timelines_.size() > kKept) timelines_.erase(timelines_.begin());
}

// Returns, on every rank, the timeline of the step that has rank 0's median duration.
program::Timeline Predicted::median_step() {
  std::vector<std::size_t> order(timelines_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return timelines_[a].total_s < timelines_[b].total_s; });
  auto middle = static_cast<std::int64_t>(order[order.size() / 2]);
  world_.broadcast(&middle, 1, DType::kI64, 0);
  return timelines_.at(static_cast<std::size_t>(middle));
}

Result<Prediction> Predicted::compare() {
  if (timelines_.empty()) return Failure{"no step ran"};
  program::Timeline measured = median_step();
  const program::Grid& grid = executor_.program().grid;
  const launch::ShortestDurations durations = launch::shortest_durations(grid, executor_.ops(), measured, world_);
  const mesh::Mesh ranks(grid.sizes, grid.ranks(), grid.order);
  const auto first_of = [&](int stage) {
    mesh::PerAxis at{};
    at[mesh::Axis::kPp] = stage;
    return ranks.rank_of(at);
  };
  const int own_stage = executor_.coordinates()[mesh::Axis::kPp];
  Json own;
  if (world_.rank() == first_of(own_stage)) own = first_rank_of_stage(std::move(measured), durations);
  Prediction prediction;
  for (int stage = 0; stage < executor_.program().setting.stages(); ++stage) {
    const Json of = Json::parse(launch::broadcast_text(own.dump(), world_, first_of(stage)));
    if (of.contains("failure")) {
      if (stage == 0) return Failure{of.at("failure").get<std::string>()};
      prediction.stages.emplace_back(Failure{of.at("failure").get<std::string>()});
      continue;
    }
    prediction.stages.emplace_back(program::comparison_from_json(of));
    if (stage == 0) {
      prediction.extrapolated = of.at("extrapolated").get<std::string>();
      if (const Json& joules = of.at("step_j"); !joules.is_null())
        prediction.devices_j = joules.at(0).get<double>(), prediction.step_j = joules.at(1).get<double>();
    }
  }
  return prediction;
}

program::Stages Predicted::stages_as_trained(double& more) const {
  std::vector<program::Program> programs = job_.programs();
  if (job_.setting.document_mask) {
    const data::Attended attended = plan::attended_of(data_);
    sim::attend_within_documents(programs, attended.mean, job_.machine.cuda);
    more = plan::most_over_mean(attended, job_.setting);
  }
  return program::Stages(std::move(programs));
}

Result<Predicted::StepJoules> Predicted::joules_of_step() const {
  try {
    const std::string& file = *job_.options.cluster;
    if (sim::is_calibration(file)) return Failure{file + " is a calibration, which knows no joules"};
    double more = 1.0;
    const program::Stages stages = stages_as_trained(more);
    const auto on = cluster::find(file);
    const sim::Factors& factors = sim::Factors::shipped();
    const auto timelines = sim::simulate(stages, sim::DescribedCosts(on, factors));
    const auto energy = sim::energy_of(stages, timelines, on, factors, 0.0);
    return StepJoules{energy.devices.value, energy.computers().value};
  } catch (const std::exception& error) {
    return Failure{error.what()};
  }
}

// Returns the comparison as JSON, or {"failure": why}: an exception on one rank alone would leave the others waiting.
Json Predicted::first_rank_of_stage(program::Timeline measured, const launch::ShortestDurations& durations) const {
  try {
    double more = 1.0;  // of attention's work
    const program::Stages stages = stages_as_trained(more);
    launch::set_waiting(stages, world_.rank(), durations, measured);
    return simulated(stages, static_cast<std::size_t>(executor_.coordinates()[mesh::Axis::kPp]), measured, more);
  } catch (const std::exception& error) {  // e.g. the calibration lacks an op, or its file was removed
    return {{"failure", error.what()}};
  }
}

Json Predicted::simulated(const program::Stages& stages, std::size_t stage, const program::Timeline& measured,
                          double more) const {
  const std::string& file = *job_.options.cluster;
  const auto beside = [&](const std::vector<program::Timeline>& timelines, const sim::OpErrors& errors) {
    program::Comparison comparison = program::compare(stages.ops(stage), timelines[stage], measured);
    sim::set_spreads(comparison, stages, stage, timelines, errors);
    return program::to_json(comparison);
  };
  if (!sim::is_calibration(file)) {
    const auto on = cluster::find(file);
    const sim::Factors& factors = sim::Factors::shipped();
    const sim::DescribedCosts costs(on, factors);
    const sim::DescribedErrors of_figures(on, factors);
    const auto timelines = sim::simulate(stages, costs);
    Json json = beside(timelines, sim::DocumentErrors(of_figures, costs, more, job_.machine.cuda));
    const double spread = json.at("step_s").at("predicted_spread").get<double>();
    const auto energy = sim::energy_of(stages, timelines, on, factors, spread);
    json["extrapolated"] = "", json["step_j"] = {energy.devices.value, energy.computers().value};
    return json;
  }
  const auto calibration = sim::read_calibration(file);
  const std::string_view gemm = math::name_of(math::gemm_library());
  if (calibration.cpu == cpu_model() && calibration.gemm != gemm && job_.setting.compute == DType::kF32)
    throw UsageError("{} was measured with products by {}, which are by {} here", file, calibration.gemm, gemm);
  const auto costs = calibration.find(sim::conditions_of(job_.setting, job_.communicator));
  if (!costs) throw UsageError("{}: {}", file, costs.reason());
  const sim::MeasuredErrors of_fits(costs.value());
  Json json = beside(sim::simulate(stages, costs.value()),
                     sim::DocumentErrors(of_fits, costs.value(), more, job_.machine.cuda));
  std::vector<const program::Program*> programs;
  for (std::size_t s = 0; s < stages.size(); ++s) programs.push_back(&stages.program(s));
  json["extrapolated"] = costs.value().extrapolated(programs), json["step_j"] = nullptr;
  return json;
}

}  // namespace molen::train
