#include "train/observe/predicted.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "base/error.h"
#include "cluster/cluster.h"
#include "launch/throw_on_all_ranks.h"
#include "math/gemm.h"
#include "measure/calibrate.h"
#include "mesh/mesh.h"
#include "plan/documents.h"
#include "sim/attended.h"
#include "sim/calibration.h"
#include "sim/described_costs.h"
#include "sim/described_energy.h"
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

// Returns the comparison as JSON, or {"failure": why}: an exception on one rank alone would leave the others waiting.
Json Predicted::first_rank_of_stage(program::Timeline measured, const launch::ShortestDurations& durations) const {
  try {
    std::vector<program::Program> programs = job_.programs();
    if (job_.setting.document_mask)
      sim::attend_within_documents(programs, plan::attended_of(data_).mean, job_.machine.cuda);
    const program::Stages stages(std::move(programs));

    launch::set_waiting(stages, world_.rank(), durations, measured);
    return simulated(stages, static_cast<std::size_t>(executor_.coordinates()[mesh::Axis::kPp]), measured);
  } catch (const std::exception& error) {  // e.g. the calibration lacks an op, or its file was removed
    return {{"failure", error.what()}};
  }
}

Json Predicted::simulated(const program::Stages& stages, std::size_t stage, const program::Timeline& measured) const {
  const std::string& file = *job_.options.cluster;
  const auto beside = [&](const std::vector<program::Timeline>& timelines, const std::string& extrapolated,
                          const Json& step_j) {
    Json json = program::to_json(program::compare(stages.ops(stage), timelines[stage], measured));
    json["extrapolated"] = extrapolated, json["step_j"] = step_j;
    return json;
  };
  if (!sim::is_calibration(file)) {
    const auto on = cluster::find(file);
    const sim::Factors& factors = sim::Factors::shipped();
    const auto timelines = sim::simulate(stages, sim::DescribedCosts(on, factors));
    const auto energy = sim::energy_of(stages, timelines, on, factors, factors.spread());
    return beside(timelines, "", {energy.devices.value, energy.computers().value});
  }
  const auto calibration = sim::read_calibration(file);
  const std::string_view gemm = math::name_of(math::gemm_library());
  if (calibration.cpu == measure::cpu_model() && calibration.gemm != gemm && job_.setting.compute == DType::kF32)
    throw UsageError("{} was measured with products by {}, which are by {} here", file, calibration.gemm, gemm);
  const auto costs = calibration.find(sim::conditions_of(job_.setting, job_.communicator));
  if (!costs) throw UsageError("{}: {}", file, costs.reason());
  return beside(sim::simulate(stages, costs.value()), costs.value().extrapolated(), nullptr);
}

}  // namespace molen::train
