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
  program::Timeline measured = median_step();
  const Durations durations = gather_durations(executor_.ops(), measured, world_);
  if (world_.rank() != 0) return Failure{"rank 0 has it"};
  try {
    const program::Stages stages(job_.programs());
    set_waiting(stages, world_.rank(), durations, measured);
    return beside(stages, measured);
  } catch (const std::exception& error) {  // e.g. the calibration lacks an op, or its file was removed
    return Failure{error.what()};
  }
}

Result<program::Comparison> Predicted::beside(const program::Stages& stages, const program::Timeline& measured) const {
  const std::string& file = *job_.options.cluster;
  const auto calibration = sim::read_calibration(file);
  const std::string_view gemm = math::name_of(math::gemm_library());
  if (calibration.cpu == measure::cpu_model() && calibration.gemm != gemm && job_.setting.compute == DType::kF32)
    return Failure{
        fmt::format("{} was measured with products by {}, which are by {} here", file, calibration.gemm, gemm)};
  const auto costs = calibration.find(sim::conditions_of(job_.setting, job_.communicator));
  if (!costs) return Failure{fmt::format("{}: {}", file, costs.reason())};
  auto comparison = program::compare(stages.ops(0), sim::simulate(stages, costs.value()).front(), measured);
  comparison.extrapolated = costs.value().extrapolated();
  return comparison;
}

namespace {

std::vector<std::size_t> communicating(const std::vector<program::Expanded>& ops) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (program::axis_of(ops[i].step->op)) found.push_back(i);
  return found;
}

}  // namespace

Durations gather_durations(const std::vector<program::Expanded>& ops, const program::Timeline& timeline,
                           comm::Communicator& world) {
  std::vector<double> mine;
  for (const std::size_t i : communicating(ops)) mine.push_back(timeline.ops[i].seconds());
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<std::int64_t> counts(ranks, 0);
  const auto count = static_cast<std::int64_t>(mine.size());
  world.all_gather(&count, counts.data(), std::vector<std::int64_t>(ranks, 1), DType::kI64);
  std::vector<double> all(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})));
  world.all_gather(mine.data(), all.data(), counts, DType::kF64);
  Durations durations;
  for (auto from = all.begin(); const std::int64_t n : counts) {
    durations.emplace_back(from, from + n);
    from += n;
  }
  return durations;
}

void set_waiting(const program::Stages& stages, int rank, const Durations& durations, program::Timeline& timeline) {
  const program::Grid& layout = stages.program(0).grid;
  const mesh::Mesh grid(layout.sizes, layout.ranks(), layout.order);
  const mesh::PerAxis here = grid.coordinates(rank);
  std::vector<std::vector<std::size_t>> ops;  // by stage
  for (std::size_t s = 0; s < stages.size(); ++s) ops.push_back(communicating(stages.ops(s)));
  const auto stage = static_cast<std::size_t>(here[mesh::Axis::kPp]);
  for (std::size_t k = 0; k < ops[stage].size(); ++k) {
    const std::size_t op = ops[stage][k];
    double least = timeline.ops[op].seconds();
    const auto compare_with = [&](int other, std::size_t at) {
      least = std::min(least, durations.at(static_cast<std::size_t>(other)).at(at));
    };
    if (const int meeting = stages.meeting_of(stage, op); meeting >= 0) {
      for (const auto& member : stages.members(meeting)) {
        const auto& of_stage = ops[static_cast<std::size_t>(member.stage)];
        mesh::PerAxis there = here;
        there[mesh::Axis::kPp] = member.stage;
        compare_with(grid.rank_of(there),
                     static_cast<std::size_t>(std::ranges::lower_bound(of_stage, member.op) - of_stage.begin()));
      }
    } else {
      const auto axis = *program::axis_of(stages.ops(stage)[op].step->op);
      for (const int other : grid.group(rank, program::axes_of(axis))) compare_with(other, k);
    }
    timeline.ops[op].waited_s = timeline.ops[op].seconds() - least;
  }
}

}  // namespace molen::train
