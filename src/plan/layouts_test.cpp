#include "plan/layouts.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "program/build.h"
#include "program/verify.h"

namespace molen::plan {
namespace {

program::Setting base(std::int64_t micro) {
  program::Setting s;
  s.global_batch = 24;
  s.micro_batch = micro;
  s.sequence = 16;
  return s;
}

arch::Architecture model() {
  arch::Architecture a = arch::preset("llama-tiny");
  a.layers = 2;
  return a;
}

// Strategies: 4, and two hybrids with two homes of the optimizer for each proper division into groups that hold whole
// sequences of `context` ranks.
std::size_t shardings(int holders, int context) {
  std::size_t divisions = 0;
  for (int d = 2; d < holders; ++d) divisions += holders % d == 0 && d % context == 0;
  return holders == 1 ? 1 : 4 + 4 * divisions;
}

TEST(Layouts, EachUsesAllRanksAndIsSound) {
  const arch::Architecture a = model();
  for (const int ranks : {1, 2, 4, 6, 8}) {
    std::set<std::string> names;
    for (const Layout& l : layouts_of(model(), base(3), ranks, {})) {
      EXPECT_EQ(l.setting.ranks(), ranks);
      EXPECT_TRUE(names.insert(l.name).second) << l.name << " stands twice";
      const auto stages = program::build_stages(a, l.setting);
      for (const auto& p : stages) EXPECT_TRUE(program::verify(p).empty()) << l.name;
      EXPECT_TRUE(program::verify_world(stages).empty()) << l.name;
    }
    // Times three ways of recompute, with and without accumulation, and rows whole or cut over tensor ranks. Two layers
    // make two stages, whose order is GPipe's, 1F1B's or ZB-H1's. Sixteen tokens are for 1, 2, 4 or 8 context ranks,
    // which gather or make a ring.
    std::size_t expected = 0;
    for (const int stages : {1, 2})
      for (const int tensor : arch::tensor_degrees(a, ranks))
        for (const int context : {1, 2, 4, 8})
          if (ranks % (stages * tensor * context) == 0)
            expected += 6 * shardings(ranks / stages / tensor, context) * (tensor > 1 ? 2 : 1) * (stages > 1 ? 3 : 1) *
                        (context > 1 ? 2 : 1);
    EXPECT_EQ(names.size(), expected) << ranks;
  }
}

// With every way to share a model, a rank's batch of a step is one micro-batch or several.
TEST(Layouts, AccumulateAndDoNot) {
  std::map<std::string, std::set<bool>> ways;
  for (const Layout& l : layouts_of(model(), base(3), 8, {})) {
    const auto& s = l.setting;
    const bool accumulates = s.micro_batches() > 1;
    if (s.tensor()) ways["tp"].insert(accumulates);
    if (s.pipelined()) ways["pp"].insert(accumulates);
    if (s.context()) ways["cp"].insert(accumulates);
    ways[l.strategy].insert(accumulates);
  }
  EXPECT_EQ(ways.size(), 3 + strategies().size());
  for (const auto& [name, found] : ways) EXPECT_EQ(found.size(), 2u) << name;
}

TEST(Layouts, TensorRanksShareANode) {
  const auto all = layouts_of(model(), base(3), 8, {});
  std::set<int> degrees;
  for (const Layout& l : within_nodes(all, 2)) degrees.insert(l.setting.tensor_ranks());
  EXPECT_EQ(degrees, (std::set<int>{1, 2}));
  program::Setting s = base(3);
  s.mesh[mesh::Axis::kTp] = 2;
  s.mesh[mesh::Axis::kPp] = 4;
  EXPECT_TRUE(share_node(s, mesh::Axis::kTp, 2));
  EXPECT_FALSE(share_node(s, mesh::Axis::kPp, 4));
  s.order = mesh::parse_order("tp,pp,dp_replicate,dp_shard,cp");
  EXPECT_FALSE(share_node(s, mesh::Axis::kTp, 4));
  EXPECT_TRUE(share_node(s, mesh::Axis::kTp, 8));
  EXPECT_TRUE(share_node(s, mesh::Axis::kPp, 4));
}

TEST(Layouts, PairsAreCoveredByFew) {
  const auto all = layouts_of(model(), base(3), 8, {}), few = covering_pairs(all);
  const auto pairs = [](const std::vector<Layout>& layouts) {
    std::set<std::string> found;
    for (const Layout& l : layouts)
      for (std::size_t i = 0; i < l.choices.size(); ++i)
        for (std::size_t k = 0; k < i; ++k)
          found.insert(std::to_string(i) + l.choices[i] + "|" + std::to_string(k) + l.choices[k]);
    return found;
  };
  EXPECT_EQ(pairs(few), pairs(all));
  EXPECT_LT(few.size() * 4, all.size());
  EXPECT_TRUE(covering_pairs({}).empty());
}

TEST(Layouts, KeepsWhatIsWanted) {
  for (const Layout& l : layouts_of(model(), base(1), 8, {"HYBRID_SHARD"})) EXPECT_EQ(l.strategy, "HYBRID_SHARD");
  // Three ways of recompute, one micro-batch and eight.
  EXPECT_EQ(layouts_of(model(), base(1), 3, {"ZERO1"}).size(), 6u);
  EXPECT_THROW(layouts_of(model(), base(1), 8, {"FULLSHARD"}), UsageError);
  EXPECT_THROW(layouts_of(model(), base(1), 2, {"HYBRID_SHARD"}), UsageError);  // 2 ranks have no proper division
}

}  // namespace
}  // namespace molen::plan
