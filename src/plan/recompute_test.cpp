#include "plan/recompute.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/test_golden.h"
#include "config/config.h"
#include "plan/resolve.h"
#include "program/build/build.h"
#include "program/memory/memory.h"
#include "program/verify/verify.h"

namespace molen::plan {
namespace {

arch::Architecture twelve_layers() {
  arch::Architecture a = arch::preset("llama-tiny");
  a.name = "custom";
  a.layers = 12;
  a.vocabulary = 500;
  return a;
}

program::Setting base() {
  program::Setting s;
  s.global_batch = 8;
  s.micro_batch = 4;
  s.sequence = 128;
  return s;
}

Bytes peak_of(const program::Setting& base, const std::string& recompute) {
  program::Setting s = base;
  s.recompute = program::recompute_from_text(recompute);
  return program::plan_memory(program::build(twelve_layers(), s)).peak;
}

// More recomputation needs less memory. The test compares planned peaks, which a run's measured peaks equal op by op
// (prove/proof.h).
TEST(Recompute, PlannedPeaksFallAsMoreIsComputedAgain) {
  for (const int tensor : {1, 2}) {
    program::Setting s = base();
    s.mesh[mesh::Axis::kTp] = tensor;
    s.sequence_parallel = tensor > 1;
    for (const std::vector<std::string>& chain :
         {std::vector<std::string>{"none", "activation", "attention,activation", "attention,norm_up,activation",
                                   "norm_qkv,attention,norm_up,activation", "full"},
          std::vector<std::string>{"none", "full/12", "full/6", "full/4", "full/3", "full/2", "full"}}) {
      Bytes last;
      for (const std::string& recompute : chain) {
        const Bytes peak = peak_of(s, recompute);
        fmt::print("tp {}, recompute {:<38} planned peak {:>10} bytes\n", tensor, recompute, peak.value);
        EXPECT_TRUE(recompute == "none" || peak < last) << recompute;
        last = peak;
      }
    }
  }
}

TEST(Recompute, TheLadderIsSortedByWhatItCosts) {
  const auto ladder = recompute_ladder(twelve_layers(), base());
  EXPECT_FALSE(ladder.front().recompute.any());
  EXPECT_EQ(ladder.front().again, Flops(0));
  EXPECT_EQ(ladder.back().recompute, program::Recompute::full());
  for (std::size_t i = 1; i < ladder.size(); ++i) EXPECT_GE(ladder[i].again, ladder[i - 1].again);
  for (const auto& rung : ladder)
    fmt::print("recompute {:<38} {:>6.1f} MFLOP again\n", program::text_of(rung.recompute), rung.again.value / 1e6);
}

TEST(Recompute, NormsOfQueriesAndKeysAreOnTheLadderOfModelsThatHaveThem) {
  auto with = twelve_layers();
  with.qk_norm = arch::QkNorm::kHead;
  const auto has_norms = [](const RecomputeChoice& choice) {
    return program::text_of(choice.recompute).find("qk_norm") != std::string::npos;
  };
  EXPECT_TRUE(std::ranges::any_of(recompute_ladder(with, base()), has_norms));
  EXPECT_TRUE(std::ranges::none_of(recompute_ladder(twelve_layers(), base()), has_norms));
}

// Each budget gets the cheapest choice that fits; a budget of one byte less than the smallest plan gets none.
TEST(Recompute, ABudgetGetsTheCheapestThatFits) {
  const arch::Architecture a = twelve_layers();
  auto ladder = recompute_ladder(a, base());
  Bytes least(INT64_MAX), most;
  for (auto& rung : ladder) {
    rung.peak = peak_of(base(), program::text_of(rung.recompute));
    least = std::min(least, rung.peak);
    most = std::max(most, rung.peak);
  }
  EXPECT_FALSE(recompute_within(a, base(), most).recompute.any());
  std::set<std::string> chosen;
  for (const auto& limit : ladder)
    for (const std::int64_t less : {0, 1}) {
      const Bytes budget(limit.peak.value - less);
      if (budget < least) continue;
      const RecomputeChoice choice = recompute_within(a, base(), budget);
      chosen.insert(program::text_of(choice.recompute));
      EXPECT_LE(choice.peak, budget);
      EXPECT_EQ(choice.peak, peak_of(base(), program::text_of(choice.recompute)));
      for (const auto& rung : ladder)
        EXPECT_TRUE(rung.again >= choice.again || rung.peak > budget)
            << program::text_of(rung.recompute) << " fits too, where " << program::text_of(choice.recompute)
            << " was chosen";
    }
  EXPECT_GE(chosen.size(), 6u);
  try {
    recompute_within(a, base(), Bytes(least.value - 1));
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(least.value)), std::string::npos) << error.what();
  }
}

config::Config recomputing(const std::string& recompute) {
  return config::load(std::nullopt, {"schedule.warmup=\"0 steps\"", "model.preset=llama-tiny", "precision.compute=fp32",
                                     "math.threads=1", "parallel.recompute=" + recompute});
}

// The next run can read every choice that a budget may write into the configuration: the choice names only parts that
// the model has.
TEST(Recompute, EveryRungOfASparseModelIsOneOfItsConfiguration) {
  using Keys = std::vector<std::string>;
  const Keys sparse{"model.experts=4", "model.experts_per_token=2", "model.expert_ffn=32"};
  for (const auto& [more, parts] : {std::pair{Keys{},
                                              "expert_activation|expert_up,expert_activation|"
                                              "dispatch,expert_up,expert_activation"},
                                    {Keys{"model.dense_layers=1"},
                                     "activation,expert_activation|norm_up,activation,expert_up,expert_activation|"
                                     "norm_up,activation,dispatch,expert_up,expert_activation"},
                                    {Keys{"model.shared_experts=1"},
                                     "shared_act,expert_activation|shared_up,shared_act,expert_up,expert_activation|"
                                     "shared_up,shared_act,dispatch,expert_up,expert_activation"}}) {
    Keys sets{"schedule.warmup=\"0 steps\"", "model.preset=llama-tiny", "precision.compute=fp32", "math.threads=1"};
    sets.insert(sets.end(), sparse.begin(), sparse.end());
    sets.insert(sets.end(), more.begin(), more.end());
    auto plain = config::load(std::nullopt, sets);
    const auto a = resolve_architecture(plain);
    std::set<std::string> rungs;
    for (const RecomputeChoice& rung : recompute_ladder(a, resolve_setting(plain, a, {}))) {
      const std::string text = program::text_of(rung.recompute);
      EXPECT_TRUE(rungs.insert(text).second) << text << " appears twice";
      auto again = sets;
      again.push_back("parallel.recompute=" + text);
      auto c = config::load(std::nullopt, again);
      EXPECT_EQ(resolve_setting(c, a, {}).recompute, rung.recompute);
      if (rung.recompute.any()) {
        EXPECT_GT(rung.moved, Bytes(0)) << text << " computes nothing again";
      }
    }
    for (std::size_t begin = 0; begin != std::string::npos;) {
      const std::string all = parts;
      const std::size_t end = all.find('|', begin);
      EXPECT_TRUE(rungs.contains(all.substr(begin, end - begin))) << all.substr(begin, end - begin);
      begin = end == std::string::npos ? end : end + 1;
    }
  }
}

program::Recompute resolved(const std::string& recompute) {
  auto c = recomputing(recompute);
  return resolve_setting(c, resolve_architecture(c), {}).recompute;
}

TEST(Recompute, TheConfigurationSaysIt) {
  EXPECT_EQ(resolved("none"), program::Recompute{});
  EXPECT_EQ(resolved("full"), program::Recompute::full());
  EXPECT_EQ(resolved("full/2"), program::Recompute::full(2));
  EXPECT_EQ(program::text_of(resolved("[\"activation\",\"attention\"]")), "attention,activation");
  EXPECT_EQ(program::text_of(resolved("norm_up,activation/2")), "norm_up,activation/2");
  for (const char* bad : {"[\"down\"]", "[\"atention\"]", "[\"embed\"]", "full/1000"}) {
    try {
      resolved(bad);
      ADD_FAILURE() << "accepted " << bad;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("parallel.recompute"), std::string::npos) << error.what();
    }
  }
}

// A budget is decided once: the configuration then contains the choice that runs, and resolves to the same choice
// again.
TEST(Recompute, ABudgetIsWrittenBack) {
  const GoldenMessages golden;
  auto c = recomputing("none");
  const auto a = resolve_architecture(c);
  const auto ladder = recompute_ladder(a, resolve_setting(c, a, {}));
  program::Setting s = resolve_setting(c, a, {});
  s.recompute = program::Recompute::full();
  const Bytes full = program::plan_memory(program::build(a, s)).peak;
  c = recomputing("none");
  const Bytes none = program::plan_memory(program::build(a, resolve_setting(c, a, {}))).peak;
  ASSERT_LT(full, none);
  for (const Bytes budget : {none, Bytes(none.value - 1), full}) {
    c = recomputing("\"" + config::print(budget) + "\"");
    const program::Recompute chosen = resolve_setting(c, a, {}).recompute;
    EXPECT_NE(c.parallel.recompute.mode, config::Recompute::Mode::kBudget);
    EXPECT_EQ(chosen.any(), budget < none);
    EXPECT_NE(c.where("parallel.recompute").find("derived"), std::string::npos) << c.where("parallel.recompute");
    auto again = config::from_json(config::to_json(c), "stored");
    EXPECT_EQ(resolve_setting(again, a, {}).recompute, chosen);
  }
  c = recomputing("\"1 GB\"");
  resolve_setting(c, a, {});
  EXPECT_EQ(c.where("parallel.recompute"),
            fmt::format("derived: a plan of {} within 1000000000 B: parallel.recompute", human(none)));
  c = recomputing("\"1 kB\"");
  EXPECT_NOTED(resolve_setting(c, a, {}), UsageError);
}

}  // namespace
}  // namespace molen::plan
