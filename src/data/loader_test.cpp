#include "data/loader.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/test_golden.h"
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
  const GoldenMessages golden;
  EXPECT_EQ(samples_of(16, 2, 3, 8, 1), (std::vector<MicroBatch>{{18, 1}, {21, 1}, {24, 0}}));
  EXPECT_NOTED(samples_of(0, 0, 1, 0, 1), UsageError);
  EXPECT_NOTED(samples_of(0, 0, 1, 1, 0), UsageError);
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
      if (batch.wait) EXPECT_GE(batch.wait->seconds(), 0);
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

// A loader that reads one batch ahead is slower than a caller that drops its batches, and faster than one that sleeps.
// The caller's own clock says how long a call took. The call does little but wait, unless other work interrupts it.
TEST_F(LoaderTest, SaysWhenACallerWaitedForIt) {
  const Dataset data = open();
  Loader loader(data, {0, 2000, 2000, 0, 1, 1});
  int waits = 0;
  double most = 0.0;  // of the part of a call that was waiting
  for (int i = 0; i < 1000 && (waits < 5 || most < 0.8); ++i) {
    const auto called = std::chrono::steady_clock::now();
    const std::int64_t called_ns = now_ns();
    const Batch batch = loader.next();
    const std::int64_t back_ns = now_ns();
    const std::chrono::duration<double> call_s = std::chrono::steady_clock::now() - called;
    if (!batch.wait) continue;
    ++waits;
    EXPECT_LE(called_ns, batch.wait->start_ns);
    EXPECT_LT(batch.wait->start_ns, batch.wait->end_ns);
    EXPECT_LE(batch.wait->end_ns, back_ns);
    EXPECT_LE(batch.wait->seconds(), call_s.count());
    most = std::max(most, batch.wait->seconds() / call_s.count());
  }
  EXPECT_GE(waits, 5);
  EXPECT_GE(most, 0.8);
  bool ready = false;  // a machine may stall the loader for longer than one sleep
  for (int i = 0; i < 100 && !ready; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ready = !loader.next().wait;
  }
  EXPECT_TRUE(ready) << "a batch that is there is not waited for";
}

TEST(DocumentStarts, AreBehindEndsOfText) {
  const auto starts = [](std::vector<std::int32_t> tokens) {
    std::vector<std::int32_t> out(tokens.size(), -7);
    document_starts(tokens, 9, out);
    return out;
  };
  using List = std::vector<std::int32_t>;
  EXPECT_EQ(starts({1, 2, 3}), (List{0, 0, 0}));
  EXPECT_EQ(starts({1, 9, 3, 4, 9, 9, 7}), (List{0, 0, 2, 2, 2, 5, 6}));
  EXPECT_EQ(starts({9, 9}), (List{0, 1}));
  EXPECT_EQ(starts({}), (List{}));
}

// Compares windows over documents of all lengths, in two shards, with the documents themselves. Token t of a document
// is 1 + t, so a token tells its distance from its document's beginning.
TEST(DocumentStarts, OfWindowsAreWhereTheirDocumentsBegin) {
  const TestFolder folder;
  std::vector<TestShard> shards{{"a", "nl", {}}, {"b", "nl", {}}};
  int length = 1;
  for (TestShard& shard : shards)
    for (int d = 0; d < 40; ++d, length = 1 + length * 7 % 31) {
      std::vector<std::int32_t> document;
      for (int t = 0; t + 1 < length; ++t) document.push_back(1 + t);
      document.push_back(0);  // the manifest's end of text
      shard.documents.push_back(document);
    }
  write_test_shards(folder.path(), shards, 500);
  const Dataset data({{folder.path(), {}, {}}}, 3, {19, 500, "test"});
  Loader with(data, {0, 6, 4, 0, 1, 2, true}), without(data, {0, 6, 4, 0, 1, 2});
  int inside = 0, cut = 0;
  for (int batch = 0; batch < 80; ++batch) {
    const Batch a = with.next(), b = without.next();
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.labels, b.labels);
    EXPECT_TRUE(b.document_start.empty());
    ASSERT_EQ(a.document_start.size(), a.ids.size());
    for (std::size_t row = 0; row < 4; ++row) {
      // The token's value gives its place in its document; an end-of-text token's place is one after its left
      // neighbour's.
      for (std::int32_t k = 0; k < 19; ++k) {
        const std::size_t at = row * 19 + static_cast<std::size_t>(k);
        const std::int32_t start = a.document_start[at], id = a.ids[at];
        if (static_cast<std::int64_t>(row) >= a.count) {
          EXPECT_EQ(start, 0);
          continue;
        }
        ASSERT_LE(start, k);
        const std::int32_t place = id > 0 ? id - 1 : k > start ? a.ids[at - 1] : -1;
        if (place < 0) continue;  // a lone end of text, or one at the window's beginning
        EXPECT_EQ(start, std::max(0, k - place)) << row << " " << k;
        start > 0 ? ++inside : ++cut;
      }
    }
  }
  EXPECT_GT(inside, 1000);
  EXPECT_GT(cut, 1000);
}

TEST_F(LoaderTest, AFailureOfTheThreadSurfacesInNext) {
  const GoldenMessages golden;
  const Dataset data = open();
  fs::resize_file(folder_.path() / "a.bin", 10);
  Loader loader(data, {0, 4, 2, 0, 1, 2});
  const auto drain = [&] {
    for (int i = 0; i < 100; ++i) loader.next();
  };
  EXPECT_NOTED(drain(), UsageError);
  EXPECT_NOTED(loader.next(), UsageError);
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
