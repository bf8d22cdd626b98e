#include "plan/grid.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>
#include <set>

#include "base/error.h"
#include "config/config.h"

namespace molen::plan {
namespace {

std::string refusal_of_grid(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

// Axes with given numbers of values; the keys take any positive integer.
std::vector<GridAxis> axes_of(const std::vector<int>& counts) {
  const std::vector<std::string> keys{"batch.micro", "batch.global", "parallel.tensor", "parallel.pipeline"};
  std::vector<std::string> arguments;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::string list;
    for (int v = 1; v <= counts[i]; ++v) list += (v == 1 ? "" : ",") + std::to_string(v);
    arguments.push_back(keys.at(i) + "=" + list);
  }
  return parse_grid(arguments);
}

// The points are all of the product, each once, in the order of nested loops, which is the lexicographic one.
RC_GTEST_PROP(Grid, IsTheWholeProductInOrder, ()) {
  const auto axes = *rc::gen::inRange(0, 5);
  const auto counts = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(axes), rc::gen::inRange(1, 6));
  const auto grid = axes_of(counts);
  std::int64_t product = 1;
  for (const int count : counts) product *= count;
  RC_ASSERT(points_of(grid) == product);
  std::vector<std::size_t> before;
  for (std::int64_t i = 0; i < product; ++i) {
    const auto point = point_at(grid, i);
    RC_ASSERT(point.size() == counts.size());
    for (std::size_t a = 0; a < point.size(); ++a) RC_ASSERT(point[a] < static_cast<std::size_t>(counts[a]));
    RC_ASSERT(i == 0 || before < point);
    before = point;
  }
}

TEST(Grid, AssignsTheValuesAsTheyWereGiven) {
  const auto grid = parse_grid({"batch.micro=1, 2", "parallel.sharding=FULL_SHARD,NO_SHARD"});
  EXPECT_EQ(assignments_at(grid, 0), (std::vector<std::string>{"batch.micro=1", "parallel.sharding=FULL_SHARD"}));
  EXPECT_EQ(assignments_at(grid, 1), (std::vector<std::string>{"batch.micro=1", "parallel.sharding=NO_SHARD"}));
  EXPECT_EQ(assignments_at(grid, 2), (std::vector<std::string>{"batch.micro=2", "parallel.sharding=FULL_SHARD"}));
  EXPECT_EQ(grid[0].values, (std::vector<Json>{1, 2}));
  EXPECT_EQ(short_names(grid), (std::vector<std::string>{"micro", "sharding"}));
  EXPECT_EQ(short_names(parse_grid({"data.seed=1", "train.seed=1"})),
            (std::vector<std::string>{"data.seed", "train.seed"}));
}

TEST(Grid, KeepsCommasOfAValue) {
  const GridAxis lists = parse_axis("parallel.offload=[\"optimizer\", \"gradients\"],[]");
  EXPECT_EQ(lists.values, (std::vector<Json>{{"optimizer", "gradients"}, Json::array()}));
  EXPECT_EQ(parse_axis("run.name='a,b',c").values, (std::vector<Json>{"a,b", "c"}));
  EXPECT_EQ(parse_axis("train.until=\"1 steps\",2 steps").values, (std::vector<Json>{"1 steps", "2 steps"}));
}

TEST(Grid, RefusesEachMistakeWithItsKey) {
  const auto refused = [](const std::string& argument) { return refusal_of_grid([&] { parse_grid({argument}); }); };
  EXPECT_NE(refused("batch.micr=1").find("did you mean 'batch.micro'"), std::string::npos);
  EXPECT_NE(refused("batch.micro=1,x").find("batch.micro: expected a positive integer, got \"x\""), std::string::npos);
  EXPECT_NE(refused("batch.micro=").find("--grid batch.micro: the list of values is empty"), std::string::npos);
  EXPECT_NE(refused("batch.micro=1,").find("--grid batch.micro: a value is empty"), std::string::npos);
  EXPECT_NE(refused("batch.micro").find("--grid batch.micro: expected table.key=value"), std::string::npos);
  EXPECT_NE(refused("batch.micro=4,2,4").find("--grid batch.micro: the value 4 is there twice"), std::string::npos);
  EXPECT_NE(refusal_of_grid([] {
              parse_grid({"batch.micro=1", "batch.global=8", "batch.micro=2"});
            }).find("--grid batch.micro: the key is there twice"),
            std::string::npos);
}

TEST(Grid, HasAtMostTenThousandPoints) {
  EXPECT_EQ(points_of(axes_of({100, 100})), kMostTrials);
  EXPECT_NE(refusal_of_grid([] { axes_of({100, 101}); }).find("more than 10000 trials"), std::string::npos);
}

TEST(Sizes, AreNumbersThatRise) {
  EXPECT_EQ(parse_sizes("--nodes", "1, 2,16"), (std::vector<int>{1, 2, 16}));
  for (const char* text : {"", "0", "1,,2", "two", "1.5", "-1", "3000000000", "1 2"})
    EXPECT_NE(refusal_of_grid([&] { parse_sizes("--nodes", text); }).find("--nodes: expected whole numbers from 1"),
              std::string::npos)
        << text;
  for (const char* text : {"2,1", "2,2"})
    EXPECT_NE(refusal_of_grid([&] { parse_sizes("--ranks", text); }).find("--ranks: "), std::string::npos) << text;
}

// The sequences of a rank are the same on every size, and of the first size the batch is the configuration's.
RC_GTEST_PROP(WeakScaling, GrowsTheBatchWithTheSize, ()) {
  const std::int64_t of_rank = *rc::gen::inRange(1, 1000);
  const int first = *rc::gen::inRange(1, 100), size = *rc::gen::inRange(1, 100);
  RC_ASSERT(weak_batch(of_rank * first, first, size) == of_rank * size);
  RC_ASSERT(weak_batch(of_rank, first, first) == of_rank);
}

TEST(WeakScaling, RefusesPartsOfASequence) {
  EXPECT_EQ(weak_batch(6, 2, 3), 9);
  EXPECT_NE(refusal_of_grid([] { weak_batch(5, 2, 3); })
                .find("batch.global = 5 belongs to the first size, 2; on 3 it "
                      "would be 7.5"),
            std::string::npos);
}

TEST(LaunchWords, KeepWhatIsQuoted) {
  EXPECT_EQ(words_of("--launch", " srun  -n 4\t--comment 'two words' -x\"a b\"c ''"),
            (std::vector<std::string>{"srun", "-n", "4", "--comment", "two words", "-xa bc", ""}));
  EXPECT_NE(refusal_of_grid([] { words_of("--launch", "srun 'x"); }).find("--launch: a quote does not end"),
            std::string::npos);
  EXPECT_NE(refusal_of_grid([] { words_of("--launch", "  "); }).find("--launch: there is no command"),
            std::string::npos);
}

}  // namespace
}  // namespace molen::plan
