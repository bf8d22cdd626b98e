#include "sim/collectives.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <vector>

#include "base/error.h"

namespace molen::sim {
namespace {

constexpr std::array kAlgorithms{Algorithm::kRing, Algorithm::kTree, Algorithm::kHierarchical};

// Four ranks in each of `nodes` nodes, with 10 bytes/s within a node and 1 between nodes. Latencies are 0.
CollectiveRanks fours(int nodes) {
  return {.ranks = 4 * nodes, .in_node = 4, .inside = 10.0, .between = 1.0};
}

// Two nodes exchange each share once, where a ring passes 7 of 8 parts through the links between them.
TEST(Collectives, LevelsByHand) {
  const CollectiveRanks two = fours(2);
  EXPECT_DOUBLE_EQ(*seconds_of(Algorithm::kRing, "all_gather", 80.0, two), 80.0 * 7 / 8 / 4.0);
  EXPECT_DOUBLE_EQ(*seconds_of(Algorithm::kHierarchical, "all_gather", 80.0, two),
                   80.0 * 3 / 4 / 10.0 + 20.0 * 1 / 2 / 1.0);
  EXPECT_DOUBLE_EQ(*seconds_of(Algorithm::kHierarchical, "reduce_scatter", 80.0, two),
                   *seconds_of(Algorithm::kHierarchical, "all_gather", 80.0, two));
  EXPECT_DOUBLE_EQ(*seconds_of(Algorithm::kHierarchical, "all_reduce", 80.0, two),
                   2.0 * *seconds_of(Algorithm::kHierarchical, "all_gather", 80.0, two));
}

// Of 16 nodes, messages pass 3 neighbours within a node and 15 other nodes; an all-reduce takes a tree of depth 4
// between them. An all-reduce has three levels, each of which begins anew.
TEST(Collectives, LatenciesOfLevels) {
  CollectiveRanks r = fours(16);
  r.near_s = 1.0, r.far_s = 100.0, r.start_s = 1e4;
  EXPECT_DOUBLE_EQ(*seconds_of(Algorithm::kHierarchical, "all_gather", 0.0, r), 2e4 + 3.0 + 1500.0);
  EXPECT_DOUBLE_EQ(*seconds_of(Algorithm::kHierarchical, "all_reduce", 0.0, r), 3e4 + 2 * (3.0 + 400.0));
  EXPECT_DOUBLE_EQ(*seconds_of(Algorithm::kRing, "all_gather", 0.0, r), 1e4 + 48.0 + 1600.0);
  EXPECT_DOUBLE_EQ(*seconds_of(Algorithm::kTree, "all_reduce", 0.0, r), 1e4 + 2 * (2.0 + 400.0));
}

TEST(Collectives, LevelsNeedSeveralEqualNodesOfSeveralRanks) {
  for (const auto& [ranks, in_node] : {std::pair{4, 4}, {4, 1}, {6, 4}}) {
    CollectiveRanks r = fours(1);
    r.ranks = ranks, r.in_node = in_node;
    EXPECT_FALSE(seconds_of(Algorithm::kHierarchical, "all_reduce", 8.0, r)) << ranks << " ranks, " << in_node;
    EXPECT_TRUE(seconds_of(Algorithm::kRing, "all_reduce", 8.0, r));
  }
  EXPECT_FALSE(seconds_of(Algorithm::kHierarchical, "all_to_all", 8.0, fours(2)));
  EXPECT_FALSE(seconds_of(Algorithm::kTree, "all_gather", 8.0, fours(2)));
}

TEST(Collectives, TheFastestOfThoseThatThereAre) {
  const double ring = *seconds_of(Algorithm::kRing, "all_gather", 80.0, fours(2)),
               levels = *seconds_of(Algorithm::kHierarchical, "all_gather", 80.0, fours(2));
  ASSERT_LT(levels, ring);
  EXPECT_EQ(fastest_of(kAlgorithms, "all_gather", 80.0, fours(2)), levels);
  EXPECT_EQ(fastest_of(std::array{Algorithm::kRing, Algorithm::kTree}, "all_gather", 80.0, fours(2)), ring);
  EXPECT_THROW(fastest_of(std::array{Algorithm::kTree}, "all_gather", 80.0, fours(2)), Error);
  EXPECT_THROW(fastest_of({}, "all_gather", 80.0, fours(2)), Error);
}

// Whatever the algorithm, each rank receives what it lacks over its own links, and the ranks of a node together receive
// what their node lacks over the links between nodes.
RC_GTEST_PROP(Collectives, NoAlgorithmMovesLessThanEachRankLacks, ()) {
  CollectiveRanks r;
  r.in_node = *rc::gen::inRange(1, 9);
  r.ranks = r.in_node * *rc::gen::inRange(1, 200);
  RC_PRE(r.ranks > 1);
  r.inside = *rc::gen::inRange(1, 1000), r.between = *rc::gen::inRange(1, 1000);
  r.near_s = 0.001 * *rc::gen::inRange(0, 10), r.far_s = 0.001 * *rc::gen::inRange(0, 100);
  const double bytes = *rc::gen::inRange(1, 1 << 20), nodes = r.nodes();
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter"}) {
    const double rounds = kind == std::string("all_reduce") ? 2.0 : 1.0;
    const double of_rank = rounds * bytes * (r.ranks - 1.0) / r.ranks / std::max(r.inside, r.between),
                 of_node = rounds * bytes * (nodes - 1.0) / nodes / (r.between * r.in_node);
    for (const Algorithm algorithm : kAlgorithms)
      if (const auto seconds = seconds_of(algorithm, kind, bytes, r)) {
        RC_ASSERT(*seconds >= of_node * (1 - 1e-12));
        RC_ASSERT(*seconds >= of_rank * (1 - 1e-12));
      }
  }
}

}  // namespace
}  // namespace molen::sim
