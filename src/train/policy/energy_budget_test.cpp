// Budgets on a run that is played: its steps, saves and validations take known joules.
#include "train/policy/energy_budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace molen::train {
namespace {

constexpr double kStepJ = 100.0, kSaveJ = 20.0, kValidationJ = 7.0, kStartJ = 50.0;

struct Played {
  config::Config config;
  EnergyBudget::Length length{1000, 10, 50, 0.0, 0};
  const cluster::RunSite* site = nullptr;
  std::string coverage = "gpu only";
  double step_j = kStepJ;
  std::optional<Json> before;  // state of a checkpoint
  double used = 0.0;           // of all attempts
  std::int64_t step = 0;

  std::vector<Json> events;
  std::vector<std::int64_t> saves, validations;
  bool stopped = false;
  std::optional<store::AtEnd> kwh, kg;
  std::string reason;
  Json end, state;

  // Plays an attempt as the trainer's loop does; returns the step after which it ends.
  std::int64_t play(std::int64_t until = 1 << 30) {
    EnergyBudget budget(config, length, coverage, site, [] { return 1.8e9; });
    if (before) budget.restore(*before, "x");
    double attempt = kStartJ, time = 0.0;
    used += kStartJ;
    stopped = budget.used_up(step, spent());
    while (!stopped && step < length.total_steps && step < until) {
      ++step;
      used += step_j, attempt += step_j, time += 1.0;
      budget.took({step, time, attempt, step_j, 2.0 + 3.0 / std::sqrt(static_cast<double>(step)), spent()});
      kwh = budget.kwh_at_end(), kg = budget.kg_co2e_at_end();
      const EnergyBudget::Wanted wanted = budget.wanted();
      if (wanted.shrink_to > 0) budget.shrink(), length.total_steps = wanted.shrink_to;
      stopped = wanted.stop;
      const bool last = stopped || step == length.total_steps || step == until;
      const auto outside = [&](double joules, double seconds) { used += joules, attempt += joules, time += seconds; };
      if (length.validate_every > 0 && (step % length.validate_every == 0 || wanted.validation || last)) {
        validations.push_back(step);
        outside(kValidationJ, 0.7), budget.validated(0.7);
      }
      if (step % length.save_every == 0 || wanted.save || last) {
        state = Json::parse(budget.state().dump());
        saves.push_back(step);
        outside(kSaveJ, 2.0), budget.saved(2.0);
      }
      for (Json& event : budget.take_events()) events.push_back(std::move(event));
    }
    reason = budget.reason();
    end = budget.end(step, spent());
    return step;
  }

 private:
  Recorder::Spent spent() const {
    Recorder::Spent all{used, {}, 0.0};
    if (site) all.kg = used * site->pue.value * site->intensity.value;
    return all;
  }
};

bool has(const Json& event, const std::string& text) {
  return event.at("text").get<std::string>().find(text) != std::string::npos;
}

TEST(EnergyBudget, TheForecastIsWhatTheRunTakes) {
  Played run;
  run.length.total_steps = 130, run.length.validate_every = 40;
  run.play(60);
  const double in_middle = run.kwh->value;
  Played whole = run;
  whole.before.reset(), whole.step = 0, whole.used = 0.0;
  whole.play();
  EXPECT_NEAR(in_middle * 3.6e6, whole.used, 1e-6 * whole.used);
  EXPECT_NEAR(whole.kwh->value * 3.6e6, whole.used, 1e-6 * whole.used);
  EXPECT_LE(run.kwh->low, run.kwh->value);
  EXPECT_TRUE(run.events.empty()) << "without a budget nothing is said";
}

TEST(EnergyBudget, StopsAfterTheLastStepThatIsPaidFor) {
  Played run;
  run.config.energy.energy_budget = Joules(12345.0);
  EXPECT_EQ(run.play(), 122);
  EXPECT_TRUE(run.stopped);
  EXPECT_LE(run.used, 12345.0);
  EXPECT_GT(run.used + kStepJ, 12345.0);
  // The first save is asked for as soon as the budget is known not to do, because the last one must be paid for.
  EXPECT_EQ(run.saves, (std::vector<std::int64_t>{21, 50, 100, 122}));
  ASSERT_EQ(run.events.size(), 1u);
  const Json& said = run.events[0];
  EXPECT_EQ(said["action"], "exceeds");
  EXPECT_EQ(said["paid_steps"], 122);
  EXPECT_EQ(said["planned_steps"], 1000);
  EXPECT_DOUBLE_EQ(said["step_j"].get<double>(), kStepJ);
  EXPECT_DOUBLE_EQ(said["save_j"].get<double>(), kSaveJ);
  EXPECT_TRUE(has(said, "energy.energy_budget = 12345 J: pays for 122 steps of 1000 steps")) << said["text"];
  EXPECT_TRUE(has(said, "counted: gpu only")) << said["text"];
  EXPECT_TRUE(has(said, "points of the loss after step 10 are too few")) << said["text"];
  EXPECT_NE(run.reason.find("122 of 1000 steps"), std::string::npos) << run.reason;
  EXPECT_NE(run.reason.find("1000 steps reach a loss of 2.09"), std::string::npos) << run.reason;
  EXPECT_NEAR(run.end["used_j"].get<double>(), run.used, 1e-9);
}

TEST(EnergyBudget, ABudgetThatDoesIsNotMentioned) {
  Played run;
  run.length.total_steps = 100;
  run.config.energy.energy_budget = Joules(kStartJ + 100 * kStepJ + 2 * kSaveJ + 1e-6);  // and the rounding of sums
  EXPECT_EQ(run.play(), 100);
  EXPECT_FALSE(run.stopped);
  EXPECT_TRUE(run.events.empty());
  run = {};
  run.length.total_steps = 100;
  run.config.energy.energy_budget = Joules(kStartJ + 100 * kStepJ + 2 * kSaveJ - 1.0);
  EXPECT_EQ(run.play(), 99);
}

TEST(EnergyBudget, AResumeWithTheSameBudgetDoesNothingAndWithAGreaterOneGoesOn) {
  Played run;
  run.config.energy.energy_budget = Joules(12345.0);
  ASSERT_EQ(run.play(), 122);
  run.before = run.state;
  EXPECT_EQ(run.play(), 122) << "what the first attempt measured is known at once";
  EXPECT_TRUE(run.stopped);
  run.config.energy.energy_budget = Joules(20000.0);
  run.saves.clear();
  const std::int64_t last = run.play();
  EXPECT_GT(last, 190);
  EXPECT_EQ(run.saves.front(), 150) << "a save was measured before";
  EXPECT_LE(run.used, 20000.0);
  EXPECT_GT(run.used + kStepJ, 20000.0);
}

TEST(EnergyBudget, TheValidationAtTheEndIsPaidForToo) {
  Played run;
  run.length.validate_every = 500;
  run.config.energy.energy_budget = Joules(12345.0);
  const std::int64_t last = run.play();
  EXPECT_EQ(run.validations, (std::vector<std::int64_t>{21, last}));
  EXPECT_LE(run.used, 12345.0);
  EXPECT_GT(run.used + kStepJ, 12345.0);
}

TEST(EnergyBudget, ShrinkEndsTheScheduleWhereTheBudgetDoes) {
  Played run;
  run.config.train.until = config::tokens(64000);
  run.config.energy.energy_budget = Joules(50000.0);
  run.config.energy.on_budget = "shrink";
  const std::int64_t last = run.play();
  EXPECT_FALSE(run.stopped) << "the shorter schedule was done";
  EXPECT_EQ(last, run.length.total_steps);
  EXPECT_LE(run.used, 50000.0);
  EXPECT_GT(run.used + 2 * kStepJ, 50000.0);
  ASSERT_EQ(run.events.size(), 1u);
  EXPECT_EQ(run.events[0]["action"], "shrink");
  EXPECT_EQ(run.events[0]["step"], 22);
  const auto shrunk = shrunk_of({{"budget", run.state}}, "x");
  ASSERT_TRUE(shrunk);
  EXPECT_EQ(shrunk->after_step, 22);
  EXPECT_EQ(shrunk->from, "64000 tokens");
  EXPECT_EQ(shrunk->to, last);
  // A second, tighter budget shortens it again, and the first length is still known.
  run.step = 100, run.used = 40000.0, run.before = run.state;
  run.config.train.until = config::steps(last);
  const std::int64_t again = run.play();
  EXPECT_LT(again, last);
  EXPECT_EQ(shrunk_of({{"budget", run.state}}, "x")->from, "64000 tokens");
  // One that goes back to another length knows nothing of it.
  run.length.total_steps = 2000, run.before = run.state, run.config.energy.energy_budget.reset();
  run.play(again + 1);
  EXPECT_FALSE(shrunk_of({{"budget", run.state}}, "x"));
}

TEST(EnergyBudget, AScheduleIsNotShortenedIntoItsWarmUp) {
  Played run;
  run.length.warmup_steps = 300;
  run.config.energy.energy_budget = Joules(12345.0);
  run.config.energy.on_budget = "shrink";
  EXPECT_EQ(run.play(), 122);
  EXPECT_TRUE(run.stopped);
  ASSERT_EQ(run.events.size(), 1u);
  EXPECT_TRUE(has(run.events[0], "within the 300 steps of warm-up")) << run.events[0]["text"];
}

TEST(EnergyBudget, EmissionsFollowTheSite) {
  cluster::RunSite site;
  site.pue = {2.0, 0.0, "t"}, site.intensity = {1e-3, 0.0, "t"};
  Played run;
  run.site = &site;
  run.config.energy.co2_budget = config::Kilograms(24.69);  // of 12345 J
  EXPECT_EQ(run.play(), 122);
  EXPECT_TRUE(run.stopped);
  EXPECT_NEAR(run.kg->value, 2e-3 * 3.6e6 * run.kwh->value, 1e-9);
  // A grid that has become cleaner pays for more.
  const double begin = 1.8e9;
  site.series.emplace(
      std::vector<cluster::IntensitySeries::Value>{{begin, 1e-3}, {begin + 1.0, 1e-6}, {begin + 1e6, 1e-6}}, "t");
  Played cleaner;
  cleaner.site = &site;
  cleaner.config.energy.co2_budget = config::Kilograms(24.69);
  cleaner.play(60);
  EXPECT_LT(cleaner.kg->value, run.kg->value / 5.0);
}

TEST(EnergyBudget, SlowLetsItsPolicySearchOnceTheBudgetDoesNotDo) {
  Played run;
  run.config.energy.energy_budget = Joules(12345.0);
  run.config.energy.on_budget = "slow";
  EXPECT_EQ(run.play(), 122) << "and stops where slowing is not enough";
  ASSERT_EQ(run.events.size(), 1u);
  EXPECT_EQ(run.events[0]["action"], "slow");
  EXPECT_EQ(run.events[0]["step"], 22);
}

TEST(EnergyBudget, SaysWhetherTheSlowerSettingIsEnough) {
  for (const auto& [joules, said] : {std::pair{150.0, "is not enough: pays for"}, {60.0, "is expected to keep it"}}) {
    config::Config config;
    config.energy.energy_budget = Joules(50000.0);
    config.energy.on_budget = "slow";
    EnergyBudget budget(config, {500, 10, 50, 0.0, 0}, "", nullptr, [] { return 0.0; });
    double used = 0.0;
    std::vector<Json> events;
    for (std::int64_t step = 1; step <= 200; ++step) {
      const double of_step = budget.slowing() ? joules : 200.0;
      used += of_step;
      budget.took({step, static_cast<double>(step), used, of_step, 3.0, {used, {}, 0.0}});
      EXPECT_EQ(budget.slowing(), step >= 22);
      if (budget.wanted().save) budget.saved(1.0);
      budget.slow_chosen(step > 40);
      for (Json& event : budget.take_events()) events.push_back(std::move(event));
    }
    ASSERT_EQ(events.size(), 2u);
    EXPECT_TRUE(has(events[1], said)) << events[1]["text"];
  }
}

TEST(EnergyBudget, AMeterThatIsSilentIsMentionedAndABudgetThatIsUsedStopsAtOnce) {
  config::Config config;
  config.energy.energy_budget = Joules(1000.0);
  EnergyBudget budget(config, {500, 10, 50, 0.0, 0}, "", nullptr, [] { return 0.0; });
  std::vector<Json> events;
  for (std::int64_t step = 1; step <= 30; ++step) {
    budget.took({step, static_cast<double>(step), {}, {}, 3.0, {}});
    EXPECT_FALSE(budget.wanted().stop);
    for (Json& event : budget.take_events()) events.push_back(std::move(event));
  }
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["step"], 20);
  budget.took({31, 31.0, 1000.0, {}, 3.0, {1000.0, {}, 0.0}});
  EXPECT_TRUE(budget.wanted().stop) << "though no step was measured";
}

TEST(EnergyBudget, APredictionAboveTheBudgetIsWarnedOfWithBothFigures) {
  config::Config config;
  config.energy.energy_budget = Joules(3.6e6);
  EnergyBudget budget(config, {1000, 10, 50, 0.0, 0}, "", nullptr, [] { return 0.0; });
  const std::string text = budget.warning(7200.0, 200, {1.8e6, {}, 0.0}, "dgx-a100");
  EXPECT_NE(text.find("energy.energy_budget: 1 kWh is less than the 2.1 kWh that the run takes by the prediction of "
                      "dgx-a100 (800 steps of 7200 J, with 500 Wh before"),
            std::string::npos)
      << text;
  EXPECT_EQ(budget.warning(2000.0, 200, {1.8e6, {}, 0.0}, "dgx-a100"), "");
}

TEST(EnergyBudget, RefusesADamagedStateWithItsOrigin) {
  EnergyBudget budget({}, {1000, 10, 50, 0.0, 0}, "", nullptr, [] { return 0.0; });
  for (const char* bad : {"[]", R"({"step":{"joules":"x"}})", R"({"save":{"joules":1}})",
                          R"({"step":{"joules":1,"seconds":1,"mean_variance":0,"step_variance":0,"degrees":0}})",
                          R"({"shrunk":{"after_step":5,"from":"9 steps","to":5}})"}) {
    try {
      budget.restore(Json::parse(bad), "step-000000004");
      ADD_FAILURE() << bad;
    } catch (const UsageError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("step-000000004: budget")) << error.what();
    }
  }
}

TEST(RequireIntensity, ABudgetOfEmissionsNeedsASite) {
  config::Config config;
  EXPECT_NO_THROW(require_intensity(config, {}));
  config.energy.co2_budget = config::Kilograms(1.0);
  EXPECT_THROW(require_intensity(config, {}), UsageError);
  EXPECT_NO_THROW(require_intensity(config, "dgx-a100"));
  config.energy.site = "NL";
  EXPECT_NO_THROW(require_intensity(config, {}));
}

}  // namespace
}  // namespace molen::train
