#include "policy/run_budget.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/rng.h"

namespace molen::policy {
namespace {

StepUse constant(double joules, double seconds = 1.0) {
  return {{joules, seconds}, 0.0, 0.0, RecentSteps::kBlocks - 1};
}

TEST(RecentSteps, NothingIsKnownOfFewOrShortSteps) {
  RecentSteps recent;
  for (std::size_t i = 1; i < RecentSteps::kLeastSteps; ++i) {
    recent.add({5.0, 1.0});
    EXPECT_FALSE(recent.use()) << i;
  }
  recent.add({5.0, 1.0});
  ASSERT_TRUE(recent.use());
  EXPECT_DOUBLE_EQ(recent.use()->mean.joules, 5.0);
  EXPECT_DOUBLE_EQ(recent.use()->mean.seconds, 1.0);
  EXPECT_NEAR(recent.use()->mean_variance, 0.0, 1e-24);
  RecentSteps quick;
  for (int i = 0; i < 100; ++i) quick.add({5.0, 0.004});
  EXPECT_FALSE(quick.use()) << "0.4 s are too short for a counter";
  for (int i = 0; i < 30; ++i) quick.add({5.0, 0.004});
  EXPECT_TRUE(quick.use());
}

TEST(RecentSteps, OldStepsAreForgotten) {
  RecentSteps recent;
  for (int i = 0; i < 500; ++i) recent.add({900.0, 1.0});
  for (std::size_t i = 0; i < RecentSteps::kSteps; ++i) recent.add({7.0, 1.0});
  EXPECT_DOUBLE_EQ(recent.use()->mean.joules, 7.0);
  RecentSteps quick;  // steps of 10 ms are kept for 10 s
  for (int i = 0; i < 500; ++i) quick.add({900.0, 0.01});
  for (int i = 0; i < 500; ++i) quick.add({7.0, 0.01});
  EXPECT_GT(quick.use()->mean.joules, 400.0);
}

// The interval holds the sum of later steps as often as it says, also for a counter that changes in every fifth step
// alone.
TEST(RecentSteps, TheIntervalHoldsWhatComes) {
  for (const bool coarse : {false, true}) {
    int held = 0;
    constexpr int kRuns = 300, kMeasured = 100, kMore = 400;
    for (std::uint64_t seed = 0; seed < kRuns; ++seed) {
      RecentSteps recent;
      double pending = 0.0, later = 0.0;
      for (int n = 0; n < kMeasured + kMore; ++n) {
        const double joules = 100.0 + 10.0 * normal_at(stream_key(seed, "step"), static_cast<std::uint64_t>(n));
        pending += joules;
        const bool changes = !coarse || n % 5 == 4;
        const double seen = changes ? std::exchange(pending, 0.0) : 0.0;
        if (n < kMeasured)
          recent.add({seen, 1.0});
        else
          later += seen;
      }
      const Range sum = needed({*recent.use(), {}, {}}, {kMeasured, true, 1 << 20, 0.0, 0}, kMeasured + kMore).joules;
      held += sum.low <= later && later <= sum.high ? 1 : 0;
    }
    // 95 % of 300 are 285, with a standard deviation of 3.8.
    EXPECT_GE(held, 285 - 4 * 4) << coarse;
    EXPECT_LT(held, kRuns) << coarse << ": an interval that always holds says nothing";
  }
}

TEST(Needed, CountsSavesAndValidationsOnce) {
  const RunCosts costs{constant(100.0), Use{20.0, 3.0}, Use{7.0, 2.0}};
  const auto joules = [&](RunAhead ahead, std::int64_t last) { return needed(costs, ahead, last).joules.value; };
  // Saved after steps 10, 20, ..., validated after 4, 8, ...; both after the last one.
  EXPECT_EQ(joules({0, false, 10, 0.0, 4}, 10), 1000.0 + 20.0 + 3 * 7.0);
  EXPECT_EQ(joules({0, false, 10, 0.0, 4}, 11), 1100.0 + 2 * 20.0 + 3 * 7.0);
  EXPECT_EQ(joules({0, false, 10, 0.0, 0}, 11), 1100.0 + 2 * 20.0) << "without validation";
  EXPECT_EQ(joules({10, false, 10, 0.0, 4}, 11), 100.0 + 20.0 + 7.0);
  EXPECT_EQ(joules({10, true, 10, 0.0, 4}, 11), 100.0 + 2 * 20.0 + 7.0) << "the save after step 10 is to come";
  EXPECT_EQ(joules({10, true, 10, 0.0, 4}, 10), 20.0 + 7.0) << "once, though it is due and the last";
  EXPECT_EQ(joules({12, true, 10, 0.0, 4}, 12), 20.0 + 7.0);
  // By the clock: a step takes a second.
  EXPECT_EQ(joules({0, false, 0, 10.0, 0}, 25), 2500.0 + 3 * 20.0);
  EXPECT_EQ(needed(costs, {0, false, 10, 0.0, 4}, 10).seconds, 10.0 + 3.0 + 3 * 2.0);
  // A checkpoint or validation that was not measured counts as nothing.
  EXPECT_EQ(needed({constant(100.0), {}, {}}, {0, false, 10, 0.0, 4}, 11).joules.value, 1100.0);
}

RunAhead some_ahead() {
  RunAhead ahead{*rc::gen::inRange<std::int64_t>(0, 50), *rc::gen::arbitrary<bool>(), 0, 0.0, 0};
  if (*rc::gen::arbitrary<bool>())
    ahead.save_every = *rc::gen::inRange<std::int64_t>(1, 40);
  else
    ahead.save_every_s = *rc::gen::inRange(1, 40);
  if (*rc::gen::arbitrary<bool>()) ahead.validate_every = *rc::gen::inRange<std::int64_t>(1, 40);
  return ahead;
}

RunCosts some_costs(bool noisy) {
  RunCosts costs{constant(*rc::gen::inRange(1, 200), *rc::gen::inRange(1, 5)), {}, {}};
  if (noisy) costs.step.mean_variance = *rc::gen::inRange(0, 30), costs.step.step_variance = *rc::gen::inRange(0, 900);
  if (*rc::gen::arbitrary<bool>()) costs.save = Use{1.0 * *rc::gen::inRange(0, 500), 2.0};
  if (*rc::gen::arbitrary<bool>()) costs.validation = Use{1.0 * *rc::gen::inRange(0, 500), 3.0};
  return costs;
}

RC_GTEST_PROP(Needed, GrowsWithTheLastStepAndHasItsValueBetweenItsBounds, ()) {
  const RunCosts costs = some_costs(true);
  const RunAhead ahead = some_ahead();
  double value = -1.0, high = -1.0;
  for (std::int64_t last = ahead.step; last < ahead.step + 100; ++last) {
    const Range joules = needed(costs, ahead, last).joules;
    RC_ASSERT(joules.low <= joules.value && joules.value <= joules.high);
    RC_ASSERT(joules.low >= 0.0);
    RC_ASSERT(joules.value >= value);
    RC_ASSERT(joules.high >= high);
    value = joules.value, high = joules.high;
  }
}

RC_GTEST_PROP(LastPaid, IsTheLastStepWithinWhatIsLeft, ()) {
  const RunCosts costs = some_costs(true);
  const RunAhead ahead = some_ahead();
  const std::int64_t last = ahead.step + *rc::gen::inRange<std::int64_t>(0, 300);
  const Bound bound = *rc::gen::element(Bound::kValue, Bound::kHigh);
  Left left;
  if (*rc::gen::arbitrary<bool>()) left.joules = *rc::gen::inRange(-100, 40000);
  if (*rc::gen::arbitrary<bool>()) left.kg = *rc::gen::inRange(-10, 4000);
  // An intensity that rises with time: kg a joule after s seconds.
  const Emissions emissions = [](double joules, double seconds) { return joules * (0.05 + 1e-5 * seconds); };
  const auto paid = [&](std::int64_t step) {
    const Ahead need = needed(costs, ahead, step);
    const double joules = bound == Bound::kHigh ? need.joules.high : need.joules.value;
    return (!left.joules || joules <= *left.joules) && (!left.kg || emissions(joules, need.seconds) <= *left.kg);
  };
  const std::int64_t found = last_paid(left, costs, ahead, last, bound, emissions);
  RC_ASSERT(found >= ahead.step && found <= last);
  RC_ASSERT(found == ahead.step || paid(found));
  RC_ASSERT(found == last || !paid(found + 1));
  RC_ASSERT(last_paid(left, costs, ahead, last, Bound::kHigh, emissions) <=
            last_paid(left, costs, ahead, last, Bound::kValue, emissions));
  const Ahead whole = needed(costs, ahead, last);
  RC_ASSERT(surely_exceeds(left, costs, ahead, last, emissions) ==
            ((left.joules && whole.joules.low > *left.joules) ||
             (left.kg && emissions(whole.joules.low, whole.seconds) > *left.kg)));
  // More that is left never pays for less.
  Left more = left;
  if (more.joules) *more.joules += *rc::gen::inRange(0, 1000);
  if (more.kg) *more.kg += *rc::gen::inRange(0, 100);
  RC_ASSERT(last_paid(more, costs, ahead, last, bound, emissions) >= found);
}

// A run whose steps take the same, and which stops when no further step is surely paid for, books no joule beyond its
// budget, and could not have done one step more.
RC_GTEST_PROP(LastPaid, ARunOfConstantStepsKeepsItsBudgetAndUsesIt, ()) {
  RunCosts costs = some_costs(false);
  const double save = costs.save ? costs.save->joules : 0.0,
               validation = costs.validation ? costs.validation->joules : 0.0;
  RunAhead rhythm = some_ahead();
  rhythm.step = 0, rhythm.pending = true;
  rhythm.save_every = *rc::gen::inRange<std::int64_t>(1, 40);
  const std::int64_t total = *rc::gen::inRange<std::int64_t>(1, 300);
  const double budget = costs.step.mean.joules + save + validation + *rc::gen::inRange(0, 40000);
  double used = 0.0;
  for (std::int64_t step = 1;; ++step) {
    used += costs.step.mean.joules;
    rhythm.step = step;
    const bool stop = step == total || last_paid({budget - used, {}}, costs, rhythm, total, Bound::kHigh) == step;
    if (stop && step < total) RC_ASSERT(used + needed(costs, rhythm, step + 1).joules.value > budget);
    if (rhythm.validate_every > 0 && (stop || step % rhythm.validate_every == 0)) used += validation;
    if (stop || step % rhythm.save_every == 0) used += save;
    if (stop) break;
  }
  RC_ASSERT(used <= budget);
}

}  // namespace
}  // namespace molen::policy
