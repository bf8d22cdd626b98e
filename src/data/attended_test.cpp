#include "data/attended.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "data/shard.h"
#include "data/test_folder.h"

namespace molen::data {
namespace {

TEST(Attended, IsTheShareOfScoresWithinDocuments) {
  const auto share = [](std::vector<std::int32_t> starts) { return attended_share(starts); };
  EXPECT_DOUBLE_EQ(share({0, 0, 0, 0}), 1.0);
  EXPECT_DOUBLE_EQ(share({0, 1, 2, 3}), 4.0 / 10.0) << "each token sees itself alone";
  // Documents of 1 and 3 tokens have 1 and 6 scores.
  EXPECT_DOUBLE_EQ(share({0, 1, 1, 1}), 7.0 / 10.0);
  // Two halves of 64 have 2 * 64 * 65 / 2 of 128 * 129 / 2 scores.
  std::vector<std::int32_t> halves(128, 0);
  std::fill(halves.begin() + 64, halves.end(), 64);
  EXPECT_DOUBLE_EQ(attended_share(halves), 2.0 * 64 * 65 / (128.0 * 129));
}

TEST(Attended, OfManySequencesVariesLess) {
  const Attended one{0.5, 0.1, 100};
  EXPECT_NEAR(interval_of(one, 1).first, 0.5 - 0.12816, 1e-12);
  EXPECT_NEAR(interval_of(one, 4).second, 0.5 + 0.06408, 1e-12);
  EXPECT_EQ(interval_of({0.95, 0.3, 100}, 1).second, 1.0);
  EXPECT_EQ(interval_of({0.05, 0.3, 100}, 1).first, 0.0);
}

// Counts pairs of tokens of one document in each sequence, as attention sees them.
TEST(Attended, IsReadFromTheData) {
  const TestFolder folder;
  TestShard shard{"a", "nl", {}};
  for (int d = 0; d < 40; ++d) {
    shard.documents.emplace_back(static_cast<std::size_t>(1 + 7 * d % 30), 5);
    shard.documents.back().push_back(0);
  }
  write_test_shards(folder.path(), {shard}, 300);
  constexpr std::int64_t kLength = 24;
  const Dataset data({{folder.path(), {}, {}}}, 3, {kLength, 300, "test"});
  const std::int64_t count = data.sequences();
  ASSERT_GT(count, 10);
  std::vector<double> shares;
  for (std::int64_t k = 2; k < count; ++k) {
    std::vector<std::int32_t> tokens(kLength + 1);
    data.read(k, tokens);
    int pairs = 0;
    for (int i = 0; i < kLength; ++i)
      for (int j = i; j >= 0; --j) {
        if (j < i && tokens[static_cast<std::size_t>(j)] == 0) break;
        ++pairs;
      }
    shares.push_back(pairs / (kLength * (kLength + 1) / 2.0));
  }
  const Attended found = attended_share(data, 2, count - 2);
  double sum = 0.0, squares = 0.0;
  for (const double share : shares) sum += share;
  const double mean = sum / static_cast<double>(shares.size());
  for (const double share : shares) squares += (share - mean) * (share - mean);
  EXPECT_EQ(found.sequences, count - 2);
  EXPECT_NEAR(found.mean, mean, 1e-12);
  EXPECT_NEAR(found.deviation, std::sqrt(squares / static_cast<double>(shares.size())), 1e-7);
  EXPECT_GT(found.deviation, 0.01);
}

}  // namespace
}  // namespace molen::data
