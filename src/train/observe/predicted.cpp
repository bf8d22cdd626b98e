#include "train/observe/predicted.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "math/gemm.h"
#include "measure/calibrate.h"
#include "mesh/mesh.h"
#include "program/ir/layout.h"
#include "sim/calibration.h"
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

Result<program::Comparison> Predicted::compare() {
  if (timelines_.empty()) return Failure{"no step ran"};
  if (const auto not_yet = sim::unsimulated(job_.setting))
    return Failure{fmt::format("{}: {}", not_yet->key, not_yet->why)};
  program::Timeline measured = median_step();
  tell_waiting(executor_.program(), executor_.ops(), measured, world_);
  if (world_.rank() != 0) return Failure{"rank 0 has it"};
  try {
    return beside(std::move(measured));
  } catch (const std::exception& error) {  // e.g. the calibration lacks an op, or its file was removed
    return Failure{error.what()};
  }
}

Result<program::Comparison> Predicted::beside(program::Timeline measured) const {
  const std::string& file = *job_.options.cluster;
  const auto calibration = sim::read_calibration(file);
  const std::string_view gemm = math::name_of(math::gemm_library());
  if (calibration.cpu == measure::cpu_model() && calibration.gemm != gemm && job_.setting.compute == DType::kF32)
    return Failure{
        fmt::format("{} was measured with products by {}, which are by {} here", file, calibration.gemm, gemm)};
  const auto costs = calibration.find(sim::conditions_of(job_.setting, job_.communicator));
  if (!costs) return Failure{fmt::format("{}: {}", file, costs.reason())};
  auto comparison =
      program::compare(executor_.ops(), sim::simulate(executor_.program(), executor_.ops(), costs.value()), measured);
  comparison.extrapolated = costs.value().extrapolated();
  return comparison;
}

void tell_waiting(const program::Program& p, const std::vector<program::Expanded>& ops, program::Timeline& timeline,
                  comm::Communicator& world) {
  std::vector<std::size_t> collectives;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (program::axis_of(ops[i].step->op)) collectives.push_back(i);
  const std::size_t n = collectives.size();
  const auto ranks = static_cast<std::size_t>(world.size());
  if (n == 0 || ranks == 1) return;
  std::vector<double> mine, all(n * ranks);
  for (const std::size_t i : collectives) mine.push_back(timeline.ops[i].seconds());
  const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(n));
  world.all_gather(mine.data(), all.data(), counts, DType::kF64);
  const mesh::Mesh grid(p.setting.mesh, world.size(), p.setting.order);
  for (std::size_t k = 0; k < n; ++k) {
    const auto axis = *program::axis_of(ops[collectives[k]].step->op);
    double least = mine[k];
    for (const int rank : grid.group(world.rank(), program::axes_of(axis)))
      least = std::min(least, all[static_cast<std::size_t>(rank) * n + k]);
    timeline.ops[collectives[k]].waited_s = mine[k] - least;
  }
}

}  // namespace molen::train
