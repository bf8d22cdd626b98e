#include "launch/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"
#include "exec/executor.h"
#include "launch/test_waiting.h"
#include "launch/world.h"
#include "program/build/build.h"
#include "program/ir/comparison.h"

namespace molen::launch {
namespace {

program::Program waiting_program(int ranks, int replicas) {
  auto a = arch::preset("llama-tiny");
  a.layers = 1;
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = ranks / replicas;
  s.mesh[mesh::Axis::kDpReplicate] = replicas;
  s.zero = replicas > 1 ? 2 : 1;
  s.global_batch = 2 * ranks;
  s.micro_batch = 2;
  s.sequence = 32;
  return program::build(a, s);
}

// Rank r takes r + 1 seconds for each op. The rank of a group that takes least waits for nobody.
TEST(Waiting, IsWhatACollectiveTookLongerThanOnTheRankThatTookLeast) {
  const program::Stages stages(waiting_program(4, 2));
  const auto& ops = stages.ops(0);
  std::vector<program::Timeline> of(4);
  run_ranks(launch_threads(4), [&](comm::Communicator& world) {
    program::Timeline& t = of[static_cast<std::size_t>(world.rank())];
    for (std::size_t i = 0; i < ops.size(); ++i) t.ops.push_back({1.0, 2.0 + world.rank(), 0.0});
    set_waiting(stages, world.rank(), shortest_durations(stages.program(0).grid, ops, t, world), t);
  });
  int within = 0, across = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto axis = program::axis_of(ops[i].step->op);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const double waited = of[rank].ops[i].waited_s;
      if (!axis) {
        EXPECT_EQ(waited, 0.0);
      } else if (*axis == program::Axis::kShard) {  // ranks 0, 1 and ranks 2, 3
        ++within;
        EXPECT_EQ(waited, rank % 2 == 0 ? 0.0 : 1.0);
      } else if (*axis == program::Axis::kReplicate) {  // ranks 0, 2 and ranks 1, 3
        ++across;
        EXPECT_EQ(waited, rank < 2 ? 0.0 : 2.0);
      } else {
        EXPECT_EQ(waited, static_cast<double>(rank));
      }
    }
  }
  EXPECT_GT(within, 0);
  EXPECT_GT(across, 0);
}

// The two ends of a message are different ops of different programs. The first stage takes 1 s more for each op than
// the second, so it waits 1 s in each message and in each collective between the stages.
TEST(Waiting, OfStagesIsComparedBetweenTheEndsOfAMessage) {
  auto a = arch::preset("llama-tiny");
  a.layers = 2;
  program::Setting s;
  s.mesh[mesh::Axis::kPp] = s.mesh[mesh::Axis::kDpShard] = 2;
  s.zero = 1;
  s.global_batch = 8;
  s.micro_batch = 2;
  s.sequence = 32;
  const program::Stages stages(program::build_stages(a, s));
  ASSERT_NE(stages.ops(0).size(), stages.ops(1).size());
  program::Timeline first;
  run_ranks(launch_threads(4), [&](comm::Communicator& world) {
    const std::size_t stage = world.rank() < 2 ? 0 : 1;  // of the ranks pp 2 x dp_shard 2
    program::Timeline t;
    for (std::size_t i = 0; i < stages.ops(stage).size(); ++i)
      t.ops.push_back(
          {0.0, 3.0 - static_cast<double>(stage) + static_cast<double>(i) * 1e-3 + 0.5 * (world.rank() % 2), 0.0});
    const ShortestDurations durations = shortest_durations(stages.program(0).grid, stages.ops(stage), t, world);
    if (world.rank() != 0) return;
    set_waiting(stages, 0, durations, t);
    first = std::move(t);
  });
  int messages = 0;
  for (std::size_t i = 0; i < stages.ops(0).size(); ++i) {
    const auto& op = stages.ops(0)[i].step->op;
    const int meeting = stages.meeting_of(0, i);
    if (meeting < 0) {
      EXPECT_EQ(first.ops[i].waited_s, 0.0) << i;
      continue;
    }
    for (const auto& member : stages.members(meeting))
      if (member.stage == 1) {
        const double theirs = 2.0 + static_cast<double>(member.op) * 1e-3;
        EXPECT_NEAR(first.ops[i].waited_s, std::max(0.0, first.ops[i].seconds() - theirs), 1e-12) << i;
      }
    messages += std::holds_alternative<program::Send>(op) || std::holds_alternative<program::Receive>(op);
  }
  EXPECT_EQ(messages, 4);
}

// On any layout a rank waits as long as the durations of all ranks say, of which no rank has more than it needs.
TEST(Waiting, OfAnyLayoutFollowsFromTheDurationsOfAllRanks) {
  for (const int ranks : {1, 2, 3, 4})
    for (const program::Setting& setting : layouts_that_wait(ranks)) {
      std::atomic<int> waiting = 0;
      run_ranks(launch_threads(ranks),
                [&](comm::Communicator& world) { waiting += expect_waiting_by_definition(setting, world); });
      EXPECT_EQ(waiting > 0, ranks > 1) << mesh::Mesh(setting.mesh, ranks).text();
    }
}

// One rank would wait for ever for a rank that has stopped.
TEST(Waiting, StagesThatDifferInWhatTheyRunTogetherAreRefusedOnAllRanks) {
  for (const program::Setting& setting : layouts_that_wait(4)) {
    if (setting.mesh[mesh::Axis::kPp] == 1) continue;
    auto a = arch::preset("llama-tiny");
    a.layers = 4;
    const program::Stages stages(program::build_stages(a, setting));
    std::vector<std::string> said(4);
    run_ranks(launch_threads(4), [&](comm::Communicator& world) {
      const auto& grid = stages.program(0).grid;
      const mesh::Mesh ranks(grid.sizes, grid.ranks(), grid.order);
      const auto stage = static_cast<std::size_t>(ranks.coordinates(world.rank())[mesh::Axis::kPp]);
      auto ops = stages.ops(stage);
      if (stage == 1)  // it lacks its first message with stage 0
        ops.erase(std::ranges::find_if(ops, [&](const program::Expanded& op) {
          return program::stages_of(stages.program(stage), op.step->op) == std::vector{0, 1};
        }));
      try {
        StageWaiting(stages.program(stage), ops, world);
      } catch (const Error& error) {
        said[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    const std::string text = said.front();
    EXPECT_NE(text.find("stage 1 has "), std::string::npos) << text;
    EXPECT_NE(text.find(" ops that stages 0, 1 run together"), std::string::npos) << text;
    EXPECT_EQ(said, std::vector<std::string>(4, text)) << mesh::Mesh(setting.mesh, 4).text();
  }
}

// The Timelines of two ranks of a step in which rank 1 sleeps before its first collective, with how long each waited.
std::vector<program::Timeline> timelines_with_a_sleeper(const program::Stages& stages, double sleep_s) {
  const program::Program& p = stages.program(0);
  std::vector<program::Timeline> of(2);
  run_ranks(launch_threads(2), [&](comm::Communicator& world) {
    exec::Options options;
    options.sleep = [&](const program::Step& step) -> std::optional<double> {
      const auto* c = std::get_if<program::Compute>(&step.op);
      if (world.rank() == 1 && c && c->part == arch::Part::kEmbed && c->pass == program::Pass::kForward) return sleep_s;
      return std::nullopt;
    };
    exec::Executor executor(p, world.rank(), &world, options);
    exec::StepInput input;
    input.load = [&](const exec::MicroBatch& to) {
      const std::int64_t n = p.setting.micro_batch * p.setting.sequence;
      std::iota(to.ids, to.ids + n, 0);
      std::iota(to.labels, to.labels + n, 1);
      return n;
    };
    auto timeline = executor.run(input).timeline;
    set_waiting(stages, world.rank(), shortest_durations(p.grid, executor.ops(), timeline, world), timeline);
    of[static_cast<std::size_t>(world.rank())] = std::move(timeline);
  });
  return of;
}

// Other work on this machine makes either rank wait, but no longer where the sleep is longer. So each repetition sleeps
// for twice as long: only a wait for the wrong rank stays.
TEST(Waiting, ForARankThatSleepsIsSeenAndIsNotSending) {
  const program::Stages stages(waiting_program(2, 1));
  const auto& ops = stages.ops(0);
  std::vector<program::Timeline> of;
  const auto waited = [&](std::size_t rank) {
    double seconds = 0.0;
    for (const auto& row : program::compare(ops, of[rank], of[rank]).rows) seconds += row.waited_s;
    return seconds;
  };
  double sleep_s = 0.25;
  do of = timelines_with_a_sleeper(stages, sleep_s *= 2);
  while (sleep_s < 8 && (waited(0) <= 0.5 * sleep_s || waited(1) >= 0.5 * sleep_s));
  EXPECT_GT(waited(0), 0.5 * sleep_s);
  EXPECT_LT(waited(1), 0.5 * sleep_s);
  // Without the waiting, rank 0's collectives take no longer than rank 1's.
  double sent[2] = {0.0, 0.0};
  for (std::size_t i = 0; i < ops.size(); ++i)
    for (std::size_t rank = 0; rank < 2; ++rank)
      if (program::axis_of(ops[i].step->op)) sent[rank] += of[rank].ops[i].seconds() - of[rank].ops[i].waited_s;
  EXPECT_NEAR(sent[0], sent[1], 1e-9);
}

}  // namespace
}  // namespace molen::launch
