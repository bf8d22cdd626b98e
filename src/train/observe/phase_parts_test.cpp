#include "train/observe/phase_parts.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <variant>

#include "program/build/build.h"
#include "program/test_cases.h"

namespace molen::train {
namespace {

program::Program small_program(int layers, int stages, int stage, std::int64_t unit_layers = 1) {
  auto a = arch::preset("llama-tiny");
  a.layers = layers;
  a.tied = false;
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = 2;
  s.mesh[mesh::Axis::kPp] = stages;
  s.pipeline.stage = stage;
  s.unit_layers = unit_layers;
  s.zero = 3;
  s.global_batch = 8;
  s.micro_batch = 1;
  s.sequence = 64;
  return program::build(a, s);
}

std::set<std::string> groups_of(const program::Program& p) {
  std::set<std::string> groups;
  for (const auto& op : program::expand(p)) groups.insert(parts_of(p, *op.step).group);
  return groups;
}

using Names = std::set<std::string>;

TEST(PhaseParts, AGroupHasTheLayersOfTheModelAndNotOfTheStage) {
  EXPECT_EQ(groups_of(small_program(4, 1, 0)),
            (Names{"embed", "layer 0", "layer 1", "layer 2", "layer 3", "final", "other"}));
  const program::Program last = small_program(4, 2, 1);
  Names want{"final", "other"};
  for (std::int64_t layer = last.chunks.at(0).first; layer < 4; ++layer) want.insert("layer " + std::to_string(layer));
  ASSERT_GT(last.chunks[0].first, 0);
  EXPECT_EQ(groups_of(last), want);
}

TEST(PhaseParts, ThereAreAtMostEightGroupsOfLayers) {
  EXPECT_EQ(groups_of(small_program(8, 1, 0)).size(), 8U + 3U);
  EXPECT_EQ(groups_of(small_program(17, 1, 0)), (Names{"embed", "layers 0-2", "layers 3-5", "layers 6-8", "layers 9-11",
                                                       "layers 12-14", "layers 15-16", "final", "other"}));
}

// Two layers of a group would otherwise lie in units of two groups.
TEST(PhaseParts, AGroupHasWholeUnits) {
  EXPECT_EQ(groups_of(small_program(8, 1, 0, 4)), (Names{"embed", "layers 0-3", "layers 4-7", "final", "other"}));
  EXPECT_EQ(groups_of(small_program(4, 1, 0, program::kHalfLayer)),
            (Names{"embed", "layer 0", "layer 1", "layer 2", "layer 3", "final", "other"}));
}

// Each op of a layer counts for it: its parts, the collectives of its parameters, and their update.
TEST(PhaseParts, NamesEachOpOfALayer) {
  const program::Program p = small_program(4, 1, 0);
  std::map<std::string, Names> kinds;  // by phase, of the layer 2
  for (const auto& op : program::expand(p)) {
    const OpParts parts = parts_of(p, *op.step);
    if (parts.group == "layer 2") kinds[energy_phases().at(static_cast<std::size_t>(parts.phase))].insert(parts.kind);
  }
  EXPECT_TRUE(kinds["forward"].contains("attention")) << "without the name of the phase";
  EXPECT_TRUE(kinds["backward"].contains("down"));
  EXPECT_TRUE(kinds["dp_comm"].contains("reduce_scatter"));
  EXPECT_TRUE(kinds["dp_comm"].contains("all_gather"));
  EXPECT_TRUE(kinds["optimizer"].contains("optimizer_step"));
}

// The head of a tied model multiplies by the embedding's table. Its ops count for the head nevertheless.
TEST(PhaseParts, TheHeadOfATiedModelIsFinal) {
  auto a = arch::preset("llama-tiny");
  a.tied = true;
  const program::Program p = program::build(a, small_program(4, 1, 0).setting);
  int of_head = 0, of_embedding = 0;
  for (const auto& op : program::expand(p)) {
    const auto* part = std::get_if<program::Compute>(&op.step->op);
    if (part == nullptr || part->layer >= 0) continue;
    const bool embeds = part->part == arch::Part::kEmbed;
    EXPECT_EQ(parts_of(p, *op.step).group, embeds ? "embed" : "final");
    ++(embeds ? of_embedding : of_head);
  }
  EXPECT_GT(of_head, 0);
  EXPECT_GT(of_embedding, 0);
}

// Two tensor ranks exchange values of each layer. An exchange counts for the layer that makes the value or needs it.
TEST(PhaseParts, ExchangesOfRowsBelongToTheirLayer) {
  for (const bool cut : {false, true}) {
    program::Setting s = small_program(4, 1, 0).setting;
    s.mesh[mesh::Axis::kTp] = 2;
    s.sequence_parallel = cut;
    auto a = arch::preset("llama-tiny");
    a.layers = 4;
    a.tied = false;
    const program::Program p = program::build(a, s);
    std::map<std::string, int> exchanges;
    for (const auto& op : program::expand(p))
      if (const OpParts parts = parts_of(p, *op.step); program::axis_of(op.step->op) == program::Axis::kTp)
        ++exchanges[parts.group];
    for (const char* layer : {"layer 1", "layer 2", "layer 3"})
      EXPECT_EQ(exchanges[layer], exchanges["layer 0"]) << layer << (cut ? ", rows cut" : "");
    EXPECT_GT(exchanges["layer 0"], 0);
    EXPECT_GT(exchanges["final"], 0);
  }
}

// Each group is one that the model has. Only ops on the scalars and the batch of a step belong to no part of the model.
TEST(PhaseParts, OpsOfEveryProgramHaveAGroup) {
  for (const program::TestCase& of : program::all_test_cases()) {
    const program::Program p = program::build(of.arch, of.setting);
    Names groups{"embed", "final", "other"};
    for (std::int64_t layer = 0; layer < of.arch.layers; ++layer) {
      groups.insert(fmt::format("layer {}", layer));
      for (std::int64_t last = layer + 1; last < of.arch.layers; ++last)
        groups.insert(fmt::format("layers {}-{}", layer, last));
    }
    const Names without{"load_batch", "clip_scale", "reduce_scalars", "set_flag", "zero_fill", "set_clock"};
    for (const auto& op : program::expand(p)) {
      const OpParts parts = parts_of(p, *op.step);
      EXPECT_TRUE(groups.contains(parts.group)) << of.name << ": " << parts.kind << " in " << parts.group;
      EXPECT_TRUE(parts.group != "other" || without.contains(parts.kind)) << of.name << ": " << parts.kind;
    }
  }
}

// A rank with other seconds for each op, twice the same step.
Json told_seconds(const program::Program& p, std::int64_t ns_of_first) {
  const auto ops = program::expand(p);
  std::vector<std::int64_t> ns;
  for (std::size_t i = 0; i < ops.size(); ++i) ns.push_back(ns_of_first + static_cast<std::int64_t>(i) * 1'000'000);
  PhaseParts parts;
  parts.add_step(p, ops, ns);
  parts.add_step(p, ops, ns);
  parts.add({energy_phase_of(OutsideSteps::kStart), 5, 2'000'000'005});
  return parts.to_json();
}

double sum_of(const Json& table) {
  double sum = 0.0;
  for (const auto& [name, value] : table.items()) sum += value.get<double>();
  return sum;
}

TEST(PhaseParts, TellSecondsByPhaseKindAndGroup) {
  const program::Program p = small_program(4, 2, 1);
  const auto ops = program::expand(p);
  const Json told = told_seconds(p, 7'000'000);
  EXPECT_EQ(told["stage"], 1);
  EXPECT_DOUBLE_EQ(told["phases"]["start"].get<double>(), 2.0);
  std::map<std::string, double> want;
  for (std::size_t i = 0; i < ops.size(); ++i)
    want[energy_phases().at(static_cast<std::size_t>(parts_of(p, *ops[i].step).phase))] +=
        2.0 * (0.007 + 0.001 * static_cast<double>(i));
  ASSERT_EQ(told["ops"].size(), want.size());
  for (const auto& [phase, s] : want) {
    EXPECT_NEAR(sum_of(told["ops"][phase]), s, 1e-9) << phase;
    EXPECT_NEAR(sum_of(told["layers"][phase]), s, 1e-9) << phase;
  }
}

TEST(PhaseParts, RefuseAnotherProgram) {
  const program::Program p = small_program(4, 1, 0);
  PhaseParts parts;
  const auto ops = program::expand(p);
  parts.add_step(p, ops, std::vector<std::int64_t>(ops.size(), 1));
  EXPECT_THROW(parts.add_step(p, ops, {1, 2}), Error);
}

Json rank_json(int stage, double attention_s, double down_s, double start_s) {
  return {{"stage", stage},
          {"phases", {{"forward", attention_s + down_s}, {"start", start_s}}},
          {"ops", {{"forward", {{"attention", attention_s}, {"down", down_s}}}}},
          {"layers", {{"forward", {{stage == 0 ? "layer 0" : "layer 1", attention_s + down_s}}}}}};
}

// A phase has one power, so its parts have its joules by their seconds over all ranks.
TEST(DividePhases, JoulesAreInProportionToRankSeconds) {
  Json account{{"entries",
                {{"forward", {{"joules", 100.0}}},
                 {"start", {{"joules", 30.0}}},
                 {"base", {{"joules", 500.0}}},
                 {"unattributed", {{"joules", 7.0}}}}}};
  divide_phases(account, {rank_json(0, 1.0, 1.0, 2.0), rank_json(1, 2.0, 6.0, 4.0)});
  EXPECT_EQ(account["entries"]["forward"]["ops"], (Json{{"attention", 30.0}, {"down", 70.0}}));
  EXPECT_EQ(account["layers"], (Json{{"layer 0", 20.0}, {"layer 1", 80.0}}));
  EXPECT_EQ(account["stages"], (Json{{"0", 30.0}, {"1", 100.0}})) << "20 and 80 of forward, 10 and 20 of the start";
  for (const char* whole : {"start", "base", "unattributed"})
    EXPECT_FALSE(account["entries"][whole].contains("ops")) << whole;
}

TEST(DividePhases, PhasesOfOneEntryAreDividedTogether) {
  Json rank = rank_json(0, 1.0, 1.0, 0.0);
  rank["ops"]["backward"] = {{"attention", 6.0}};
  rank["layers"]["backward"] = {{"final", 6.0}};
  rank["phases"]["backward"] = 6.0;
  Json account{{"entries", {{"forward+backward", {{"joules", 80.0}}}}}};
  divide_phases(account, {rank});
  EXPECT_EQ(account["entries"]["forward+backward"]["ops"], (Json{{"attention", 70.0}, {"down", 10.0}}));
  EXPECT_EQ(account["layers"], (Json{{"final", 60.0}, {"layer 0", 20.0}}));
}

// The joules of a wait are not those of the ops that share its entry.
TEST(DividePhases, APhaseWithoutOpsIsAPartOfItsOwn) {
  Json rank = rank_json(0, 1.0, 1.0, 0.0);
  rank["phases"]["bubble"] = 6.0;
  Json account{{"entries", {{"forward+bubble", {{"joules", 80.0}}}}}};
  divide_phases(account, {rank});
  EXPECT_EQ(account["entries"]["forward+bubble"]["ops"], (Json{{"attention", 10.0}, {"bubble", 60.0}, {"down", 10.0}}));
  EXPECT_EQ(account["layers"], (Json{{"layer 0", 20.0}, {"other", 60.0}}));
  EXPECT_EQ(account["stages"], (Json{{"0", 80.0}}));
}

TEST(DividePhases, WithoutSecondsThereAreNoParts) {
  Json account{{"entries", {{"forward", {{"joules", 100.0}}}}}};
  divide_phases(account, {rank_json(0, 0.0, 0.0, 0.0)});
  EXPECT_FALSE(account["entries"]["forward"].contains("ops"));
  EXPECT_EQ(account["layers"], Json::object());
  EXPECT_EQ(account["stages"], Json::object());
}

}  // namespace
}  // namespace molen::train
