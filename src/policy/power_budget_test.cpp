#include "policy/power_budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>

#include "base/error.h"
#include "policy/test_step_machine.h"

namespace molen::policy {
namespace {

TEST(PowerBudget, ANewBudgetIsAnsweredByTheNextStep) {
  StepMachine machine;
  machine.stalls = 0.0;
  PowerBudget budget(machine.settings, Watts(350));
  std::size_t setting = 0;
  std::uint64_t n = 0;
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) setting = budget.next(machine.run(setting, n++));
  };
  run(1);
  EXPECT_GT(setting, 0u) << "the first step was over it";
  run(30);
  EXPECT_LE(machine.watts(setting), 350 * 1.01);
  EXPECT_GT(machine.watts(setting - 1), 350 * 0.98) << "the greatest setting within it";
  budget.set_budget(Watts(600));
  run(30);
  EXPECT_EQ(setting, 0u);
  // All settings between are known by now, or lie between known ones.
  for (const double watts : {450.0, 300.0, 400.0, 280.0}) {
    budget.set_budget(Watts(watts));
    run(1);
    EXPECT_LE(machine.watts(setting), 1.03 * watts) << watts;
    run(30);
    EXPECT_LE(machine.watts(setting), 1.01 * watts) << watts;
  }
  budget.set_budget(Watts(50));
  run(40);
  EXPECT_EQ(setting, machine.settings.size() - 1);
  EXPECT_TRUE(budget.out_of_reach());
}

TEST(PowerBudget, ASpikeIsForgottenAfterAWhile) {
  StepMachine machine;
  machine.stalls = 0.0;
  PowerBudget budget(machine.settings, Watts(2.0 * machine.watts(0)));
  std::size_t setting = budget.next({Seconds(1), Joules(5.0 * machine.watts(0))});
  EXPECT_GT(setting, 0u);
  for (std::uint64_t n = 0; n < 200; ++n) setting = budget.next(machine.run(setting, n));
  EXPECT_EQ(setting, 0u);
}

// A counter that changes every 100 ms gives most steps of 20 ms no joules, and every fifth those of all five.
TEST(PowerBudget, StepsShorterThanACountersUpdatesAreJudgedTogether) {
  PowerBudget budget({200.0, 100.0}, Watts(150));
  for (int n = 1; n <= 100; ++n) EXPECT_EQ(budget.next({Seconds(0.02), Joules(n % 5 == 0 ? 14.0 : 0.0)}), 0u) << n;
  EXPECT_NEAR(budget.expected(0)->value, 140.0, 1e-9);
  std::size_t setting = 0;
  for (int n = 1; n <= 25; ++n) setting = budget.next({Seconds(0.02), Joules(n % 5 == 0 ? 16.0 : 0.0)});
  EXPECT_EQ(setting, 1u);
}

TEST(PowerBudget, RefusesWhatMakesNoSenseAndWaitsForReadings) {
  EXPECT_THROW(PowerBudget({}, Watts(1)), UsageError);
  EXPECT_THROW(PowerBudget({1.0, 1.0}, Watts(1)), UsageError);
  EXPECT_THROW(PowerBudget({1.0}, Watts(0)), UsageError);
  PowerBudget budget({2.0, 1.0}, Watts(100));
  EXPECT_EQ(budget.next({Seconds(1), std::nullopt}), 0u);
  EXPECT_EQ(budget.next({Seconds(1), Joules(std::nan(""))}), 0u);
  EXPECT_FALSE(budget.expected(0));
  EXPECT_FALSE(budget.out_of_reach());
  EXPECT_EQ(budget.next({Seconds(1), Joules(150)}), 1u);
  EXPECT_NEAR(budget.expected(1)->value, 75.0, 1e-12);
  EXPECT_THROW(budget.set_budget(Watts(std::nan(""))), UsageError);
}

}  // namespace
}  // namespace molen::policy
