// Compares how long ranks wait in made-up timelines with the definition, which has the durations of all ranks. The
// tests of this module use it, and those under a launcher.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "launch/waiting.h"
#include "mesh/mesh.h"
#include "program/build/build.h"
#include "program/ir/layout.h"

namespace molen::launch {

// The made-up seconds of an op on a rank.
inline double made_up_seconds(int rank, std::size_t op) {
  return 1.0 + uniform_at(17, 100003 * static_cast<std::uint64_t>(rank) + op);
}

// Returns how long a rank waits in an op, by the durations of every rank that takes part.
inline double waits_by_definition(const program::Stages& stages, const mesh::Mesh& ranks, int rank, std::size_t op) {
  const auto stage_of = [&](int r) { return static_cast<std::size_t>(ranks.coordinates(r)[mesh::Axis::kPp]); };
  const std::size_t stage = stage_of(rank);
  const auto axis = program::axis_of(stages.ops(stage)[op].step->op);
  if (!axis) return 0.0;
  std::vector<program::Stages::Member> members{{static_cast<int>(stage), op}};
  if (const int meeting = stages.meeting_of(stage, op); meeting >= 0) members = stages.members(meeting);
  double least = made_up_seconds(rank, op);
  for (const int other : ranks.group(rank, program::axes_of(*axis)))
    for (const auto& member : members)
      if (stage_of(other) == static_cast<std::size_t>(member.stage))
        least = std::min(least, made_up_seconds(other, member.op));
  return made_up_seconds(rank, op) - least;
}

// Every rank of `world` runs this. Returns how many ops of this rank waited for others.
inline int expect_waiting_by_definition(const program::Setting& setting, comm::Communicator& world) {
  auto a = arch::preset("llama-tiny");
  a.layers = 4;
  const program::Stages stages(program::build_stages(a, setting));
  const auto& grid = stages.program(0).grid;
  const mesh::Mesh ranks(grid.sizes, grid.ranks(), grid.order);
  const auto stage = static_cast<std::size_t>(ranks.coordinates(world.rank())[mesh::Axis::kPp]);
  program::Timeline t;
  for (std::size_t i = 0; i < stages.ops(stage).size(); ++i)
    t.ops.push_back({0.5, 0.5 + made_up_seconds(world.rank(), i), 0.0});
  const ShortestDurations durations = shortest_durations(grid, stages.ops(stage), t, world);
  StageWaiting(stages.program(stage), stages.ops(stage), world).set(t);
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    const bool meets = stages.meeting_of(stage, i) >= 0;
    EXPECT_NEAR(t.ops[i].waited_s, meets ? waits_by_definition(stages, ranks, world.rank(), i) : 0.0, 1e-12) << i;
    t.ops[i].waited_s = 0.0;
  }
  // Of a pipeline, only rank 0 and the ranks of the other stages at its place know all stages.
  const bool knows = stages.size() == 1 || ranks.group_number(world.rank(), mesh::Axis::kPp) == 0;
  EXPECT_EQ(durations.size(), knows ? stages.size() : 0U);
  if (!knows) return 0;
  set_waiting(stages, world.rank(), durations, t);
  int waiting = 0;
  for (std::size_t i = 0; i < t.ops.size(); ++i) {
    EXPECT_NEAR(t.ops[i].waited_s, waits_by_definition(stages, ranks, world.rank(), i), 1e-12) << i;
    waiting += t.ops[i].waited_s > 1e-6;
  }
  return waiting;
}

// Layouts of so many ranks: along each axis alone, and along two.
inline std::vector<program::Setting> layouts_that_wait(int ranks) {
  std::vector<program::Setting> all;
  const auto add = [&](std::initializer_list<std::pair<mesh::Axis, int>> sizes, int zero = 0) {
    program::Setting s;
    for (const auto& [axis, size] : sizes) s.mesh[axis] = size;
    s.zero = zero, s.micro_batch = 2, s.sequence = 32;
    s.global_batch = 4 * s.data_ranks();
    all.push_back(s);
  };
  using mesh::Axis;
  add({{Axis::kDpShard, ranks}}, ranks > 1 ? 2 : 0);
  if (ranks % 2 == 0) {
    add({{Axis::kPp, 2}, {Axis::kDpShard, ranks / 2}}, ranks > 2 ? 1 : 0);
    add({{Axis::kTp, 2}, {Axis::kDpShard, ranks / 2}});
  }
  if (ranks == 4) {
    add({{Axis::kPp, 2}, {Axis::kTp, 2}});
    add({{Axis::kDpReplicate, 2}, {Axis::kDpShard, 2}}, 2);
    add({{Axis::kCp, 2}, {Axis::kDpShard, 2}});
    add({{Axis::kPp, 4}});
  }
  return all;
}

}  // namespace molen::launch
