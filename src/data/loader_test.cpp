#include "data/loader.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "base/error.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

RC_GTEST_PROP(SamplesOf, AnyRanksMakeTheSameStep, ()) {
  const std::int64_t global = *rc::gen::inRange(1, 40), micro = *rc::gen::inRange(1, 9),
                     start = *rc::gen::inRange(0, 100);
  const int ranks = *rc::gen::inRange(1, 9);
  std::multiset<std::int64_t> seen;
  std::set<std::size_t> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto batches = samples_of(start, rank, ranks, global, micro);
    counts.insert(batches.size());
    for (std::size_t m = 0; m < batches.size(); ++m) {
      RC_ASSERT(batches[m].count >= 0 && batches[m].count <= micro);
      if (global % (ranks * micro) == 0)
        RC_ASSERT(batches[m] == (MicroBatch{start + (static_cast<std::int64_t>(m) * ranks + rank) * micro, micro}));
      for (std::int64_t j = 0; j < batches[m].count; ++j) seen.insert(batches[m].first + j);
    }
  }
  RC_ASSERT(counts.size() == 1u);
  RC_ASSERT(seen.size() == static_cast<std::size_t>(global));
  for (std::int64_t i = 0; i < global; ++i) RC_ASSERT(seen.count(start + i) == 1u);
}

TEST(SamplesOf, ThreeRanksEightSamples) {
  EXPECT_EQ(samples_of(16, 2, 3, 8, 1), (std::vector<MicroBatch>{{18, 1}, {21, 1}, {24, 0}}));
  EXPECT_THROW(samples_of(0, 0, 1, 0, 1), UsageError);
  EXPECT_THROW(samples_of(0, 0, 1, 1, 0), UsageError);
}

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    std::vector<std::vector<std::int32_t>> documents(1);
    for (int i = 0; i < 400; ++i) documents[0].push_back(i);
    write_test_shards(folder_.path(), {{"a", "nl", documents}}, 500);
  }
  Dataset open() const { return Dataset({{folder_.path(), {}, {}}}, 3, {11, 500, "test"}); }
  TestFolder folder_;
};

TEST_F(LoaderTest, GivesTheSamplesInOrderAndResumesAtAnyStep) {
  const Dataset data = open();
  Loader loader(data, {0, 6, 2, 1, 2, 3});
  std::vector<Batch> batches;
  EXPECT_EQ(loader.micro_batches_per_step(), 2);
  for (int i = 0; i < 12; ++i) batches.push_back(loader.next());
  std::vector<std::int32_t> tokens(12);
  for (int step = 0; step < 6; ++step) {
    const auto mine = samples_of(step * 6, 1, 2, 6, 2);
    for (std::size_t m = 0; m < 2; ++m) {
      const Batch& batch = batches[static_cast<std::size_t>(step) * 2 + m];
      EXPECT_EQ(batch.first_sample, mine[m].first);
      EXPECT_EQ(batch.count, mine[m].count);
      EXPECT_GE(batch.wait_s, 0);
      ASSERT_EQ(batch.ids.size(), 22u);
      ASSERT_EQ(batch.labels.size(), 22u);
      for (std::int64_t row = 0; row < 2; ++row) {
        if (row < batch.count) data.read(batch.first_sample + row, tokens);
        for (std::size_t k = 0; k < 11; ++k) {
          const std::size_t at = static_cast<std::size_t>(row) * 11 + k;
          EXPECT_EQ(batch.ids[at], row < batch.count ? tokens[k] : 0);
          EXPECT_EQ(batch.labels[at], row < batch.count ? tokens[k + 1] : -1);
        }
      }
    }
  }
  Loader resumed(data, {18, 6, 2, 1, 2, 1});
  for (std::size_t i = 6; i < 12; ++i) {
    const Batch batch = resumed.next();
    EXPECT_EQ(batch.first_sample, batches[i].first_sample);
    EXPECT_EQ(batch.ids, batches[i].ids);
    EXPECT_EQ(batch.labels, batches[i].labels);
  }
}

TEST_F(LoaderTest, AFailureOfTheThreadSurfacesInNext) {
  const Dataset data = open();
  fs::resize_file(folder_.path() / "a.bin", 10);
  Loader loader(data, {0, 4, 2, 0, 1, 2});
  const auto drain = [&] {
    for (int i = 0; i < 100; ++i) loader.next();
  };
  EXPECT_THROW(drain(), UsageError);
  EXPECT_THROW(loader.next(), UsageError);
}

TEST_F(LoaderTest, StopsWhileTheQueueIsFullOrEmpty) {
  const Dataset data = open();
  for (int i = 0; i < 50; ++i) Loader loader(data, {i, 4, 2, 0, 1, 1 + i % 3});
  for (int i = 0; i < 50; ++i) {
    Loader loader(data, {i, 4, 2, 0, 1, 1 + i % 3});
    loader.next();
  }
}

}  // namespace
}  // namespace molen::data
