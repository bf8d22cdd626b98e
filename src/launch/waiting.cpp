#include "launch/waiting.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "mesh/mesh.h"
#include "program/ir/layout.h"

namespace molen::launch {
namespace {

mesh::Mesh ranks_of(const program::Grid& grid) {
  return mesh::Mesh(grid.sizes, grid.ranks(), grid.order);
}

std::vector<std::size_t> communicating(const std::vector<program::Expanded>& ops) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (program::axis_of(ops[i].step->op)) found.push_back(i);
  return found;
}

// The axes along which the ranks of a stage differ that run an op together.
mesh::Axes within_stage(program::Axis axis) {
  return program::axes_of(axis).without(mesh::Axis::kPp);
}

// Replaces the seconds of the ops whose ranks differ along `axes` by the shortest of all these ranks.
void reduce_along(mesh::Axes axes, const mesh::Mesh& ranks, const std::vector<program::Axis>& axis_of_op,
                  std::vector<double>& seconds, comm::Communicator& world) {
  const auto group = world.split(ranks.group_number(world.rank(), axes), ranks.position(world.rank(), axes));
  std::vector<double> least;
  for (std::size_t k = 0; k < seconds.size(); ++k)
    if (within_stage(axis_of_op[k]) == axes) least.push_back(seconds[k]);
  if (least.empty()) return;  // on all ranks of the group, which run one program
  group->all_reduce(least.data(), static_cast<std::int64_t>(least.size()), DType::kF64, comm::Reduce::kMin);
  auto next = least.begin();
  for (std::size_t k = 0; k < seconds.size(); ++k)
    if (within_stage(axis_of_op[k]) == axes) seconds[k] = *next++;
}

// Returns how many values each stage has.
std::vector<std::int64_t> counts_of(std::size_t mine, comm::Communicator& pipeline) {
  const auto stages = static_cast<std::size_t>(pipeline.size());
  std::vector<std::int64_t> counts(stages, 0);
  const auto count = static_cast<std::int64_t>(mine);
  pipeline.all_gather(&count, counts.data(), std::vector<std::int64_t>(stages, 1), DType::kI64);
  return counts;
}

std::size_t sum_of(const std::vector<std::int64_t>& counts) {
  return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
}

ShortestDurations of_all_stages(const std::vector<double>& mine, comm::Communicator& pipeline) {
  const std::vector<std::int64_t> counts = counts_of(mine.size(), pipeline);
  std::vector<double> all(sum_of(counts));
  pipeline.all_gather(mine.data(), all.data(), counts, DType::kF64);
  ShortestDurations durations;
  for (auto from = all.begin(); const std::int64_t n : counts) {
    durations.emplace_back(from, from + n);
    from += n;
  }
  return durations;
}

}  // namespace

ShortestDurations shortest_durations(const program::Grid& grid, const std::vector<program::Expanded>& ops,
                                     const program::Timeline& timeline, comm::Communicator& world) {
  const mesh::Mesh ranks = ranks_of(grid);
  MOLEN_CHECK(ranks.world() == world.size(), "a grid of {} ranks in a world of {}", ranks.world(), world.size());
  std::vector<double> seconds;
  std::vector<program::Axis> axis_of_op;
  for (const std::size_t i : communicating(ops)) {
    seconds.push_back(timeline.ops[i].seconds());
    axis_of_op.push_back(*program::axis_of(ops[i].step->op));
  }
  // All ranks split the world by the same axes, also those without an op along them.
  std::vector<mesh::Axes> done;
  for (const program::Axis axis : program::kAllAxes) {
    const mesh::Axes axes = within_stage(axis);
    if (ranks.size(axes) == 1 || std::ranges::find(done, axes) != done.end()) continue;
    done.push_back(axes);
    reduce_along(axes, ranks, axis_of_op, seconds, world);
  }
  constexpr mesh::Axis kStages = mesh::Axis::kPp;
  if (ranks.size(kStages) == 1) return {std::move(seconds)};
  const int number = ranks.group_number(world.rank(), kStages);
  const auto pipeline = world.split(number, ranks.position(world.rank(), kStages));
  return number == 0 ? of_all_stages(seconds, *pipeline) : ShortestDurations();
}

void set_waiting(const program::Stages& stages, int rank, const ShortestDurations& durations,
                 program::Timeline& timeline) {
  MOLEN_CHECK(durations.size() == stages.size(), "durations of {} stages of {}", durations.size(), stages.size());
  std::vector<std::vector<std::size_t>> ops;  // by stage
  for (std::size_t s = 0; s < stages.size(); ++s) ops.push_back(communicating(stages.ops(s)));
  const auto stage = static_cast<std::size_t>(ranks_of(stages.program(0).grid).coordinates(rank)[mesh::Axis::kPp]);
  for (std::size_t k = 0; k < ops[stage].size(); ++k) {
    const std::size_t op = ops[stage][k];
    double least = durations[stage].at(k);
    if (const int meeting = stages.meeting_of(stage, op); meeting >= 0)
      for (const auto& member : stages.members(meeting)) {
        const auto there = static_cast<std::size_t>(member.stage);
        const auto at = std::ranges::lower_bound(ops[there], member.op) - ops[there].begin();
        least = std::min(least, durations[there].at(static_cast<std::size_t>(at)));
      }
    timeline.ops[op].waited_s = timeline.ops[op].seconds() - least;
  }
}

namespace {

// A number for the stages that take part in an op, equal for equal stages; -1 for an op within a stage. They are the
// two ends of a message, the first and the last stage, or all stages.
std::int64_t group_of(const program::Program& program, const program::Op& op) {
  const std::vector<int> stages = program::stages_of(program, op);
  if (stages.empty()) return -1;
  const std::int64_t all = program.grid.sizes[mesh::Axis::kPp];
  return (stages.front() * all + stages.back()) * 2 + (stages.size() > 2 ? 1 : 0);
}

}  // namespace

// As in program::Stages, the n-th op that a group of stages runs together on one stage meets the n-th on another.
StageWaiting::StageWaiting(const program::Program& program, const std::vector<program::Expanded>& ops,
                           comm::Communicator& world) {
  const mesh::Mesh ranks = ranks_of(program.grid);
  pipeline_ =
      world.split(ranks.group_number(world.rank(), mesh::Axis::kPp), ranks.position(world.rank(), mesh::Axis::kPp));
  std::vector<std::int64_t> groups;  // of this stage's exchanges
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (const std::int64_t group = group_of(program, ops[i].step->op); group >= 0) {
      exchanges_.push_back({i, {}});
      groups.push_back(group);
    }
  counts_ = counts_of(groups.size(), *pipeline_);
  std::vector<std::int64_t> all(sum_of(counts_));
  pipeline_->all_gather(groups.data(), all.data(), counts_, DType::kI64);
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> meetings;  // by group and number within it
  std::size_t at = 0;
  for (const std::int64_t count : counts_) {
    std::map<std::int64_t, std::int64_t> seen;
    for (const std::size_t end = at + static_cast<std::size_t>(count); at < end; ++at)
      meetings[{all[at], seen[all[at]]++}].push_back(at);
  }
  std::map<std::int64_t, std::int64_t> seen;
  for (std::size_t k = 0; k < exchanges_.size(); ++k) {
    exchanges_[k].members = meetings.at({groups[k], seen[groups[k]]++});
    const std::size_t stages = program::stages_of(program, ops[exchanges_[k].op].step->op).size();
    MOLEN_CHECK(exchanges_[k].members.size() == stages, "op {} meets ops of {} stages, not of {}", exchanges_[k].op,
                exchanges_[k].members.size(), stages);
  }
}

void StageWaiting::set(program::Timeline& timeline) const {
  std::vector<double> mine, all(sum_of(counts_));
  for (const Exchange& e : exchanges_) mine.push_back(timeline.ops.at(e.op).seconds());
  pipeline_->all_gather(mine.data(), all.data(), counts_, DType::kF64);
  for (const Exchange& e : exchanges_) {
    double least = timeline.ops[e.op].seconds();
    for (const std::size_t member : e.members) least = std::min(least, all[member]);
    timeline.ops[e.op].waited_s = timeline.ops[e.op].seconds() - least;
  }
}

}  // namespace molen::launch
