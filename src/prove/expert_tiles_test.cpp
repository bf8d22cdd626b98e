// Tests rows of experts that travel between expert ranks tile by tile (Setting::expert_tiles). The cut changes when
// rows travel and nothing that is computed, so the results are those without tiles, bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "program/test_edit.h"
#include "program/types/check.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

arch::Architecture shared_and_limited() {
  auto a = eight_experts();
  a.experts->shared = 2, a.experts->capacity = 0.75;
  return a;
}

program::Setting in_tiles(const Layout& l, std::int64_t tiles, DType compute) {
  auto s = setting_of(l, compute);
  s.expert_tiles = tiles;
  if (compute == DType::kBF16) s.kernels = arch::Kernels::kAten;
  return s;
}

Layout beside_tensor_ranks(Layout l) {
  l.tensor = 2, l.rows = true;
  return l;
}
Layout beside_context_ranks(Layout l) {
  l.context = 2, l.form = kRing;
  return l;
}

void expect_equal_bits(const Outcome& one, const Outcome& other) {
  EXPECT_EQ(one.losses, other.losses);
  EXPECT_EQ(one.norms, other.norms);
  ASSERT_EQ(one.tensors.size(), other.tensors.size());
  EXPECT_FALSE(one.tensors.empty());
  for (const auto& [name, tensor] : one.tensors) EXPECT_TRUE(at::equal(tensor, other.tensors.at(name))) << name;
}

class ExpertTiles : public ::testing::TestWithParam<Layout> {};

TEST_P(ExpertTiles, GiveTheBitsOfNone) {
  for (const auto& a : {eight_experts(), shared_and_limited()}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const Outcome whole = train_threads(proved_stages(a, in_tiles(GetParam(), 1, compute)), 3);
      for (const std::int64_t tiles :
           compute == DType::kF32 ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{4}) {
        SCOPED_TRACE(fmt::format("{} tiles, {}", tiles, name_of(compute)));
        const auto stages = proved_stages(a, in_tiles(GetParam(), tiles, compute));
        expect_equal_bits(whole, train_threads(stages, 3));
      }
    }
  }
}

TEST_P(ExpertTiles, TheDeadAreDead) {
  expect_dead_buffers_unread(proved_stages(eight_experts(), in_tiles(GetParam(), 3, DType::kF32)));
}

TEST_P(ExpertTiles, AnEvaluationIsSound) {
  auto s = in_tiles(GetParam(), 3, DType::kF32);
  s.purpose = program::Purpose::kEvaluate;
  s.offload = {};
  const auto stages = proved_stages(eight_experts(), s);
  // All layers use the same buffers in turn, as without tiles.
  s.expert_tiles = 1;
  EXPECT_EQ(stages.front().buffers, proved_stages(eight_experts(), s).front().buffers);
}

// The ops say all that the verifier needs.
TEST_P(ExpertTiles, AreSoundWithoutTheSetting) {
  auto stages = proved_stages(eight_experts(), in_tiles(GetParam(), 2, DType::kF32));
  for (const program::Program& p : stages) EXPECT_TRUE(program::verify(program::without_setting(p)).empty());
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, ExpertTiles,
    ::testing::Values(experts(2), experts(2, {2, 2, false, 1}), experts(2, {1, 3, false, 2}),
                      experts(2, {1, 0, true, 1}), experts(2, {2, 3, false, 1}).recomputing("expert_activation"),
                      experts(2, {1, 3, false, 1}).units(program::kHalfLayer),
                      experts(2, on_host(kEverything, {1, 3, false, 1})),
                      beside_tensor_ranks(experts(2, {1, 3, false, 1})), beside_context_ranks(experts(2)),
                      over_two_stages(experts(2, {1, 2, false, 1}), program::ScheduleKind::kZbH1)));

// The number of bytes that ranks send does not depend on the number of tiles; the number of messages does.
TEST(ExpertTilesTraffic, IsThatOfNone) {
  const auto calls = [](std::int64_t tiles) {
    const auto stages = proved_stages(eight_experts(), in_tiles(experts(2), tiles, DType::kF32));
    comm::Traffic of_rank;
    on_ranks(2, [&](comm::Communicator& world) {
      const Outcome out = train_rank(stages.front(), world, 1);
      if (world.rank() == 1) of_rank = out.traffic.at({program::Axis::kEp, comm::CallKind::kAllToAll});
    });
    return of_rank;
  };
  const comm::Traffic whole = calls(1), tiled = calls(4);
  EXPECT_GT(whole.bytes, 0);
  EXPECT_EQ(whole.bytes, tiled.bytes);
  EXPECT_EQ(4 * whole.calls, tiled.calls);
}

// FLOPs and bytes of the tiles add up to those without tiles.
TEST(ExpertTilesCosts, AddUp) {
  struct Sums {
    Flops model, hardware;
    std::int64_t rows = 0, scratch = 0;    // of exchanges
    std::int64_t moved = 0, products = 0;  // of the products of experts: bytes, and how many ops there are
  };
  const auto sums_of = [](std::int64_t tiles) {
    const auto p = program::build(eight_experts(), in_tiles(experts(2, {1, 3, false, 1}), tiles, DType::kF32));
    Sums s;
    for (const program::Body& body : p.bodies)
      for (const program::Step& step : body.steps) {
        s.model += step.model_flops, s.hardware += step.hardware_flops;
        const auto* c = std::get_if<program::Compute>(&step.op);
        if (c && (c->part == arch::Part::kExpertUp || c->part == arch::Part::kExpertDown))
          s.moved += step.moved.value, ++s.products;
        if (!std::holds_alternative<program::AllToAll>(step.op)) continue;
        s.rows += step.moved.value, s.scratch = std::max(s.scratch, step.scratch.value);
        EXPECT_EQ(step.epilogues.at(0).moved.value, 2 * step.moved.value);
      }
    return s;
  };
  const Sums whole = sums_of(1);
  for (const std::int64_t tiles : {2, 3, 4}) {
    const Sums tiled = sums_of(tiles);
    EXPECT_EQ(tiled.model, whole.model);
    EXPECT_EQ(tiled.hardware, whole.hardware);
    EXPECT_EQ(tiled.rows, whole.rows);
    // Each further tile reads one more offset of 4 bytes.
    EXPECT_EQ(tiled.products, tiles * whole.products);
    EXPECT_EQ(tiled.moved, whole.moved + 4 * (tiles - 1) * whole.products);
  }
  // Each token chooses two experts, so a tile of one expert gets at most half as many rows as four experts.
  EXPECT_EQ(2 * sums_of(4).scratch, whole.scratch);
}

struct TileMutant {
  std::string name;
  std::string where;     // words of the lines that are edited
  std::string from, to;  // an empty `from` stands for the whole op, which is then left out or, if `to` says so, doubled
  std::string says{};    // words of one of the findings
};
const std::string kTwice = "twice";

// Returns the program with edges for the hazards that it now has, and the costs of its ops, so that neither tells an
// edit apart.
program::Program ordered_again(program::Program p) {
  for (auto& body : p.bodies)
    for (auto& step : body.steps) step.after.clear();
  return program::pass::order_streams(program::pass::costs(std::move(p)));
}

// Edits all lines that have the words or, where whole ops are edited, the first such op.
program::Program mutated(const program::Program& p, const TileMutant& m) {
  if (!m.from.empty()) return program::parse(program::rewrite(program::print(p), {m.where}, m.from, m.to), m.name);
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      if (program::print_step(p, p.bodies[b].steps[k]).find(m.where) == std::string::npos) continue;
      program::Program q = p;
      auto& steps = q.bodies[b].steps;
      const auto at = steps.begin() + static_cast<std::ptrdiff_t>(k);
      if (m.to == kTwice)
        steps.insert(at, program::Step(steps[k]));
      else
        steps.erase(at);
      return q;
    }
  ADD_FAILURE() << m.name << ": no such op";
  return p;
}

TEST(ExpertTilesMutants, AreRefused) {
  const auto stages = proved_stages(eight_experts(), in_tiles(experts(2, {1, 2, false, 2}), 3, DType::kF64));
  const program::Program& sound = stages.front();
  ASSERT_TRUE(program::verify(ordered_again(sound)).empty());
  const std::vector<TileMutant> mutants{
      {"a tile is not sent", "all_to_all axis=ep payload=expert_rows layer=0 expert_tile=1", "", ""},
      {"a tile is sent twice", "all_to_all axis=ep payload=expert_rows layer=0 expert_tile=1", "", kTwice},
      {"another tile is sent", "all_to_all axis=ep payload=expert_rows layer=0 expert_tile=1", "expert_tile=1",
       "expert_tile=2"},
      {"all rows are sent", "all_to_all axis=ep payload=expert_rows layer=0 expert_tile=1", " expert_tile=1", ""},
      {"all gradients are sent", "all_to_all axis=ep payload=d_expert_out layer=0 expert_tile=1", " expert_tile=1", "",
       "works on all of the rows, but must work on one of their 3 tiles"},
      {"a tile does not return", "all_to_all axis=ep payload=expert_out layer=1 expert_tile=2", "", ""},
      {"a tile's gradient does not return", "all_to_all axis=ep payload=d_expert_rows layer=1 expert_tile=0", "", ""},
      {"a tile is not multiplied", "forward part=expert_up layer=1 expert_tile=2", "", ""},
      {"another tile is multiplied", "forward part=expert_up layer=1 expert_tile=2", "expert_tile=2", "expert_tile=1"},
      {"a tile's gradient is left out", "backward part=expert_down layer=0 expert_tile=1", "", ""},
      {"a tile's gradient is made twice", "backward part=expert_down layer=0 expert_tile=1", "", kTwice},
      {"another tile's gradient", "backward part=expert_up layer=0 expert_tile=1", "expert_tile=1", "expert_tile=0"},
      {"all experts at once", "backward part=expert_up layer=0 expert_tile=1", " expert_tile=1", ""},
      {"other tiles than the other ops", "forward part=expert_up layer=0 expert_tile=0", "expert_tiles=3",
       "expert_tiles=2"},
      {"rows of another layer", "forward part=expert_up layer=1 expert_tile=1", "rank_rows.1", "rank_rows.0"}};
  for (const TileMutant& m : mutants) {
    SCOPED_TRACE(m.name);
    try {
      const auto findings = program::verify(ordered_again(mutated(sound, m)));
      EXPECT_FALSE(findings.empty());
      EXPECT_TRUE(std::ranges::any_of(
          findings, [&](const program::Finding& f) { return f.text.find(m.says) != std::string::npos; }));
    } catch (const UsageError&) {  // the text is refused before it is verified
    }
  }
  const TileMutant beyond{"a tile that does not exist", "forward part=expert_up layer=0 expert_tile=0", "expert_tile=0",
                          "expert_tile=3"};
  EXPECT_THROW(mutated(sound, beyond), UsageError);
}

// The types find a missing tile by themselves.
TEST(ExpertTilesMutants, TypesMissATile) {
  const program::Program p = program::build(eight_experts(), in_tiles(experts(2, {1, 2, false, 3}), 3, DType::kF64));
  ASSERT_TRUE(program::type_errors(p).empty());
  for (const char* where :
       {"backward part=expert_up layer=0 expert_tile=1", "forward part=expert_up layer=1 expert_tile=2",
        "all_to_all axis=ep payload=expert_out layer=0 expert_tile=0"})
    EXPECT_FALSE(program::type_errors(mutated(p, {"a tile is missing", where, "", ""})).empty()) << where;
}

// A tile of one layer may lie where another tile of another layer lay, so what that tile held is lost.
TEST(ExpertTilesMutants, ATileOfAnotherLayerMayOverwriteTheOthers) {
  const auto stages = proved_stages(eight_experts(), in_tiles(experts(2, {1, 0, false, 3}), 2, DType::kF64));
  program::Program p = stages.front();
  const int shared = p.buffer("expert_up.0");
  // The first tile of layer 1 is made in the buffer of layer 0, whose second tile is still to be read.
  for (auto& body : p.bodies)
    for (auto& step : body.steps) {
      const auto* c = std::get_if<program::Compute>(&step.op);
      const bool of_tile = c && c->layer == 1 && c->portion == 0;
      for (program::Use& use : step.operands)
        if (of_tile && use.buffer == p.buffer("expert_up.1")) use.buffer = shared;
    }
  const auto findings = program::verify(ordered_again(p));
  const auto lost = [](const program::Finding& f) {
    return f.text.find("reads expert_up.0, which holds nothing") != std::string::npos;
  };
  EXPECT_TRUE(std::ranges::any_of(findings, lost)) << findings.size();
}

// Each edge between two streams is needed: without it, an op could read or overwrite rows too early.
TEST(ExpertTilesMutants, EachEdgeIsNeeded) {
  const auto p = program::build(eight_experts(), in_tiles(experts(2, {1, 0, false, 3}), 3, DType::kF64));
  int edges = 0;
  for (std::size_t b = 0; b < p.bodies.size(); ++b)
    for (std::size_t k = 0; k < p.bodies[b].steps.size(); ++k) {
      const program::Step& step = p.bodies[b].steps[k];
      const auto* c = std::get_if<program::Compute>(&step.op);
      const bool tile = std::holds_alternative<program::AllToAll>(step.op) || (c && c->part == arch::Part::kExpertUp) ||
                        (c && c->part == arch::Part::kExpertDown);
      for (std::size_t i = 0; tile && i < step.after.size(); ++i, ++edges) {
        program::Program q = p;
        auto& after = q.bodies[b].steps[k].after;
        after.erase(after.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_FALSE(program::verify(q).empty()) << p.bodies[b].name << " %" << k << ", edge " << i;
      }
    }
  EXPECT_GE(edges, 4 * 3 * 2);  // each layer has four exchanges of three tiles, and each waits or is waited for
}

TEST(ExpertTilesSetting, WhatCannotBeCutIsRefused) {
  const auto refused = [](const arch::Architecture& a, const Layout& l, std::int64_t tiles) -> std::string {
    try {
      (void)program::build(a, in_tiles(l, tiles, DType::kF64));
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refused(eight_experts(), experts(2), 4), "");
  EXPECT_EQ(refused(eight_experts(), experts(2), 5),
            "parallel.expert_tiles: the 4 experts that a rank has of each layer cannot be cut into 5 tiles");
  EXPECT_EQ(refused(eight_experts(), experts(1), 2),
            "parallel.expert_tiles: no expert ranks exchange rows in 2 tiles; set parallel.expert above 1");
  EXPECT_EQ(refused(eight_experts(), experts(2), 0), "parallel.expert_tiles: 1 to 64 tiles, not 0");
  EXPECT_EQ(refused(eight_experts(), experts(2), 65), "parallel.expert_tiles: 1 to 64 tiles, not 65");
}

// --- the gain

constexpr double kGemms = 24e-3;  // seconds of the GEMMs of all experts; an exchange of all rows takes a third of that

program::Overlap hidden_in_tiles(std::int64_t tiles) {
  auto a = eight_experts();
  a.layers = 4;
  const auto p = program::build(a, in_tiles(experts(2, {1, 0, false, 6}), tiles, DType::kF64));
  return hidden_of(p, program::Axis::kEp, [&](const program::Step& step) {
    const double share = 1.0 / static_cast<double>(tiles);
    if (std::holds_alternative<program::AllToAll>(step.op)) return kGemms / 3 * share;
    const auto* c = std::get_if<program::Compute>(&step.op);
    return c && c->part == arch::Part::kExpertUp ? kGemms * share : 0.0;
  });
}

// With two tiles, the second tile travels beside the GEMMs of the first, and the first returns beside those of the
// second: half of the exchanges are hidden. With four tiles, three quarters are.
TEST(ExpertTilesOverlap, HideWhatNoneLeavesBare) {
  const program::Overlap one = hidden_in_tiles(1), two = hidden_in_tiles(2), four = hidden_in_tiles(4);
  fmt::print("experts in 1, 2, 4 tiles: {:.1f}, {:.1f}, {:.1f} % of {:.2f} s of exchanges hidden\n", 100 * one.share(),
             100 * two.share(), 100 * four.share(), two.seconds);
  EXPECT_LE(one.share(), 0.1);
  EXPECT_GE(two.share(), 0.4);
  EXPECT_GE(four.share(), 0.65);
}

}  // namespace
}  // namespace molen::prove
