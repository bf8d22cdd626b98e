#include "plan/layouts.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "base/test_golden.h"
#include "base/test_sanitized.h"
#include "program/build/build.h"
#include "program/build/recompute.h"
#include "program/provenance/provenance.h"

namespace molen::plan {
namespace {

program::Setting batch_of(std::int64_t micro) {
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

// Returns the number of shardings: 4 strategies, and two hybrids with two places of the optimizer states for each
// proper division into groups that hold whole sequences of `context` ranks.
std::size_t shardings(int holders, int context) {
  std::size_t divisions = 0;
  for (int d = 2; d < holders; ++d) divisions += holders % d == 0 && d % context == 0;
  return holders == 1 ? 1 : 4 + 4 * divisions;
}

// A layout that `build` would refuse is not offered, so that nobody is told to use it.
TEST(Layouts, OfASparseModelCanBeBuilt) {
  arch::Architecture a = model();
  a.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 24};
  for (const int ranks : {1, 2, 4}) {
    const auto all = covering_pairs(layouts_of(a, batch_of(3), ranks, {}));
    ASSERT_FALSE(all.empty());
    for (const Layout& l : all)
      for (const program::Program& p : program::build_stages(a, l.setting))
        EXPECT_TRUE(program::check(p).empty()) << l.name;
  }
}

// Context ranks find together which tokens of a sequence come first, so no layout is left out.
TEST(Layouts, OfExpertsWithACapacityHaveContextRanks) {
  arch::Architecture a = model();
  a.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 24};
  const auto contexts = [&] {
    std::set<int> found;
    for (const Layout& l : layouts_of(a, batch_of(3), 4, {})) found.insert(l.setting.context_ranks());
    return found;
  };
  EXPECT_EQ(contexts(), (std::set<int>{1, 2, 4}));
  a.experts->capacity = 1.25;
  EXPECT_EQ(contexts(), (std::set<int>{1, 2, 4}));
}

// The layouts that compute some parts again name parts that the model has.
TEST(Layouts, SomePartsComputedAgainAreOfTheModel) {
  const auto names = [](const arch::Architecture& a) {
    std::set<std::string> found;
    for (const Layout& l : layouts_of(a, batch_of(3), 1, {})) found.insert(program::text_of(l.setting.recompute));
    return found;
  };
  arch::Architecture a = model();
  EXPECT_EQ(names(a), (std::set<std::string>{"none", "full", "attention,norm_up,activation/2"}));
  a.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 24};
  EXPECT_EQ(names(a), (std::set<std::string>{"none", "full", "attention,dispatch,expert_up,expert_activation/2"}));
}

TEST(Layouts, EachUsesAllRanksAndIsSound) {
  const arch::Architecture a = model();
  std::size_t turn = 0;
  for (const int ranks : {1, 2, 4, 6, 8}) {
    std::set<std::string> names;
    for (const Layout& l : layouts_of(model(), batch_of(3), ranks, {})) {
      EXPECT_EQ(l.setting.ranks(), ranks);
      EXPECT_TRUE(names.insert(l.name).second) << l.name << " appears twice";
      if (turn++ % kStride != 0) continue;
      const auto stages = program::build_stages(a, l.setting);
      for (const auto& p : stages) EXPECT_TRUE(program::check(p).empty()) << l.name;
      EXPECT_TRUE(program::check_world(stages).empty()) << l.name;
    }
    // The number of shardings is multiplied by three kinds of recompute, by layouts with and without accumulation, and
    // by rows that are whole or cut over tensor ranks. Two layers make two stages, in the order of GPipe, 1F1B or
    // ZB-H1. Sixteen tokens fit 1, 2, 4 or 8 context ranks, which gather keys or form a ring.
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

// For every way to share a model, some layouts have one micro-batch in a rank's step and others have several.
TEST(Layouts, AccumulateAndDoNot) {
  std::map<std::string, std::set<bool>> ways;
  for (const Layout& l : layouts_of(model(), batch_of(3), 8, {})) {
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
  const auto all = layouts_of(model(), batch_of(3), 8, {});
  std::set<int> degrees;
  for (const Layout& l : within_nodes(all, 2)) degrees.insert(l.setting.tensor_ranks());
  EXPECT_EQ(degrees, (std::set<int>{1, 2}));
  program::Setting s = batch_of(3);
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
  const auto all = layouts_of(model(), batch_of(3), 8, {}), few = covering_pairs(all);
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

// The experts of a rank are cut into tiles only where there are enough of them.
TEST(Layouts, TilesHaveAnExpertEach) {
  auto sparse = model();
  sparse.experts = arch::Experts{.count = 8, .per_token = 2, .ffn = 24};
  program::Setting s = batch_of(1);
  s.expert_tiles = 3;
  std::map<int, std::set<std::int64_t>> tiles;  // by expert ranks
  for (const Layout& l : layouts_of(sparse, s, 4, {})) tiles[l.setting.expert_ranks()].insert(l.setting.expert_tiles);
  EXPECT_EQ(tiles, (std::map<int, std::set<std::int64_t>>{{1, {1}}, {2, {1, 3}}, {4, {1}}}));
}

// Each tensor rank has at least one row of each piece.
TEST(Layouts, PiecesHaveARowForEachTensorRank) {
  program::Setting s = batch_of(1);
  s.sequence = 8;
  s.tensor_chunks = 4;
  std::set<int> in_pieces;
  for (const Layout& l : layouts_of(model(), s, 4, {})) {
    if (!l.setting.rows_in_pieces()) continue;
    in_pieces.insert(l.setting.tensor_ranks());
    EXPECT_GE(l.setting.tokens() / 4, l.setting.tensor_ranks()) << l.name;
  }
  EXPECT_TRUE(in_pieces.contains(2)) << "two rows in a piece are enough for two ranks";
}

TEST(Layouts, KeepsWhatIsWanted) {
  const GoldenMessages golden;
  for (const Layout& l : layouts_of(model(), batch_of(1), 8, {"HYBRID_SHARD"})) EXPECT_EQ(l.strategy, "HYBRID_SHARD");
  // There are three kinds of recompute, each with one micro-batch and with eight.
  EXPECT_EQ(layouts_of(model(), batch_of(1), 3, {"ZERO1"}).size(), 6u);
  EXPECT_NOTED(layouts_of(model(), batch_of(1), 8, {"FULLSHARD"}), UsageError);
  EXPECT_NOTED(layouts_of(model(), batch_of(1), 2, {"HYBRID_SHARD"}), UsageError);  // 2 ranks have no proper division
}

// The name of a layout gives every difference from one rank that does everything, and nothing more.
TEST(Layouts, NamesSayWhatDiffers) {
  const auto name = [](const std::function<void(program::Setting&)>& change) {
    program::Setting s = batch_of(3);
    s.global_batch = 3;
    change(s);
    return layout_of(s).name;
  };
  EXPECT_EQ(name([](auto&) {}), "NO_SHARD");
  EXPECT_EQ(name([](auto& s) { s.global_batch = 12; }), "NO_SHARD, 4 micro-batches");
  EXPECT_EQ(name([](auto& s) { s.mesh[mesh::Axis::kTp] = 2; }), "NO_SHARD, tp 2");
  EXPECT_EQ(name([](auto& s) {
              s.mesh[mesh::Axis::kTp] = 2;
              s.sequence_parallel = true;
              s.tensor_chunks = 3;
            }),
            "NO_SHARD, tp 2 with sequence parallelism in 3 pieces");
  EXPECT_EQ(name([](auto& s) { s.mesh[mesh::Axis::kEp] = 4, s.expert_tiles = 3; }), "NO_SHARD, ep 4 in 3 tiles");
  EXPECT_EQ(name([](auto& s) {
              s.mesh[mesh::Axis::kCp] = 4;
              s.context_form = program::ContextForm::kRing;
            }),
            "NO_SHARD, cp 4 ring");
  EXPECT_EQ(name([](auto& s) {
              s.mesh[mesh::Axis::kPp] = 2;
              s.pipeline = program::pipeline_of(program::ScheduleKind::kInterleaved, 2);
            }),
            "NO_SHARD, pp 2 interleaved x 2");
  EXPECT_EQ(name([](auto& s) {
              s.mesh[mesh::Axis::kPp] = 2;
              s.pipeline.layers = {5, 1};
            }),
            "NO_SHARD, pp 2 1f1b of 5+1 layers");
  EXPECT_EQ(name([](auto& s) { s.recompute = program::Recompute::full(); }), "NO_SHARD, recompute");
  EXPECT_EQ(name([](auto& s) {
              s.recompute = program::recompute_from_text("attention/2");
              s.offload.optimizer = true;
              s.order = mesh::parse_order("tp,pp,dp_replicate,dp_shard,cp");
              s.global_batch = 6;
            }),
            "NO_SHARD, recompute attention/2, optimizer on the host, order tp,pp,dp_replicate,dp_shard,cp, 2 "
            "micro-batches");
  const auto groups = [&](int zero, int shards, int replicas, bool own) {
    return name([&](auto& s) {
      s.zero = zero;
      s.mesh[mesh::Axis::kDpShard] = shards;
      s.mesh[mesh::Axis::kDpReplicate] = replicas;
      s.own_over_dp = own;
    });
  };
  EXPECT_EQ(groups(1, 4, 1, false), "ZERO1");
  EXPECT_EQ(groups(2, 4, 1, false), "SHARD_GRAD_OP");
  EXPECT_EQ(groups(3, 4, 1, false), "FULL_SHARD");
  EXPECT_EQ(groups(1, 2, 2, false), "ZERO1");
  EXPECT_EQ(groups(3, 2, 4, false), "HYBRID_SHARD 4 x 2");
  EXPECT_EQ(groups(2, 4, 2, true), "HYBRID_SHARD_ZERO2 2 x 4, optimizer over all");
}

// Under ZeRO-1 and ZeRO-2, the host cannot keep the parameters.
TEST(Layouts, HaveNoOffloadThatIsRefused) {
  program::Setting s = batch_of(3);
  s.offload.optimizer = s.offload.parameters = true;
  std::size_t with_parameters = 0;
  for (const Layout& l : layouts_of(model(), s, 4, {})) {
    EXPECT_EQ(program::offload_refused(model(), l.setting), std::nullopt) << l.name;
    with_parameters += l.setting.offload.parameters;
  }
  EXPECT_GT(with_parameters, 0U);
}

TEST(Layouts, RefusalsAreWhole) {
  const GoldenMessages golden;
  const auto refused = [](const program::Setting& s, int ranks, const std::vector<std::string>& wanted) {
    try {
      layouts_of(model(), s, ranks, wanted);
    } catch (const UsageError& error) {
      return GoldenMessages::note(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused(batch_of(1), 8, {"FULLSHARD"}),
            "--layouts: unknown layout 'FULLSHARD'; did you mean 'FULL_SHARD'?");
  EXPECT_EQ(refused(batch_of(1), 2, {"HYBRID_SHARD"}), "--layouts: none of these is a layout of 2 ranks");
  program::Setting pieces = batch_of(1);
  pieces.tensor_chunks = 4;
  EXPECT_EQ(refused(pieces, 1, {}), "parallel.tensor_chunks: no layout of 1 ranks has rows for 4 pieces");
  EXPECT_EQ(refused(pieces, 2, {}), "accepted");
  program::Setting tiles = batch_of(1);
  tiles.expert_tiles = 2;
  EXPECT_EQ(refused(tiles, 2, {}), "parallel.expert_tiles: no layout of 2 ranks has experts for 2 tiles");
}

// The layouts include those with and without the configuration's offload, with pieces of rows, and with micro-batches
// of one sequence.
TEST(Layouts, VariantsOfTheConfiguration) {
  const auto names = [](const program::Setting& s, int ranks, bool one_sequence = false) {
    std::vector<std::string> all;
    for (const Layout& l : layouts_of(model(), s, ranks, {"NO_SHARD"}, one_sequence))
      if (!l.setting.recompute.any()) all.push_back(l.name);
    return all;
  };
  using Names = std::vector<std::string>;
  program::Setting s = batch_of(3);
  EXPECT_EQ(names(s, 1), (Names{"NO_SHARD, 8 micro-batches", "NO_SHARD"}));
  EXPECT_EQ(names(s, 1, true), (Names{"NO_SHARD, 8 micro-batches", "NO_SHARD", "NO_SHARD, 24 micro-batches"}));
  EXPECT_EQ(names(batch_of(24), 1), (Names{"NO_SHARD", "NO_SHARD, 24 micro-batches"}));
  EXPECT_EQ(names(batch_of(24), 1, true), (Names{"NO_SHARD", "NO_SHARD, 24 micro-batches"}));
  s.offload.optimizer = true;
  EXPECT_EQ(names(s, 1), (Names{"NO_SHARD, 8 micro-batches", "NO_SHARD, optimizer on the host, 8 micro-batches",
                                "NO_SHARD", "NO_SHARD, optimizer on the host"}));
}

}  // namespace
}  // namespace molen::plan
