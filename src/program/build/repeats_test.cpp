// Schedules whose micro-batches repeat each other, and the programs that are built from them.
#include "program/ir/repeats.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "program/build/stage_by_stage.h"
#include "program/test_edit.h"

namespace molen::program {
namespace {

Setting of_stages(ScheduleKind kind, int stages, int chunks, std::int64_t micro_batches) {
  Setting s;
  s.mesh[mesh::Axis::kPp] = stages;
  if (stages > 1) s.pipeline = pipeline_of(kind, chunks);
  s.global_batch = micro_batches;
  s.sequence = 8;
  return s;
}

arch::Architecture layers_for(int stages, int chunks) {
  arch::Architecture a = tiny();
  a.layers = 2 * stages * chunks;
  return a;
}

int chunks_for(ScheduleKind kind) {
  return kind == ScheduleKind::kInterleaved || kind == ScheduleKind::kZbV ? 2 : 1;
}

// Less blocks of a schedule are the schedule that the builder makes for fewer micro-batches.
TEST(Repeats, LessBlocksAreTheScheduleOfFewerMicroBatches) {
  for (const ScheduleKind kind : kAllScheduleKinds)
    for (const int stages : {1, 2, 4, 7}) {
      const int chunks = stages > 1 ? chunks_for(kind) : 1;
      SCOPED_TRACE(std::string(name_of(kind)) + " on " + std::to_string(stages));
      const Setting all = of_stages(kind, stages, chunks, 10 * stages);
      const std::int64_t each = micro_batches_of_block(all);
      const Setting fewer = of_stages(kind, stages, chunks, all.global_batch - 2 * each);
      const auto of_all = build_stages(layers_for(stages, chunks), all);
      const auto of_fewer = build_stages(layers_for(stages, chunks), fewer);
      for (std::size_t s = 0; s < of_all.size(); ++s) {
        const auto repeats = repeats_in(of_all[s].schedule, each);
        ASSERT_EQ(repeats.has_value(), stages == 1 || kind != ScheduleKind::kGpipe) << s;
        if (!repeats) continue;
        EXPECT_EQ(repeats->micro_batches, each);
        EXPECT_EQ(with_blocks(of_all[s].schedule, *repeats, repeats->blocks), of_all[s].schedule);
        ASSERT_GT(repeats->blocks, 3u) << s;
        EXPECT_EQ(with_blocks(of_all[s].schedule, *repeats, repeats->blocks - 2), of_fewer[s].schedule) << s;
        EXPECT_EQ(of_all[s].schedule[repeats->first].micro_batch, repeats->earliest);
        EXPECT_EQ(repeats->earliest % each, 0);
      }
    }
}

TEST(Repeats, NothingRepeatsInAShortOrUnevenSchedule) {
  EXPECT_FALSE(repeats_in({}, 1));
  EXPECT_FALSE(repeats_in({{0, -1}, {1, -1}, {2, -1}}, 1));
  EXPECT_FALSE(repeats_in({{0, 0}, {1, 1}, {0, 2}}, 1));
  EXPECT_FALSE(repeats_in({{0, 0}, {1, 1}, {1, 2}, {2, 3}}, 0));
  // One block has another one behind it, and no third.
  const std::vector<Instance> schedule{{0, 0}, {1, 1}, {1, 2}};
  const auto two = repeats_in(schedule, 1);
  ASSERT_TRUE(two);
  EXPECT_EQ(two->blocks, 2u);
  EXPECT_EQ(with_blocks(schedule, *two, 1), (std::vector<Instance>{{0, 0}, {1, 1}}));
  EXPECT_THROW(with_blocks(schedule, *two, 3), Error);
  EXPECT_THROW(with_blocks(schedule, *two, 0), Error);
}

// A schedule from a file may leave an early micro-batch to the end, or run a late one early. With fewer blocks there is
// no micro-batch that such an instance could belong to.
TEST(Repeats, AnInstanceFarFromItsNeighboursPreventsThem) {
  constexpr int kForward = 0, kBackward = 1;
  const auto schedule = [](std::int64_t left, bool at_the_end) {
    std::vector<Instance> all;
    if (!at_the_end) all.push_back({kForward, left});
    for (std::int64_t m = 0; m < 60; ++m) {
      if (m != left || at_the_end) all.push_back({kForward, m});
      if (m > 0 && m - 1 != left) all.push_back({kBackward, m - 1});
    }
    if (left != 59) all.push_back({kBackward, 59});
    all.push_back({kBackward, left});
    return all;
  };
  EXPECT_TRUE(repeats_in(schedule(59, true), 1)) << "in order";
  EXPECT_FALSE(repeats_in(schedule(3, true), 1)) << "the backward of micro-batch 3 comes last";
  EXPECT_FALSE(repeats_in(schedule(58, false), 1)) << "the forward of micro-batch 58 comes first";
}

// The builder finds the edges between streams from few of the blocks. They are those of a schedule so short that it
// uses all of it, and the verifier, which follows every micro-batch, misses none.
RC_GTEST_PROP(Repeats, EdgesOfManyMicroBatchesAreThoseOfFew, ()) {
  const ScheduleKind kind = *rc::gen::elementOf(
      std::vector{ScheduleKind::k1f1b, ScheduleKind::kInterleaved, ScheduleKind::kZbH1, ScheduleKind::kZbV});
  const int stages = *rc::gen::inRange(1, 5), chunks = stages > 1 ? chunks_for(kind) : 1;
  Setting s = of_stages(kind, stages, chunks, 1);
  s.mesh[mesh::Axis::kDpShard] = *rc::gen::inRange(1, 3);
  s.zero = *rc::gen::inRange(0, 4);
  s.mesh[mesh::Axis::kTp] = *rc::gen::inRange(1, 3);
  s.offload.activations = *rc::gen::arbitrary<bool>() && stages == 1;
  if (*rc::gen::arbitrary<bool>()) s.recompute = Recompute::full();
  const std::int64_t few = (kind == ScheduleKind::k1f1b || kind == ScheduleKind::kZbH1 ? stages + 7 : 3 * stages);
  const std::int64_t of_round = s.micro_batch * s.data_ranks();
  const std::int64_t more = stages * *rc::gen::inRange(6, 12);
  Setting small = s;
  small.global_batch = std::max<std::int64_t>(few, 8) * of_round, s.global_batch = (few + more) * of_round;
  const auto some = build_stages(layers_for(stages, chunks), small), all = build_stages(layers_for(stages, chunks), s);
  for (std::size_t i = 0; i < all.size(); ++i) {
    RC_ASSERT(all[i].bodies.size() == some[i].bodies.size());
    for (std::size_t b = 0; b < all[i].bodies.size(); ++b) {
      RC_ASSERT(all[i].bodies[b].steps.size() == some[i].bodies[b].steps.size());
      for (std::size_t k = 0; k < all[i].bodies[b].steps.size(); ++k)
        RC_ASSERT(all[i].bodies[b].steps[k].after == some[i].bodies[b].steps[k].after);
    }
    RC_ASSERT(check(all[i]).empty());
  }
}

// The programs come one by one, and no further one is built once nobody wants it.
TEST(Repeats, StagesAreBuiltUntilNobodyTakesThem) {
  const Setting s = of_stages(ScheduleKind::k1f1b, 4, 1, 8);
  const auto all = build_stages(layers_for(4, 1), s);
  std::vector<Program> taken;
  build_each_stage(layers_for(4, 1), s, nullptr, true, [&](Program p) {
    taken.push_back(std::move(p));
    return taken.size() < 2;
  });
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0], all[0]);
  EXPECT_EQ(taken[1], all[1]);
}

}  // namespace
}  // namespace molen::program
