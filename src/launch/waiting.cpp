#include "launch/waiting.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <compare>
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

// The stages that take part in an op.
struct StageGroup {
  std::int64_t first = 0, last = 0;
  bool all = false;  // all stages between the two take part too
  auto operator<=>(const StageGroup&) const = default;

  std::vector<std::size_t> stages() const {
    std::vector<std::size_t> list;
    for (std::int64_t s = first; s <= last; ++s)
      if (all || s == first || s == last) list.push_back(static_cast<std::size_t>(s));
    return list;
  }
};

// Groups as numbers, which stages can exchange: equal for equal stages.
std::int64_t number_of(const StageGroup& group, std::int64_t stages) {
  return (group.first * stages + group.last) * 2 + (group.all ? 1 : 0);
}
StageGroup group_of(std::int64_t number, std::int64_t stages) {
  return {number / 2 / stages, number / 2 % stages, number % 2 != 0};
}

// By stage: the places of a group's ops among the ops of all stages.
using Places = std::vector<std::vector<std::size_t>>;

void require_equal(const std::vector<std::size_t>& stages, const Places& places) {
  std::size_t most = 0;
  for (const std::size_t s : stages) most = std::max(most, places[s].size());
  for (const std::size_t s : stages)
    MOLEN_CHECK(places[s].size() == most, "stage {} has {} of the {} ops that stages {} run together", s,
                places[s].size(), most, fmt::join(stages, ", "));
}

}  // namespace

// As in program::Stages, the n-th op that a group of stages runs together on one stage meets the n-th on another. Every
// rank has the places of all stages, so that all ranks find a fault, and none waits for one that has stopped.
StageWaiting::StageWaiting(const program::Program& program, const std::vector<program::Expanded>& ops,
                           comm::Communicator& world) {
  const mesh::Mesh ranks = ranks_of(program.grid);
  const int rank = world.rank();
  pipeline_ = world.split(ranks.group_number(rank, mesh::Axis::kPp), ranks.position(rank, mesh::Axis::kPp));
  const std::int64_t stages = pipeline_->size();
  std::vector<std::int64_t> groups;  // of this stage's exchanges
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (const auto with = program::stages_of(program, ops[i].step->op); !with.empty()) {
      exchanges_.push_back({i, {}});
      groups.push_back(number_of({with.front(), with.back(), with.size() > 2}, stages));
    }
  counts_ = counts_of(groups.size(), *pipeline_);
  std::vector<std::int64_t> all(sum_of(counts_));
  pipeline_->all_gather(groups.data(), all.data(), counts_, DType::kI64);
  std::map<StageGroup, Places> places;
  std::size_t at = 0;
  for (std::size_t s = 0; s < counts_.size(); ++s)
    for (const std::size_t end = at + static_cast<std::size_t>(counts_[s]); at < end; ++at) {
      Places& of_group = places[group_of(all[at], stages)];
      of_group.resize(counts_.size());
      of_group[s].push_back(at);
    }
  for (const auto& [group, of_stage] : places) require_equal(group.stages(), of_stage);
  std::map<std::int64_t, std::size_t> seen;
  for (std::size_t k = 0; k < exchanges_.size(); ++k) {
    const StageGroup group = group_of(groups[k], stages);
    const std::size_t n = seen[groups[k]]++;
    for (const std::size_t s : group.stages()) exchanges_[k].members.push_back(places.at(group)[s].at(n));
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
