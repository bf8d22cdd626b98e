#include "plan/nearest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/test_sanitized.h"
#include "program/build/build.h"
#include "program/memory/memory.h"

namespace molen::plan {
namespace {

// Returns a model of four layers, or of two under a sanitizer, because the search through layouts of up to four stages
// would take a minute there.
arch::Architecture few_layers() {
  arch::Architecture a = arch::preset("llama-tiny");
  a.layers = kSanitized ? 2 : 4;
  return a;
}

program::Setting given() {
  program::Setting s;
  s.mesh[mesh::Axis::kDpShard] = 4;
  s.global_batch = 16;
  s.micro_batch = 4;
  s.sequence = 64;
  return s;
}

Bytes peak(const program::Setting& s) {
  return program::peak_of(program::build_stages(few_layers(), s));
}

int differences(const program::Setting& a, const program::Setting& b) {
  const auto x = choices_of(a), y = choices_of(b);
  int n = 0;
  for (std::size_t i = 0; i < x.size(); ++i) n += x[i] != y[i];
  return n;
}

// A time limit that no machine reaches.
const SearchLimits kUnhurried{3, Seconds(1e9)};
const SearchLimits kAll{100000, Seconds(1e9)};

TEST(Nearest, FitsAndDiffersLeast) {
  const auto s = given();
  const Bytes whole = peak(s);
  // With one byte less, a layout with one other choice fits.
  const auto nearest = nearest_that_fit(few_layers(), s, 4, {Bytes(whole.value - 1)}, kUnhurried);
  EXPECT_EQ(nearest.fitting.size(), 3u);
  for (const Fitting& f : nearest.fitting) {
    EXPECT_EQ(f.layout.setting.ranks(), 4);
    EXPECT_LT(f.need.total(), whole);
    EXPECT_EQ(f.need.total(), peak(f.layout.setting));
    EXPECT_EQ(differences(f.layout.setting, s), 1) << f.layout.name;
  }
  EXPECT_TRUE(std::is_sorted(nearest.fitting.begin(), nearest.fitting.end(),
                             [](const Fitting& a, const Fitting& b) { return a.need.total() < b.need.total(); }));
  EXPECT_LT(nearest.looked, nearest.all);
  // A setting that fits is its own nearest layout.
  const auto same = nearest_that_fit(few_layers(), s, 4, {whole}, kUnhurried).fitting;
  ASSERT_FALSE(same.empty());
  EXPECT_EQ(same.front().layout.setting, s);
}

// A search for fewer layouts finds the first layouts that a search for all finds.
TEST(Nearest, FewAreTheFirstOfAll) {
  const auto s = given();
  const Bytes room(peak(s).value - 1);
  const auto found = [&](std::size_t count) {
    return nearest_that_fit(few_layers(), s, 4, {room}, {count, Seconds(1e9)}).fitting;
  };
  const auto all = found(100000);
  ASSERT_GT(all.size(), 12u);
  for (std::size_t i = 1; i < all.size(); ++i)
    EXPECT_LE(std::pair(differences(all[i - 1].layout.setting, s), all[i - 1].need.total()),
              std::pair(differences(all[i].layout.setting, s), all[i].need.total()))
        << all[i].layout.name;
  for (const std::size_t count : kSanitized ? std::vector{5} : std::vector{1, 2, 5, 12}) {
    const auto few = found(count);
    ASSERT_EQ(few.size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(few[i].layout.setting, all[i].layout.setting) << few[i].layout.name << " and " << all[i].layout.name;
      EXPECT_EQ(few[i].need.total(), all[i].need.total());
    }
  }
}

// Compares the search with the plans of all layouts: neither the layouts that the search skips nor the shorter batch
// that it plans change the answer. Includes layouts in micro-batches of one sequence, which have four micro-batches or
// more.
TEST(Nearest, FindsAllThatTheWholePlansFit) {
  constexpr int kRanks = kSanitized ? 2 : 4;
  auto s = given();
  s.mesh[mesh::Axis::kDpShard] = kRanks;
  s.global_batch = 28;
  s.micro_batch = 2;
  for (const bool offload : {true, false}) {
    if (kSanitized && !offload) continue;
    s.offload = {offload, offload, offload, offload};
    s.zero = offload ? 3 : 0;
    std::map<std::string, Bytes> needs;
    std::vector<Bytes> sizes;
    for (const Layout& l : layouts_of(few_layers(), s, kRanks, {}, true)) {
      Bytes& need = needs[l.name];
      for (const auto& p : program::build_stages(few_layers(), l.setting)) {
        const auto plan = program::plan_memory(p);
        need = std::max(need, plan.peak + plan.host);
      }
      sizes.push_back(need);
    }
    std::sort(sizes.begin(), sizes.end());
    ASSERT_GT(sizes.back().value, sizes.front().value);
    for (const std::size_t rank : {std::size_t{0}, sizes.size() / 4, sizes.size() / 2, sizes.size() - 1}) {
      if (kSanitized && rank != sizes.size() / 2) continue;
      const Bytes memory = sizes[rank];
      std::map<std::string, Bytes> found, expected;
      for (const Fitting& f : nearest_that_fit(few_layers(), s, kRanks, {memory}, kAll).fitting)
        found[f.layout.name] = f.need.total();
      for (const auto& [name, need] : needs)
        if (need <= memory) expected[name] = need;
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(Nearest, ADeviceAndItsHostAreLimitsApart) {
  auto s = given();
  s.zero = 3;
  s.offload.optimizer = true;
  const auto plan = program::plan_memory(program::build(few_layers(), s));
  ASSERT_GT(plan.host.value, 0);
  EXPECT_TRUE(need_within(few_layers(), s, {plan.host, plan.peak}));
  EXPECT_FALSE(need_within(few_layers(), s, {Bytes(plan.host.value - 1), plan.peak}));
  EXPECT_FALSE(need_within(few_layers(), s, {plan.host, Bytes(plan.peak.value - 1)}));
  EXPECT_TRUE(need_within(few_layers(), s, {plan.host + plan.peak}));
  EXPECT_FALSE(need_within(few_layers(), s, {Bytes(plan.host.value + plan.peak.value - 1)}));
  if (kSanitized) return;  // the rest plans all layouts once more
  const MemoryRoom plenty{Bytes(std::int64_t{1} << 40), Bytes(std::int64_t{1} << 40)};
  const auto fitting = nearest_that_fit(few_layers(), s, 4, plenty, kAll).fitting;
  EXPECT_TRUE(std::any_of(fitting.begin(), fitting.end(), [](const Fitting& f) { return f.layout.setting.context(); }));
}

TEST(Nearest, KeepsTensorRanksOnANode) {
  const auto s = given();
  const auto nearest = nearest_that_fit(few_layers(), s, 1, {peak(s)}, kAll);
  EXPECT_FALSE(nearest.fitting.empty());
  for (const Fitting& f : nearest.fitting) EXPECT_EQ(f.layout.setting.tensor_ranks(), 1);
}

TEST(Nearest, SaysWhereNothingFits) {
  EXPECT_TRUE(nearest_that_fit(few_layers(), given(), 4, {Bytes(1000)}).fitting.empty());
  const std::string none = nearest_text(few_layers(), given(), 4, {Bytes(1000)}, kUnhurried);
  EXPECT_TRUE(
      none.starts_with("; none of the nearest layouts of 4 ranks fits either (every sharding, recompute and "
                       "micro-batch was tried); the nearest, "))
      << none;
  EXPECT_NE(none.find(" in micro-batches of 1, needs "), std::string::npos) << none;
  EXPECT_NE(none.find(" of it "), std::string::npos) << none;
  EXPECT_EQ(none.find("parallel.offload"), std::string::npos) << none;
  const std::string device = nearest_text(few_layers(), given(), 4, {Bytes(1000), Bytes(1000)}, kUnhurried);
  EXPECT_NE(device.find("parallel.offload puts states and activations into the host's memory"), std::string::npos);
  const std::string text = nearest_text(few_layers(), given(), 4, {Bytes(peak(given()).value - 1)}, kUnhurried);
  EXPECT_NE(text.find("nearest layouts that fit: "), std::string::npos) << text;
}

TEST(Nearest, OfASparseModelAreLayoutsThatCanBeBuilt) {
  arch::Architecture a = few_layers();
  a.experts = arch::Experts{.count = 4, .per_token = 2, .ffn = 24};
  program::Setting s;
  s.global_batch = s.micro_batch = 4, s.sequence = 16;
  const std::string none = nearest_text(a, s, 1, {Bytes(1000)}, kUnhurried);
  EXPECT_TRUE(none.starts_with("; none of the nearest layouts of 1 rank")) << none;
}

TEST(Nearest, EndsInTime) {
  const std::string text = nearest_text(few_layers(), given(), 4, {peak(given())}, {3, Seconds(0)});
  EXPECT_NE(text.find("fits either (in "), std::string::npos) << text;
  EXPECT_NE(text.find(" 0 of "), std::string::npos) << text;
}

// State that is kept on the host counts as host memory even before a plan is made: a layout may fit on a device that is
// too small for this state.
TEST(Nearest, WhatIsKeptIsCountedWhereItLies) {
  arch::Architecture a = few_layers();
  a.vocabulary = 512, a.layers = 12;
  auto s = given();
  s.mesh = mesh::kOne;
  s.micro_batch = 1, s.head_chunk = 64;
  s.offload.optimizer = s.offload.gradients = s.offload.parameters = true;
  const auto plan = program::plan_memory(program::build(a, s));
  ASSERT_GT(plan.host.value, plan.peak.value);
  EXPECT_TRUE(need_within(a, s, {plan.host, plan.peak}));
}

}  // namespace
}  // namespace molen::plan
