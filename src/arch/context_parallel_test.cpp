#include "arch/context_parallel.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen::arch {
namespace {

using i64 = std::int64_t;
using Runs = std::vector<PositionRun>;

RC_GTEST_PROP(ContextRuns, TileTheSequenceInOrder, ()) {
  const int ranks = *rc::gen::inRange(1, 20);
  const auto sequence = *rc::gen::inRange<i64>(2 * ranks, 400);
  std::vector<int> owner(static_cast<std::size_t>(sequence), -1);
  i64 least = sequence, most = 0;
  for (int r = 0; r < ranks; ++r) {
    const Runs runs = context_runs(sequence, r, ranks);
    RC_ASSERT(runs.size() == (r == ranks - 1 ? 1u : 2u));  // the middle chunks are neighbours
    RC_ASSERT(in_order(runs, sequence));
    RC_ASSERT(context_rows(sequence, r, ranks) == count_positions(runs));
    least = std::min(least, count_positions(runs)), most = std::max(most, count_positions(runs));
    for (const PositionRun& run : runs)
      for (i64 p = run.first; p < run.last; ++p) {
        RC_ASSERT(owner[static_cast<std::size_t>(p)] == -1);
        owner[static_cast<std::size_t>(p)] = r;
      }
  }
  RC_ASSERT(std::count(owner.begin(), owner.end(), -1) == 0);
  RC_ASSERT(most - least <= 1);
  RC_ASSERT(most == (sequence + ranks - 1) / ranks);
}

TEST(ContextRuns, AreAZigZag) {
  EXPECT_EQ(context_runs(8, 0, 2), (Runs{{0, 2}, {6, 8}}));
  EXPECT_EQ(context_runs(8, 1, 2), (Runs{{2, 6}}));
  EXPECT_EQ(context_runs(7, 0, 3), (Runs{{0, 2}, {6, 7}}));
  EXPECT_EQ(context_runs(7, 1, 3), (Runs{{2, 3}, {5, 6}}));
  EXPECT_EQ(context_runs(7, 2, 3), (Runs{{3, 5}}));
  EXPECT_EQ(context_runs(5, 0, 1), (Runs{{0, 5}}));
  EXPECT_EQ(context_runs(1, 0, 1), (Runs{{0, 1}}));
}

TEST(ContextRuns, TooShortASequenceIsRefused) {
  const GoldenMessages golden;
  EXPECT_NO_THROW(validate_context_parallel(6, 3));
  try {
    validate_context_parallel(5, 3);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("parallel.context"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("1 to 2"), std::string::npos) << error.what();
  }
  EXPECT_NOTED(context_runs(5, 0, 3), UsageError);
  EXPECT_NOTED(validate_context_parallel(5, 0), UsageError);
}

RC_GTEST_PROP(CausalPairs, AreThoseThatAreCounted, ()) {
  const int ranks = *rc::gen::inRange(1, 6);
  const auto sequence = *rc::gen::inRange<i64>(2 * ranks, 60);
  const Runs q = context_runs(sequence, *rc::gen::inRange(0, ranks), ranks),
             k = context_runs(sequence, *rc::gen::inRange(0, ranks), ranks);
  double pairs = 0;
  for (const auto& a : q)
    for (i64 i = a.first; i < a.last; ++i)
      for (const auto& b : k)
        for (i64 j = b.first; j < b.last; ++j) pairs += j < i ? 1.0 : j == i ? 0.5 : 0.0;
  RC_ASSERT(causal_pairs(q, k) == pairs);
}

// The zig-zag exists to balance the work. If the chunks of 4096 positions have equal lengths, all ranks have the same
// number of pairs. If the lengths differ, the work of ranks differs by about a row (2c/S of the work), also because a
// chunk after longer chunks starts later.
TEST(ContextRuns, CausalWorkIsBalanced) {
  const auto imbalance = [](i64 sequence, int ranks) {
    const Runs all{{0, sequence}};
    double least = INFINITY, most = 0, sum = 0;
    for (int r = 0; r < ranks; ++r) {
      const double pairs = causal_pairs(context_runs(sequence, r, ranks), all);
      least = std::min(least, pairs), most = std::max(most, pairs), sum += pairs;
    }
    EXPECT_EQ(sum, static_cast<double>(sequence) * static_cast<double>(sequence) / 2);
    return most / least;
  };
  for (const int ranks : {1, 2, 4, 8, 16}) EXPECT_EQ(imbalance(4096, ranks), 1.0) << ranks;
  for (const int ranks : {3, 5, 7, 12}) EXPECT_LT(imbalance(4096, ranks), 1.0 + 4.0 * ranks / 4096) << ranks;
}

}  // namespace
}  // namespace molen::arch
