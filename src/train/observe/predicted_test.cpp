#include "train/observe/predicted.h"

#include <gtest/gtest.h>

#include <numeric>

#include "launch/world.h"
#include "program/build/build.h"

namespace molen::train {
namespace {

program::Program predicted_program(int ranks, int replicas) {
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
  const auto p = predicted_program(4, 2);
  const auto ops = program::expand(p);
  std::vector<program::Timeline> of(4);
  launch::run_ranks(launch::launch_threads(4), [&](comm::Communicator& world) {
    program::Timeline& t = of[static_cast<std::size_t>(world.rank())];
    for (std::size_t i = 0; i < ops.size(); ++i) t.ops.push_back({1.0, 2.0 + world.rank(), 0.0});
    tell_waiting(p, ops, t, world);
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

TEST(Waiting, ForARankThatSleepsIsSeenAndIsNotSending) {
  constexpr double kSleep = 0.5;
  const auto p = predicted_program(2, 1);
  std::vector<program::Timeline> of(2);
  launch::run_ranks(launch::launch_threads(2), [&](comm::Communicator& world) {
    exec::Options options;
    options.sleep = [&](const program::Step& step) -> std::optional<double> {
      const auto* c = std::get_if<program::Compute>(&step.op);
      if (world.rank() == 1 && c && c->part == arch::Part::kEmbed && c->pass == program::ComputePass::kForward)
        return kSleep;
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
    tell_waiting(p, executor.ops(), timeline, world);
    of[static_cast<std::size_t>(world.rank())] = std::move(timeline);
  });
  const auto ops = program::expand(p);
  const auto sums = [&](int rank) {
    const auto& t = of[static_cast<std::size_t>(rank)];
    double seconds = 0.0, waited = 0.0;
    for (const auto& row : program::compare(ops, t, t).rows) seconds += row.measured_s, waited += row.waited_s;
    return std::pair(seconds, waited);
  };
  EXPECT_GT(sums(0).second, 0.5 * kSleep);
  EXPECT_LT(sums(1).second, 0.5 * kSleep);
  // Without the waiting, rank 0's collectives take no longer than rank 1's.
  double sent[2] = {0.0, 0.0};
  for (std::size_t i = 0; i < ops.size(); ++i)
    for (std::size_t rank = 0; rank < 2; ++rank)
      if (program::axis_of(ops[i].step->op)) sent[rank] += of[rank].ops[i].seconds() - of[rank].ops[i].waited_s;
  EXPECT_NEAR(sent[0], sent[1], 1e-9);
}

}  // namespace
}  // namespace molen::train
