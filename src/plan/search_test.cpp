#include "plan/search.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/test_sanitized.h"
#include "plan/layouts.h"
#include "plan/resolve.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "sim/attended.h"
#include "sim/forecast.h"
#include "sim/simulate.h"

namespace molen::plan {
namespace {

// Two nodes, or one under a sanitizer, where planning a layout takes fifteen times as long.
constexpr int kRanksOfNode = 8, kRanks = (kSanitized ? 1 : 2) * kRanksOfNode;

struct Small {
  arch::Architecture arch = arch::preset("llama-tiny");
  program::Setting base;
  cluster::Cluster on = cluster::find("dgx-a100");
  sim::DescribedCosts costs{on, sim::Factors::shipped()};
  Small() {
    base.compute = DType::kBF16, base.kernels = arch::Kernels::kAten;
    base.global_batch = 64, base.sequence = 256;
  }
  SearchResult run(Objective objective, const LayoutLimits& limits, int ranks = kRanks) const {
    return search(arch, base, ranks, kRanksOfNode, objective, limits, costs, sim::Factors::shipped());
  }
};

LayoutLimits all_of(std::int64_t bytes = std::int64_t{1} << 40) {
  return {.memory = Bytes(bytes), .shown = 3, .simulated = 1 << 20};
}

TEST(Search, CandidatesAreDistinctLayoutsOfAllRanks) {
  const Small small;
  std::set<std::string> seen;
  const auto all = candidates_of(small.arch, small.base, kRanks, kRanksOfNode);
  for (const Candidate& c : all) {
    const program::Setting s = setting_of(c, small.base, kRanks);
    EXPECT_EQ(s.ranks(), kRanks);
    EXPECT_TRUE(share_node(s, mesh::Axis::kTp, kRanksOfNode));
    EXPECT_TRUE(
        seen.insert(fmt::format("{} micro {} {}", name_with_variant(s), s.micro_batch, program::sharding_text(s)))
            .second)
        << name_with_variant(s);
  }
  EXPECT_GT(all.size(), kSanitized ? 150u : 300u);
}

// The choices of variants are there where they matter, and only there.
TEST(Search, VariantsFollowTheirLayout) {
  const Small small;
  std::set<std::string> schedules;
  std::size_t variants = 0, inside = 0;
  Candidate main;
  for (const Candidate& c : candidates_of(small.arch, small.base, 32, 8)) {
    schedules.insert(fmt::format("{} {}", name_of(c.schedule), c.chunks));
    if (!c.variant) {
      main = c;
      continue;
    }
    ++variants, inside += c.stages_inside ? 1 : 0;
    EXPECT_EQ(std::tie(c.tensor, c.stages, c.chunks, c.zero, c.shards, c.micro_batch, c.schedule),
              std::tie(main.tensor, main.stages, main.chunks, main.zero, main.shards, main.micro_batch, main.schedule));
    EXPECT_TRUE(c.unit_layers == 1 || c.zero >= 2);
    EXPECT_TRUE(c.prefetch == 1 || c.zero == 3);
    EXPECT_TRUE(!c.stages_inside || c.stages > 1);
    EXPECT_LE(c.unit_layers * c.stages * c.chunks, small.arch.layers);
  }
  EXPECT_GT(variants, 0u);
  EXPECT_GT(inside, 0u);
  EXPECT_TRUE(schedules.contains("zb-v 2"));
  arch::Architecture deep = small.arch;
  deep.layers = 16;
  const auto all = candidates_of(deep, small.base, kRanks, kRanksOfNode);
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const Candidate& c) { return c.chunks == 8; }));
}

// Returns how many candidates have each of the choices that variants have one at a time.
std::map<std::string, int> single_choices(const std::vector<Candidate>& all) {
  std::map<std::string, int> count;
  for (const Candidate& c : all) {
    const bool partly = c.recompute.any() && (c.recompute.every == 2 || c.recompute.has(arch::Part::kActivation)) &&
                        c.recompute != program::Recompute::full();
    const std::map<std::string, bool> has{{"rows whole", c.tensor > 1 && !c.sequence_parallel},
                                          {"two pieces", c.tensor_chunks == 2},
                                          {"ring", c.context_form == program::ContextForm::kRing},
                                          {"partly again", partly},
                                          {"on the host", c.offload.any()}};
    int sum = 0;
    for (const auto& [name, there] : has) sum += there, count[name] += there;
    EXPECT_LE(sum, c.variant ? 1 : 0);
  }
  return count;
}

// Each of them is there where it can be: pieces on tensor ranks of dense models, a ring on context ranks, and states on
// the host where the host's stream has their kernels.
TEST(Search, VariantsHaveOtherFormsOneAtATime) {
  Small small;
  std::map<std::string, int> count = single_choices(candidates_of(small.arch, small.base, kRanks, kRanksOfNode));
  for (const char* name : {"rows whole", "two pieces", "partly again", "on the host"})
    EXPECT_GT(count[name], 0) << name;
  EXPECT_EQ(count["ring"], 0) << "the sequence is short";
  small.base.sequence = small.arch.max_sequence = 32768;
  EXPECT_GT(single_choices(candidates_of(small.arch, small.base, kRanks, kRanksOfNode))["ring"], 0);
  small.base.optimizer = "muon";
  for (const Candidate& c : candidates_of(small.arch, small.base, kRanks, kRanksOfNode))
    EXPECT_FALSE(c.offload.optimizer);
}

// A model whose states do not fit on the devices has them on the host, where the host has the memory.
TEST(Search, WhatFitsOnlyWithTheHostIsFound) {
  Small small;
  small.base.global_batch = 4;
  std::int64_t least = std::int64_t{1} << 40;  // that a layout without them takes
  for (const Candidate& c : candidates_of(small.arch, small.base, 2, 2))
    if (!c.offload.any())
      least = std::min(
          least,
          program::peak_of(program::build_stages(small.arch, setting_of(c, small.base, 2), nullptr, false)).value);
  const LayoutLimits limits = all_of(least - 1);
  const SearchResult found = small.run(Objective::kTime, limits, 2);
  ASSERT_FALSE(found.best.empty());
  for (const Simulation& s : found.best) EXPECT_TRUE(s.candidate.offload.any()) << name_with_variant(s.setting);
  small.on.node.host_memory.value = 1e6;
  small.costs = sim::DescribedCosts(small.on, sim::Factors::shipped());
  EXPECT_TRUE(small.run(Objective::kTime, limits, 2).best.empty());
}

// The best of a search is the best of all layouts that fit, although most of them were never simulated.
TEST(Search, FindsTheBestOfAllThatFit) {
  Small small;
  small.arch.layers = 2;
  small.base.global_batch = 4;
  const std::int64_t room = std::int64_t{40} << 20;
  constexpr int kFew = kSanitized ? 2 : 4;
  std::map<Objective, double> best{{Objective::kTime, 1e300}, {Objective::kEnergy, 1e300}, {Objective::kMemory, 1e300}};
  for (const Candidate& c : candidates_of(small.arch, small.base, kFew, kFew)) {
    auto programs = program::build_stages(small.arch, setting_of(c, small.base, kFew), nullptr, false);
    Bytes peak;
    for (const auto& p : programs) peak = std::max(peak, program::planned_peak(p).device);
    if (peak.value > room) continue;
    const program::Stages stages(std::move(programs));
    const auto timelines = sim::simulate(stages, small.costs);
    const auto energy = sim::energy_of(stages, timelines, small.on, sim::Factors::shipped(), 0.1);
    best[Objective::kTime] = std::min(best[Objective::kTime], sim::step_seconds(timelines));
    best[Objective::kEnergy] = std::min(best[Objective::kEnergy], energy.computers().value);
    best[Objective::kMemory] = std::min(best[Objective::kMemory], static_cast<double>(peak.value));
  }
  for (const Objective objective : {Objective::kTime, Objective::kEnergy, Objective::kMemory}) {
    const SearchResult found =
        search(small.arch, small.base, kFew, kFew, objective, all_of(room), small.costs, sim::Factors::shipped());
    ASSERT_FALSE(found.best.empty());
    EXPECT_TRUE(found.complete);
    EXPECT_GT(found.too_large + found.too_large_kept, 0u);

    EXPECT_DOUBLE_EQ(found.best.front().of(objective), best[objective]) << name_of(objective);
    EXPECT_EQ(found.all, found.too_large_kept + found.too_large + found.refused + found.simulated + found.excluded);
    EXPECT_TRUE(std::is_sorted(found.best.begin(), found.best.end(),
                               [&](const auto& a, const auto& b) { return a.of(objective) < b.of(objective); }));
  }
}

// Layouts whose bound exceeds the best are never simulated, and the best is that of a search without bounds' help: one
// that keeps all layouts.
TEST(Search, BoundsExcludeLayouts) {
  Small small;
  small.arch.layers = 2, small.arch.hidden = 8192, small.arch.ffn = 32768, small.arch.heads = 64;
  small.arch.kv_heads = 64, small.arch.head_dim = 128, small.arch.max_sequence = 2048;
  small.base.sequence = 256, small.base.global_batch = 16;
  LayoutLimits limits = all_of();
  limits.shown = 1;
  const SearchResult found = small.run(Objective::kTime, limits, 2);
  limits.shown = 1 << 20;
  const SearchResult all = small.run(Objective::kTime, limits, 2);
  EXPECT_TRUE(found.complete);
  EXPECT_GT(found.excluded, 0u);
  EXPECT_EQ(found.all, found.too_large_kept + found.too_large + found.refused + found.simulated + found.excluded);
  EXPECT_EQ(all.excluded, 0u);
  EXPECT_EQ(found.best.front().step_s, all.best.front().step_s);
}

// A bound never exceeds what the simulation gives, for any model, batch and layout.
RC_GTEST_PROP(Search, BoundsAreLowerBounds, ()) {
  Small small;
  small.on = cluster::find(*rc::gen::elementOf(std::vector<std::string>{"dgx-a100", "frontier", "juwels-booster"}));
  // Links of a hundredth of the speed, where exchanges decide.
  if (*rc::gen::arbitrary<bool>()) small.on.tiers.front().bandwidth.value *= 0.01;
  small.costs = sim::DescribedCosts(small.on, sim::Factors::shipped());
  small.base.optimizer = *rc::gen::elementOf(std::vector<std::string>{"adamw", "lion", "muon", "adafactor"});
  small.base.compute = *rc::gen::element(DType::kBF16, DType::kF32);
  const int width = *rc::gen::element(1, 10);  // narrow products are slow, wide ones come near to the bound
  small.arch.layers = *rc::gen::inRange(2, 12);
  small.arch.hidden = 64 * width * *rc::gen::inRange(1, 40), small.arch.heads = 8, small.arch.kv_heads = 8;
  small.arch.head_dim = small.arch.hidden / 8, small.arch.ffn = 64 * width * *rc::gen::inRange(1, 80);
  small.arch.vocabulary = 512 * *rc::gen::inRange(1, 100);
  small.base.sequence = 64 << *rc::gen::inRange(0, 4);
  small.arch.max_sequence = 1024;
  small.base.global_batch = 16 << *rc::gen::inRange(0, 3);
  small.base.document_mask = *rc::gen::arbitrary<bool>();
  const double attended = small.base.document_mask ? 0.01 * *rc::gen::inRange(1, 101) : 1.0;
  const auto all = candidates_of(small.arch, small.base, kRanks, kRanksOfNode);
  const Candidate& c = all.at(static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(all.size()))));
  const program::Setting s = setting_of(c, small.base, kRanks);
  std::vector<program::Program> programs;
  try {
    programs = program::build_stages(small.arch, s);
  } catch (const UsageError&) {
    RC_DISCARD("cannot be built");
  }
  Bytes peak;
  for (const auto& p : programs) peak = std::max(peak, program::planned_peak(p).device);
  sim::attend_within_documents(programs, attended, true);
  const program::Stages stages(std::move(programs));
  const auto timelines = sim::simulate(stages, small.costs);
  const Bound bound = Bounds(small.arch, small.base, kRanks, small.costs, sim::Factors::shipped(), attended).of(c);
  const auto energy = sim::energy_of(stages, timelines, small.on, sim::Factors::shipped(), 0.1);
  RC_ASSERT(bound.step_s <= sim::step_seconds(timelines));
  RC_ASSERT(bound.energy_j <= energy.computers().value);
  RC_ASSERT(bound.memory_bytes <= static_cast<double>(peak.value));
}

// With a document mask, the search finds the best of the layouts whose attention has what the documents leave of it,
// and the data widens their intervals. The documents have to be known.
TEST(Search, DocumentsLeaveLessOfAttention) {
  Small small;
  small.arch.layers = 2;
  small.base.global_batch = kSanitized ? 2 : 4, small.base.sequence = 1024;
  constexpr int kFew = 2;
  const auto found = [&](const std::optional<data::Attended>& attended) {
    small.base.document_mask = attended.has_value();
    return search(small.arch, small.base, kFew, kFew, Objective::kTime, all_of(), small.costs, sim::Factors::shipped(),
                  attended);
  };
  const Simulation whole = found(std::nullopt).best.front(), few = found(data::Attended{0.1, 0.0, 100}).best.front(),
                   uneven = found(data::Attended{0.1, 0.3, 100}).best.front();
  EXPECT_LT(few.step_s, whole.step_s);
  EXPECT_EQ(few.step_s, uneven.step_s);
  EXPECT_GT(uneven.spread, few.spread);
  EXPECT_GT(uneven.energy.spread, few.energy.spread);
  double best = 1e300;
  small.base.document_mask = true;
  for (const Candidate& c : candidates_of(small.arch, small.base, kFew, kFew)) {
    auto programs = program::build_stages(small.arch, setting_of(c, small.base, kFew), nullptr, false);
    sim::attend_within_documents(programs, 0.1, true);
    best = std::min(best, sim::step_seconds(sim::simulate(program::Stages(std::move(programs)), small.costs)));
  }
  EXPECT_EQ(few.step_s, best);
  EXPECT_THROW(small.run(Objective::kTime, all_of(), kFew), Error);
}

// Cost and CO2 of a step are those of the calculus for its energy, and their searches take the same way.
TEST(Search, CostAndCo2FollowFromTheEnergyAtTheSite) {
  const Small small;
  const cluster::Site& site = small.on.site;
  LayoutLimits limits = all_of();
  limits.simulated = 12;
  const SearchResult by_energy = small.run(Objective::kEnergy, limits, 4);
  const double joules = by_energy.best.front().energy.computers().value;
  for (const auto& [objective, per_joule] :
       {std::pair{Objective::kCost, site.price.value}, {Objective::kCo2, site.intensity.value}}) {
    const SearchResult found = small.run(objective, limits, 4);
    EXPECT_EQ(found.simulated, by_energy.simulated) << name_of(objective);
    EXPECT_EQ(found.best.front().step_s, by_energy.best.front().step_s);
    EXPECT_DOUBLE_EQ(found.best.front().of(objective), joules * site.pue.value * per_joule);
    EXPECT_EQ(objective_from_name(std::string(name_of(objective))), objective);
  }
  cluster::Cluster free = small.on;
  free.site.price.value = 0.0;
  EXPECT_NO_THROW(require_figure(Objective::kCost, small.on));
  EXPECT_NO_THROW(require_figure(Objective::kCo2, free));
  try {
    require_figure(Objective::kCost, free);
    ADD_FAILURE() << "a free site has no cheapest layout";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("site.price_eur_per_kwh"), std::string::npos) << error.what();
  }
}

// A price of device hours makes time the larger part of the cost; electricity is paid beside it.
TEST(Search, DeviceHoursArePartOfTheCost) {
  Small small;
  LayoutLimits limits = all_of();
  limits.simulated = 12;
  const double of_electricity = small.run(Objective::kCost, limits, 4).best.front().of(Objective::kCost);
  small.on.site.device_hour = cluster::Figure{2.0 / 3600.0, 0.1, "a contract"};
  small.costs = sim::DescribedCosts(small.on, sim::Factors::shipped());
  const Simulation best = small.run(Objective::kCost, limits, 4).best.front();
  EXPECT_EQ(best.step_s, small.run(Objective::kTime, limits, 4).best.front().step_s);
  EXPECT_DOUBLE_EQ(best.site.device_hours.value, 4 * best.step_s * 2.0 / 3600.0);
  EXPECT_DOUBLE_EQ(best.of(Objective::kCost), best.site.electricity.value + best.site.device_hours.value);
  EXPECT_GE(best.site.electricity.value, of_electricity);
  // The reasons are of time then, and a site whose electricity is free has a cheapest layout.
  EXPECT_FALSE(is_of_energy(Objective::kCost, small.on.site));
  EXPECT_TRUE(is_of_energy(Objective::kCo2, small.on.site));
  small.on.site.price.value = 0.0;
  EXPECT_NO_THROW(require_figure(Objective::kCost, small.on));
  // A price of 0 is none.
  small.on.site.device_hour->value = 0.0;
  EXPECT_TRUE(is_of_energy(Objective::kCost, small.on.site));
  EXPECT_THROW(require_figure(Objective::kCost, small.on), UsageError);
}

TEST(Search, StopsAtItsLimitsAndSaysSo) {
  const Small small;
  LayoutLimits limits = all_of();
  limits.simulated = 4, limits.shown = 4;
  const SearchResult few = small.run(Objective::kTime, limits);
  EXPECT_EQ(few.simulated, 4u);
  EXPECT_FALSE(few.complete);
  limits = all_of(1000);
  const SearchResult none = small.run(Objective::kTime, limits);
  EXPECT_TRUE(none.best.empty());
  EXPECT_EQ(none.too_large_kept + none.too_large, none.all);
  limits = all_of();
  limits.watts = 10.0;
  limits.simulated = 50;
  EXPECT_TRUE(small.run(Objective::kTime, limits).best.empty());
  EXPECT_THROW(objective_from_name("tme"), UsageError);
}

// A limit of the power is one of each node: of two nodes that draw as much as it, none is left out.
TEST(Search, LimitOfThePowerIsOfANode) {
  const Small small;
  LayoutLimits limits = all_of();
  limits.simulated = limits.shown = 5;
  const SearchResult free = small.run(Objective::kTime, limits);
  std::vector<double> watts;  // of each node
  for (const Simulation& s : free.best) watts.push_back(s.energy.computers().value / s.step_s * kRanksOfNode / kRanks);
  ASSERT_EQ(watts.size(), 5u);
  limits.watts = *std::max_element(watts.begin(), watts.end()) * (1 + 1e-9);
  EXPECT_EQ(small.run(Objective::kTime, limits).best.size(), 5u);
  limits.watts = *std::min_element(watts.begin(), watts.end()) * (1 - 1e-9);
  EXPECT_TRUE(small.run(Objective::kTime, limits).best.empty());
}

// A limit of the run leaves out the layouts beyond it and no other ones: the rest is ranked as without it.
TEST(Search, LimitsOfTheRunLeaveOutWhatExceedsThem) {
  const Small small;
  LayoutLimits limits = all_of();
  limits.simulated = limits.shown = 20;
  limits.run_steps = 1000.0;
  const SearchResult free = small.run(Objective::kMemory, limits);
  std::vector<double> seconds, joules;
  for (const Simulation& s : free.best) seconds.push_back(s.step_s), joules.push_back(s.site.energy.value);
  ASSERT_EQ(seconds.size(), 20u);
  std::sort(seconds.begin(), seconds.end()), std::sort(joules.begin(), joules.end());
  const auto within = [](const SearchResult& found, const auto& figure, double most) {
    return std::all_of(found.best.begin(), found.best.end(),
                       [&](const Simulation& s) { return figure(s) * 1000.0 <= most; });
  };
  LayoutLimits days = limits, kwh = limits;
  days.run_s = 1000.0 * seconds[9], kwh.run_j = 1000.0 * joules[9];
  const SearchResult faster = small.run(Objective::kMemory, days), saving = small.run(Objective::kMemory, kwh);
  EXPECT_TRUE(within(
      faster, [](const Simulation& s) { return s.step_s; }, *days.run_s));
  EXPECT_TRUE(within(
      saving, [](const Simulation& s) { return s.site.energy.value; }, *kwh.run_j));
  EXPECT_GT(faster.too_long, 0u);
  EXPECT_GT(saving.too_much_energy, 0u);
  EXPECT_EQ(faster.best.size() + faster.too_long, faster.simulated);
  EXPECT_EQ(saving.best.size() + saving.too_much_energy, saving.simulated);
  // Nothing is simulated that exceeds a limit by its bound already.
  days.run_s = 1e-9, kwh.run_j = 1e-9;
  for (const LayoutLimits& none : {days, kwh}) {
    const SearchResult found = small.run(Objective::kTime, none);
    EXPECT_EQ(found.beyond_run, found.all);
    EXPECT_EQ(found.simulated, 0u);
    EXPECT_TRUE(found.complete);
  }
}

// The front of a search that simulated some layouts is the one found by comparing all pairs of them.
TEST(Search, ParetoFrontIsThatOfAllSimulatedLayouts) {
  const Small small;
  LayoutLimits limits = all_of();
  limits.simulated = limits.shown = 40;
  const SearchResult found = small.run(Objective::kMemory, limits);
  ASSERT_EQ(found.best.size(), 40u);
  const auto figures = [](const Simulation& s) {
    return Bound{s.step_s, s.energy.computers().value, static_cast<double>(s.memory.value)};
  };
  std::set<std::vector<double>> wanted, front;
  for (const Simulation& s : found.best)
    if (std::none_of(found.best.begin(), found.best.end(),
                     [&](const Simulation& other) { return dominates(other, figures(s)); }))
      wanted.insert({s.step_s, s.energy.computers().value, static_cast<double>(s.memory.value)});
  for (const Simulation& s : found.front)
    EXPECT_TRUE(front.insert({s.step_s, s.energy.computers().value, static_cast<double>(s.memory.value)}).second);
  EXPECT_EQ(front, wanted);
  EXPECT_GT(front.size(), 1u);
  EXPECT_LT(front.size(), 40u);
  EXPECT_TRUE(std::is_sorted(found.front.begin(), found.front.end(),
                             [](const auto& a, const auto& b) { return a.step_s < b.step_s; }));
  // Layouts that were not simulated and are below the front by their bounds are counted.
  EXPECT_FALSE(found.complete);
  std::size_t open = 0;
  const Bounds bounds(small.arch, small.base, kRanks, small.costs, sim::Factors::shipped());
  for (const Candidate& c : candidates_of(small.arch, small.base, kRanks, kRanksOfNode))
    open += std::none_of(found.front.begin(), found.front.end(), [&](const Simulation& s) {
      const Bound b = bounds.of(c), f = figures(s);
      return f.step_s <= b.step_s && f.energy_j <= b.energy_j && f.memory_bytes <= b.memory_bytes;
    });
  EXPECT_GE(open, found.front_open);  // some of them were simulated
  EXPECT_GE(found.front_open + found.simulated, open);
  EXPECT_GT(found.front_open, 0u);
}

TEST(Search, ALayoutDominatesWhatTakesMoreOfEverything) {
  Simulation s;
  s.step_s = 1.0, s.memory = Bytes(4), s.energy.devices = Joules(2.0), s.energy.hosts = Joules(1.0);
  EXPECT_TRUE(dominates(s, {1.5, 3.0, 4.0}));
  EXPECT_TRUE(dominates(s, {1.0, 3.5, 4.0}));
  EXPECT_TRUE(dominates(s, {1.0, 3.0, 5.0}));
  EXPECT_FALSE(dominates(s, {1.0, 3.0, 4.0}));  // an equal one
  EXPECT_FALSE(dominates(s, {0.9, 9.0, 9.0}));
  EXPECT_FALSE(dominates(s, {9.0, 2.9, 9.0}));
  EXPECT_FALSE(dominates(s, {9.0, 9.0, 3.0}));
}

TEST(Search, SaysWhyALayoutIsSlower) {
  const Small small;
  LayoutLimits limits = all_of();
  limits.simulated = limits.shown = 5;
  const Simulation best = small.run(Objective::kTime, limits).best.front();
  const auto beside = [&](const Simulation& loser, Objective objective = Objective::kTime) {
    return reasons_beside(loser, best, is_of_energy(objective, small.on.site));
  };
  EXPECT_TRUE(beside(best).empty());
  EXPECT_TRUE(beside(best, Objective::kEnergy).empty());
  Simulation slower = best;
  slower.phases.bubble_s += 2.0 * slower.step_s;
  ASSERT_EQ(beside(slower).size(), 1u);
  EXPECT_EQ(beside(slower).front().name, "bubble");
  EXPECT_TRUE(beside(slower, Objective::kCo2).empty());  // it takes no more energy
  // The largest reason comes first, wherever the phases stand.
  slower.phases.phase_s.front() += 1.0 * slower.step_s;
  slower.phases.phase_s.back() += 3.0 * slower.step_s;
  const auto reasons = beside(slower);
  ASSERT_EQ(reasons.size(), 3u);
  const auto keys = program::phase_keys();
  EXPECT_EQ(reasons[0].name, keys[program::kNumPhases - 1]);
  EXPECT_EQ(reasons[1].name, "bubble");
  EXPECT_EQ(reasons[2].name, keys[0]);
  EXPECT_EQ(reasons[2].seconds, slower.phases.phase_s.front() - best.phases.phase_s.front());
  // By energy, the same layouts have other reasons.
  slower.where.phase_j.front() += 500.0 * best.energy.computers().value;
  slower.energy.hosts += Joules(100.0 * best.energy.computers().value);
  const auto joules = beside(slower, Objective::kCost);
  ASSERT_EQ(joules.size(), 2u);
  EXPECT_EQ(joules[0].name, keys[0]);
  EXPECT_EQ(joules[1].name, "hosts");
  // The kind of op that works the longest more is named: in a phase, and on the stream that is waited for.
  slower.ops.of_phase.front()["forward down"] += 0.8 * slower.step_s;
  slower.ops.of_phase.front()["forward up"] += 0.2 * slower.step_s;
  slower.exposed_s[0] += 4.0 * slower.step_s;
  slower.ops.of_stream[0]["all_reduce"] += 5.0 * slower.step_s;
  const auto with_ops = beside(slower);
  ASSERT_EQ(with_ops.size(), 3u);
  EXPECT_EQ(with_ops[0].name, fmt::format("waiting for {}", name_of(program::kCommStreams[0])));
  EXPECT_EQ(with_ops[0].op, "all_reduce");
  EXPECT_NEAR(with_ops[0].op_seconds, 5.0 * slower.step_s, 1e-9);
  EXPECT_EQ(with_ops[1].op, "") << "no op of the last phase works longer";
  slower.phases.phase_s.front() += 9.0 * slower.step_s;
  EXPECT_EQ(beside(slower)[0].op, "") << "a tenth of the reason is needed";
  slower.ops.of_phase.front()["forward down"] += 0.5 * slower.step_s;
  EXPECT_EQ(beside(slower)[0].op, "forward down");
  EXPECT_EQ((Reason{"forward", 1.2, 3400.0, "forward down", 0.9}.text(false)),
            "forward +1.20 s (+3.4 kJ; forward down +900.0 ms)");
  EXPECT_EQ((Reason{"bubble", 1.2, 3400.0}.text(false)), "bubble +1.20 s (+3.4 kJ)");
  EXPECT_EQ((Reason{"bubble", 1.2, -3400.0}.text(true)), "bubble -3.4 kJ (+1.20 s)");
}

// The seconds of each kind of op are those of a simulation of every op, on the stage that computes for the longest
// time.
TEST(Search, SecondsOfOpsAreThoseOfTheSimulation) {
  const Small small;
  LayoutLimits limits = all_of();
  limits.simulated = limits.shown = 6;
  std::size_t communication = 0;
  for (const Simulation& found : small.run(Objective::kTime, limits).best) {
    const sim::Forecast step(program::build_stages(small.arch, found.setting, nullptr, false), small.costs, true);
    const std::size_t stage = step.busiest_stage();
    const auto& ops = step.stages().ops(stage);
    std::vector<std::map<std::string, double>> phases(program::kNumPhases), streams(program::kCommStreams.size());
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const double seconds = step.timelines()[stage].ops[i].seconds();
      const std::string kind = program::kind_of(ops[i].step->op);
      phases[static_cast<std::size_t>(ops[i].step->phase)][kind] += seconds;
      const auto stream = std::ranges::find(program::kCommStreams, ops[i].step->stream);
      if (stream != program::kCommStreams.end())
        streams[static_cast<std::size_t>(stream - program::kCommStreams.begin())][kind] += seconds, ++communication;
    }
    const auto expect_equal = [](const auto& a, const auto& b) {
      ASSERT_EQ(a.size(), b.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(a[i].size(), b[i].size());
        for (const auto& [kind, seconds] : a[i]) EXPECT_NEAR(seconds, b[i].at(kind), 1e-9 * seconds + 1e-15) << kind;
      }
    };
    expect_equal(found.ops.of_phase, phases);
    expect_equal(found.ops.of_stream, streams);
  }
  EXPECT_GT(communication, 0u);
}

// The joules of the phases add up to the devices' energy of the step, so nothing of it has no reason.
TEST(Search, JoulesOfPhasesAddUpToTheEnergy) {
  const Small small;
  std::size_t pipelines = 0;
  const auto all = candidates_of(small.arch, small.base, kRanks, kRanksOfNode);
  for (std::size_t i = 0; i < all.size(); i += all.size() / 24) {
    std::vector<program::Program> programs;
    try {
      programs = program::build_stages(small.arch, setting_of(all[i], small.base, kRanks), nullptr, false);
    } catch (const UsageError&) {
      continue;
    }
    const program::Stages stages(std::move(programs));
    const auto timelines = sim::simulate(stages, small.costs);
    const auto energy = sim::energy_of(stages, timelines, small.on, sim::Factors::shipped(), 0.1);
    const auto where = sim::where_joules(stages, timelines, small.on, sim::Factors::shipped());
    const double sum = std::accumulate(where.phase_j.begin(), where.phase_j.end(), 0.0);
    // Sums over at most 1e6 ops in another order: 1e6 x 2^-53 of the sum.
    EXPECT_NEAR(sum, energy.devices.value, 1.2e-10 * energy.devices.value);
    for (const double joules : where.exposed_j) EXPECT_GE(joules, 0.0);
    pipelines += stages.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(pipelines, 0u);
}

// A bound that leaves out a part of the state would still be a lower bound, but it would exclude too little.
TEST(Search, BoundsCountTheWholeState) {
  const Small small;
  const Bounds bounds(small.arch, small.base, kRanks, small.costs, sim::Factors::shipped());
  const auto n = static_cast<double>(arch::num_parameters(small.arch));
  const auto bytes_of = [&](Candidate c) { return bounds.of(c).memory_bytes / n; };
  // In bf16: weights of 2 bytes, gradients of 4, and a master copy and two moments of 4 each.
  EXPECT_DOUBLE_EQ(bytes_of({.zero = 0}), 2 + 4 + 12);
  EXPECT_DOUBLE_EQ(bytes_of({.zero = 1}), 2 + 4 + 12.0 / kRanks);
  EXPECT_DOUBLE_EQ(bytes_of({.zero = 2, .shards = 8}), 2 + 4.0 / 8 + 12.0 / 8);
  EXPECT_DOUBLE_EQ(bytes_of({.zero = 3, .shards = 8}), (2 + 4 + 12) / 8.0);
  EXPECT_DOUBLE_EQ(bytes_of({.tensor = 2, .stages = 2, .zero = 1}), (2 + 4 + 12.0 / (kRanks / 4)) / 4);
}

// The keys of each candidate give its setting again, as the trainer resolves them.
TEST(Search, KeysAreThoseOfTheLayout) {
  const Small small;
  for (const Candidate& c : candidates_of(small.arch, small.base, kRanks, kRanksOfNode)) {
    if (c.micro_batch > 2) continue;
    const program::Setting wanted = setting_of(c, small.base, kRanks);
    config::Config config = config::parse(
        "[model]\npreset = \"llama-tiny\"\n[data]\nsequence_length = 256\n[batch]\nglobal = 64\n[math]\nthreads = 1\n",
        "t");
    for (const auto& [key, value] : keys_of(c, wanted)) config::assign(config, key, value, {});
    program::Setting s;
    try {
      s = resolve_setting(config, small.arch,
                          {.ranks = kRanks, .local_ranks = kRanksOfNode, .cuda = true, .threads = 1});
    } catch (const UsageError& error) {
      ADD_FAILURE() << name_with_variant(wanted) << ": " << error.what();
      continue;
    }
    EXPECT_EQ(name_with_variant(s), name_with_variant(wanted));
    EXPECT_EQ(s.order, wanted.order);
    EXPECT_EQ(s.offload, wanted.offload);
    EXPECT_EQ(s.recompute, wanted.recompute);
    EXPECT_EQ(s.context_form, wanted.context_form);
    EXPECT_EQ(s.tensor_chunks, wanted.tensor_chunks);
    EXPECT_EQ(s.sequence_parallel, wanted.sequence_parallel);
    EXPECT_EQ(s.mesh, wanted.mesh);
    EXPECT_EQ(s.micro_batch, wanted.micro_batch);
  }
}

}  // namespace
}  // namespace molen::plan
