// Tests expert ranks: each layout is the same model as on one rank, whichever ranks have the experts of its tokens.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "program/test_edit.h"
#include "prove/covering.h"
#include "prove/layouts_suite.h"

namespace molen::prove {
namespace {

using namespace suite;

// The same model with a dense layer, shared experts, sigmoid scores, biases of routers and one table at both ends. Each
// token chooses 3 of 6 experts.
arch::Architecture apart_and_shared() {
  auto a = eight_experts();
  a.layers = 4, a.tied = true, a.ffn = 36;
  a.experts->count = 6, a.experts->per_token = 3, a.experts->dense_layers = 1, a.experts->shared = 2;
  a.experts->scores = arch::RouterScores::kSigmoid, a.experts->z_loss = 0.0, a.experts->bias_rate = 0.001;
  return a;
}

// The layouts that both models can have, because their expert ranks divide 8 and 6 experts.
class ExpertRanks : public ::testing::TestWithParam<Layout> {
 protected:
  static std::vector<arch::Architecture> models() {
    std::vector<arch::Architecture> models{eight_experts()};
    if (GetParam().experts <= 3) models.push_back(apart_and_shared());
    if (GetParam().experts == 3) models.erase(models.begin());
    return models;
  }
};

TEST_P(ExpertRanks, SameModelInDouble) {
  for (const auto& a : models()) {
    const Outcome& one = train_alone(program::build(a, reference_setting(DType::kF64)), proof_steps());
    const Outcome many = train_threads(proved_stages(a, setting_of(GetParam(), DType::kF64)), proof_steps());
    expect_same_model(one, many);
  }
}

TEST_P(ExpertRanks, OneStepInFloatWithinTheBound) {
  for (const auto& a : models()) {
    const auto stages = proved_stages(a, setting_of(GetParam(), DType::kF32));
    const Difference d =
        difference(train_alone(program::build(a, reference_setting(DType::kF32)), 1), train_threads(stages, 1));
    const Bounds bounds = bounds_of(stages[0]);
    expect_within(d, bounds);
  }
}

TEST_P(ExpertRanks, TwiceTheSameAndTheDeadAreDead) {
  auto narrow = setting_of(GetParam(), DType::kBF16);
  narrow.kernels = arch::Kernels::kAten;
  for (const auto& setting : {setting_of(GetParam(), DType::kF32), narrow}) {
    const auto stages = proved_stages(models().back(), setting);
    expect_dead_buffers_unread(stages);
  }
}

Layout of_tensor(int tensor, bool rows, Layout l) {
  l.tensor = tensor, l.rows = rows;
  return l;
}
Layout of_context(int ranks, program::ContextForm form, Layout l) {
  l.context = ranks, l.form = form;
  return l;
}
Layout in_two_stages(program::ScheduleKind kind, int chunks, Layout l) {
  l.stages = 2;
  l.pipeline = program::pipeline_of(kind, chunks);
  return l;
}
Layout in_copies(int replicas, bool own_over_dp, Layout l) {
  l.replicas = replicas, l.own_over_dp = own_over_dp;
  return l;
}
Layout in_axis_order(std::string order, Layout l) {
  l.order = std::move(order);
  return l;
}

INSTANTIATE_TEST_SUITE_P(Matrix, ExpertRanks,
                         ::testing::ValuesIn(suite::covering(
                             {experts(2),
                              experts(3),
                              experts(8),
                              experts(2, {2, 0, false, 1}),
                              experts(2, {2, 1, false, 1}),
                              experts(2, {2, 2, false, 1}),
                              experts(2, {2, 3, false, 2}),
                              experts(4, {1, 1, false, 2}),
                              experts(2, {1, 2, false, 1}),
                              experts(4, {1, 3, false, 1}),
                              experts(2, in_copies(2, false, {1, 3, false, 1})),
                              experts(2, in_copies(2, true, {2, 2, false, 1})),
                              experts(2, in_copies(2, false, {1, 0, false, 1})),
                              experts(2, {2, 3, false, 1}).units(program::kHalfLayer),
                              experts(2, {2, 2, false, 1}).units(2),
                              experts(2, {1, 0, true, 2}),
                              experts(2, {2, 3, false, 1}).recomputing("dispatch,expert_up/2"),
                              experts(2, on_host(kEverything, {2, 3, false, 1})),
                              experts(2, on_host(kOptimizer, {1, 1, false, 1})),
                              in_axis_order("ep,pp,dp_replicate,dp_shard,cp,tp", experts(2, {2, 3, false, 1})),
                              of_tensor(2, false, experts(2)),
                              of_tensor(2, true, experts(2, {2, 3, true, 1})),
                              of_context(2, kGather, experts(2, {1, 1, false, 1})),
                              of_context(2, kRing, experts(2, {1, 3, false, 1})),
                              of_context(2, kGather, of_tensor(2, true, experts(2))),
                              in_two_stages(program::ScheduleKind::k1f1b, 1, experts(2)),
                              in_two_stages(program::ScheduleKind::kZbH1, 1, experts(2, {1, 2, false, 1})),
                              in_two_stages(program::ScheduleKind::kInterleaved, 1,
                                            of_tensor(2, true, experts(2, {1, 3, false, 1}))),
                              experts(8, {1, 2, false, 1}),
                              experts(8, {1, 3, true, 1}),
                              of_tensor(2, true, experts(4, {1, 3, false, 1})),
                              of_context(2, kRing, experts(4, {1, 1, false, 1})),
                              in_two_stages(program::ScheduleKind::k1f1b, 1, experts(4, {1, 2, false, 1})),
                              experts(4, on_host(kEverything, {1, 3, false, 1}))})));

struct ExpertMutant {
  std::string name;
  std::vector<std::string> where;  // words of the line that is edited
  std::string from, to;            // with an empty `from` the op is dropped; with an empty `to` it runs twice
};

// The mutants leave out an op of expert ranks, run it twice, or give it other ranks, another layer or another value.
TEST(ExpertMutants, AreRefused) {
  const auto stages = proved_stages(eight_experts(), setting_of(experts(2, {2, 1, false, 2}), DType::kF64));
  const program::Program& p = stages.front();
  const std::string text = program::print(p);
  program::Program same = p;
  for (auto& body : same.bodies)
    for (auto& step : body.steps) step.after.clear();
  ASSERT_TRUE(program::verify(program::pass::order_streams(same)).empty());
  const std::vector<ExpertMutant> mutants{
      {"rows are not sent", {"all_to_all axis=ep payload=expert_rows layer=0"}, "", ""},
      {"rows are sent twice", {"all_to_all axis=ep payload=expert_rows layer=0"}, "all_to_all", ""},
      {"what the experts make stays there", {"all_to_all axis=ep payload=expert_out layer=1"}, "", ""},
      {"it comes home twice", {"all_to_all axis=ep payload=expert_out layer=1"}, "all_to_all", ""},
      {"gradients are not sent", {"all_to_all axis=ep payload=d_expert_out layer=1"}, "", ""},
      {"gradients are sent twice", {"all_to_all axis=ep payload=d_expert_out layer=1"}, "all_to_all", ""},
      {"gradients stay there", {"all_to_all axis=ep payload=d_expert_rows layer=0"}, "", ""},
      {"tokens are routed twice", {"forward part=route layer=1"}, "forward", ""},
      {"offsets are not gathered", {"all_gather axis=ep payload=offsets layer=1"}, "", ""},
      {"offsets of another layer", {"all_to_all axis=ep payload=expert_out layer=1"}, "offsets_all.1", "offsets_all.0"},
      {"rows of another layer", {"all_to_all axis=ep payload=expert_rows layer=1"}, "layer=1", "layer=0"},
      {"rows over other ranks", {"all_to_all axis=ep payload=expert_rows layer=1"}, "axis=ep", "axis=dp_shard"},
      {"on another stream than the first", {"all_to_all axis=ep payload=expert_rows layer=1"}, "ep_comm", "compute"},
      {"experts are summed over all ranks", {"reduce_scatter axis=expert_dp", "layer.0.experts"}, "expert_dp", "dp"},
      {"a router is summed over some ranks", {"reduce_scatter axis=dp", "grad.layer.0"}, "axis=dp", "axis=expert_dp"},
      {"experts are gathered from all ranks", {"all_gather axis=expert_dp", "layer.0.experts"}, "expert_dp", "dp"}};
  for (const ExpertMutant& m : mutants) {
    SCOPED_TRACE(m.name);
    program::Program q = p;
    bool edited = false;
    for (std::size_t b = 0; b < q.bodies.size() && !edited; ++b)
      for (std::size_t k = 0; k < q.bodies[b].steps.size() && !edited; ++k) {
        const std::string line = program::print_step(p, p.bodies[b].steps[k]);
        edited = std::ranges::all_of(m.where, [&](const std::string& word) { return line.find(word) != line.npos; });
        if (!edited || !(m.from.empty() || m.to.empty())) continue;
        if (m.from.empty()) {
          q = program::without(p, b, k);
        } else {
          auto& steps = q.bodies[b].steps;
          const program::Step twice = steps[k];
          steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(k), twice);
          for (auto& body : q.bodies)
            for (auto& step : body.steps) step.after.clear();
          q = program::pass::order_streams(q);
        }
      }
    if (!m.from.empty() && !m.to.empty()) {
      q = program::parse(program::rewrite(text, m.where, m.from, m.to), m.name);
      edited = true;
    }
    ASSERT_TRUE(edited);
    EXPECT_FALSE(program::verify(q).empty());
  }
}

// A checkpoint that some expert ranks saved is loaded on others. The states are the same whichever ranks hold which
// experts.
TEST(ExpertRanksCheckpoint, LoadsOnOtherRanks) {
  const auto a = apart_and_shared();
  const std::vector<Layout> layouts{experts(1, {2, 1, false, 1}), experts(2), experts(3, {1, 3, false, 1}),
                                    experts(2, in_copies(2, false, {2, 2, false, 1})),
                                    of_tensor(2, true, experts(2, {1, 2, false, 1}))};
  // The first and the third layout save. The first is one rank with all experts; the third is three ranks, each with
  // its own experts.
  const std::pair<std::string, std::size_t> savers[] = {{"adamw", 0}, {"muon", 0}, {"adafactor", 0},
                                                        {"adamw", 2}, {"muon", 2}, {"adafactor", 2}};
  for (const auto& [optimizer, saver] : savers) {
    SCOPED_TRACE(fmt::format("{}, saved by layout {}", optimizer, saver));
    const auto programs = [&, with = optimizer](const Layout& l) {
      auto s = setting_of(l, DType::kF32);
      s.optimizer = with;
      return proved_stages(a, s);
    };
    const fs::path dir = fs::temp_directory_path() / fmt::format("molen_expert_ranks_{}", ::getpid());
    fs::remove_all(dir);
    const std::string saved = hash_of_checkpoint(programs(layouts[saver]), dir, true);
    for (const Layout& l : layouts) EXPECT_EQ(hash_of_checkpoint(programs(l), dir, false), saved);
    fs::remove_all(dir);
  }
}

// Muon and Adafactor update each expert's matrices as wholes, each on one rank.
TEST(ExpertRanksOptimizers, UpdateTheSameModel) {
  std::map<std::string, int> ran;
  for (const std::string optimizer : {"muon", "adafactor", "lion"})
    for (const Layout& l : {experts(2, {2, 1, false, 1}), of_tensor(2, false, experts(2)), experts(4, {1, 3, false, 1}),
                            experts(2, on_host(kEverything, {2, 3, false, 1}))}) {
      auto one = reference_setting(DType::kF64), many = setting_of(l, DType::kF64);
      one.optimizer = many.optimizer = optimizer;
      if (program::optimizer_refused(many)) continue;
      SCOPED_TRACE(optimizer);
      expect_same_model(train_alone(program::build(eight_experts(), one), 5),
                        train_threads(proved_stages(eight_experts(), many), 5));
      ++ran[optimizer];
    }
  // The host's stream does not compute Muon's products, so Muon is refused in the offloaded layout.
  EXPECT_EQ(ran, (std::map<std::string, int>{{"muon", 3}, {"adafactor", 4}, {"lion", 4}}));
}

// The biases send all choices to the first experts, which are all on the first rank. That rank gets as many rows as it
// has room for, and the other rank gets none.
TEST(ExpertRanksLoad, OneRankMayGetAllRowsAndAnotherNone) {
  auto a = eight_experts();
  a.experts->bias_rate = 1e-6;
  const auto trained = [&](const Layout& l, std::int64_t tiles = 1) {
    auto setting = setting_of(l, DType::kF64);
    setting.expert_tiles = tiles;
    const auto stages = proved_stages(a, setting);
    Trial trial;
    trial.steps = 3;
    trial.prepare = [&](const exec::Executor& executor) {
      const auto& units = executor.program().units;
      for (std::size_t u = 0; u < units.size(); ++u)
        for (const program::UnitEntry& entry : units[u].entries) {
          const arch::Parameter& of = executor.program().parameters[static_cast<std::size_t>(entry.parameter)];
          if (arch::moved_by_load(of.role))
            executor.state("param", static_cast<int>(u)).narrow(0, entry.offset, a.experts->per_token).fill_(100.0);
        }
    };
    Outcome first;
    on_ranks(stages.front().setting.ranks(), [&](comm::Communicator& world) {
      const auto& s = stages.front().setting;
      Outcome out = prove(stages.front(), world, synthetic_samples(s, a.vocabulary), trial);
      // In each layer and micro-batch, each rank sends its rows forward and their gradients backward. The first rank
      // also sends back the results for all rows, and the gradients of all rows.
      if (s.shares_experts()) {
        const auto at = mesh::Mesh(s.mesh, s.ranks(), s.order).coordinates(world.rank());
        const std::int64_t sends = at[mesh::Axis::kEp] == 0 ? 2 + 2 * s.expert_ranks() : 2,
                           rows = s.tokens() * a.experts->per_token * a.layers * s.micro_batches();
        EXPECT_EQ(out.traffic.at({program::Axis::kEp, comm::CallKind::kAllToAll}).bytes, sends * rows * a.hidden * 8);
      }
      if (world.rank() == 0) first = std::move(out);
    });
    return first;
  };
  Outcome one = trained(experts(1, {1, 0, false, 3}));
  // Only the first two experts have gradients.
  const auto without_zeros = [](Outcome& of) {
    return std::erase_if(of.tensors,
                         [](const auto& named) { return named.second.abs().max().template item<double>() == 0.0; });
  };
  const auto zeros = static_cast<std::int64_t>(without_zeros(one));
  EXPECT_EQ(zeros, a.layers * (a.experts->count - a.experts->per_token) * 3);
  // In two tiles, the first tile of the first rank gets all rows, and the other tile of that rank gets none.
  for (const auto& [l, tiles] : {std::pair{experts(2), 1},
                                 {experts(4, {1, 1, false, 1}), 1},
                                 {of_tensor(2, true, experts(2)), 1},
                                 {experts(2), 2}}) {
    SCOPED_TRACE(fmt::format("{} expert ranks, {} tiles", l.experts, tiles));
    Outcome many = trained(l, tiles);
    EXPECT_EQ(static_cast<std::int64_t>(without_zeros(many)), zeros);
    const Difference d = difference(one, many);
    EXPECT_LE(d.parameters, 1e-9) << d.worst_parameter;
    EXPECT_LE(d.gradients, 1e-9) << d.worst_gradient;
    EXPECT_LE(d.loss, 1e-9);
  }
}

TEST(ExpertRanksMessages, In16BitsAreNearThoseIn32) {
  for (const Layout& l :
       {experts(2, {2, 0, false, 1}), experts(2, {2, 2, false, 1}), experts(2, in_copies(2, true, {1, 3, false, 1}))}) {
    auto s = setting_of(l, DType::kF32);
    s.reduce = DType::kBF16;
    const auto stages = proved_stages(eight_experts(), s);
    const Outcome narrow = train_threads(stages, 1);
    const Difference d =
        difference(train_alone(program::build(eight_experts(), reference_setting(DType::kF32)), 1), narrow);
    EXPECT_GT(d.gradients, 0.0);
    // There are at most two reductions. Each rounds its terms and its sum to 2^-9, and the terms may be twice as large
    // as their sum.
    EXPECT_LT(d.gradients, 2 * 2 * 2 / 512.0) << d.worst_gradient;
  }
}

// A difference in the experts of a rank other than the first is named.
TEST(ExpertRanksDifference, NamesTheExpertOfAnotherRank) {
  const auto stages = proved_stages(eight_experts(), setting_of(experts(2), DType::kF64));
  const Outcome& one = train_alone(program::build(eight_experts(), reference_setting(DType::kF64)), 1);
  Outcome many = train_threads(stages, 1);
  const Bounds bounds{1e-9, 1e-9, 1e-9, 1e-9};
  EXPECT_EQ(first_difference(stages, one, many, bounds), "nothing in its first step");
  const std::string name = "model.layers.1.mlp.experts.6.down_proj.weight";
  at::Tensor& gradient = many.tensors.at("grad/" + name);
  gradient = gradient * 2;
  EXPECT_NE(first_difference(stages, one, many, bounds).find("the gradient of " + name), std::string::npos);
}

TEST(ExpertRanksSetting, WhatCannotBeSharedIsRefused) {
  const auto refused = [](const arch::Architecture& a, const Layout& l) -> std::string {
    try {
      (void)program::build(a, setting_of(l, DType::kF64));
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refused(eight_experts(), experts(3)), "parallel.expert: 3 ranks cannot share 8 experts evenly");
  EXPECT_EQ(refused(llama(false), experts(2)), "parallel.expert: 2 ranks have no experts to share");
  EXPECT_EQ(refused(eight_experts(), experts(0)), "parallel.expert: must be at least 1, is 0");
  Layout many = experts(2);
  many.micro = std::int64_t{1} << 26;
  EXPECT_EQ(refused(eight_experts(), many),
            "parallel.expert: the experts of a rank may get 6442450944 rows, and row numbers end at 2147483647");
}

}  // namespace
}  // namespace molen::prove
