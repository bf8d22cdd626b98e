#include "ledger/counter_changes.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace molen::ledger {
namespace {

constexpr std::uint64_t kRange = std::uint64_t{1} << 32;

// RAPL's register: 32 bits of 2^-14 J.
Counter rapl() {
  Counter counter;
  counter.joules_per_tick = 0x1p-14;
  counter.period = kRange;
  counter.update_s = 0.001;
  counter.most_watts = 1000;
  counter.wrap_s = 262;
  return counter;
}

Counter nvml() {
  Counter counter;
  counter.joules_per_tick = 1e-3;
  counter.update_s = 0.1;
  return counter;
}

Sample good(double time_s, std::uint64_t ticks) {
  return {time_s, ticks, false};
}

TEST(CounterChanges, AnUpdateLiesBetweenTwoSamplesOrWithinOnePeriodOfUpdates) {
  CounterChanges polled(nvml());
  EXPECT_FALSE(polled.add(good(0.00, 100)));
  const auto first = polled.add(good(0.01, 150));
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->from) << "the update before the first sample was not seen";
  EXPECT_FALSE(polled.add(good(0.06, 150)));
  const auto second = polled.add(good(0.11, 190));
  ASSERT_TRUE(second && second->from);
  EXPECT_DOUBLE_EQ(second->from->earliest_s, 0.0);
  EXPECT_DOUBLE_EQ(second->from->latest_s, 0.01);
  EXPECT_DOUBLE_EQ(second->to.earliest_s, 0.06);
  EXPECT_DOUBLE_EQ(second->to.latest_s, 0.11);
  EXPECT_EQ(second->ticks, 40);
  EXPECT_EQ(polled.total_ticks(), 90);

  CounterChanges sparse(rapl());  // updated a hundred times from sample to sample
  sparse.add(good(0.0, 0));
  const auto change = sparse.add(good(0.1, 16384));
  ASSERT_TRUE(change);
  EXPECT_DOUBLE_EQ(change->to.earliest_s, 0.1 - 0.001);
}

TEST(CounterChanges, WrapsAreCountedToTheTick) {
  CounterChanges changes(rapl());
  changes.add(good(0, kRange - 10));
  const auto change = changes.add(good(1, 20));
  ASSERT_TRUE(change);
  EXPECT_EQ(change->ticks, 30);
  EXPECT_TRUE(changes.take_gaps().empty());
}

TEST(CounterChanges, ARestartOfACounterThatWrapsNeedsMorePowerThanThereIs) {
  CounterChanges changes(rapl());
  changes.add(good(0, 1'000'000'000));
  EXPECT_FALSE(changes.add(good(0.5, 3)));  // as a wrap: 201 kJ in 0.5 s
  const auto gaps = changes.take_gaps();
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_FALSE(gaps[0].ticks);
  EXPECT_NE(gaps[0].reason.find("restarted"), std::string::npos) << gaps[0].reason;
  EXPECT_EQ(changes.total_ticks(), 0);
  const auto next = changes.add(good(0.6, 16387));
  ASSERT_TRUE(next);
  EXPECT_FALSE(next->from) << "no update was seen since the restart";
  EXPECT_EQ(changes.total_ticks(), 16384);
  EXPECT_TRUE(changes.take_gaps().empty()) << "a gap is given once";
}

TEST(CounterChanges, EachKindOfGapIsReportedWithWhatIsKnown) {
  CounterChanges changes(nvml());
  changes.add(good(0.0, 100));
  changes.add(good(0.1, 110));
  changes.add({0.2, std::nullopt, false});
  changes.add({0.3, std::nullopt, false});
  EXPECT_FALSE(changes.add(good(0.4, 150)));    // samples failed
  EXPECT_FALSE(changes.add(good(2.0, 300)));    // a silence
  EXPECT_FALSE(changes.add(good(2.1, 200)));    // went back
  EXPECT_FALSE(changes.add({2.2, 260, true}));  // says that it restarted
  const auto gaps = changes.take_gaps();
  ASSERT_EQ(gaps.size(), 4u);
  const double bounds[][2] = {{0.1, 0.4}, {0.4, 2.0}, {2.0, 2.1}, {2.1, 2.2}};
  const std::optional<std::int64_t> ticks[] = {40, 150, std::nullopt, std::nullopt};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(gaps[i].start_s, bounds[i][0]) << i;
    EXPECT_DOUBLE_EQ(gaps[i].end_s, bounds[i][1]) << i;
    EXPECT_EQ(gaps[i].ticks, ticks[i]) << i;
  }
  EXPECT_EQ(changes.total_ticks(), 10 + 40 + 150);
}

TEST(CounterChanges, ACounterThatStoodStillLeavesAGapAndForgetsItsUpdate) {
  CounterChanges changes(nvml());
  changes.add(good(0.0, 100));
  changes.add(good(0.1, 110));
  double t = 0.1;
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(changes.add(good(t += 0.05, 110)));
  EXPECT_DOUBLE_EQ(changes.next_from_s(), t - nvml().longest_still_s);
  const auto change = changes.add(good(t + 0.05, 170));
  ASSERT_TRUE(change);
  EXPECT_FALSE(change->from);
  EXPECT_EQ(change->ticks, 60);
  const auto gaps = changes.take_gaps();
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].ticks, 60);
}

TEST(CounterChanges, MoreThanOneWrapIsUnknown) {
  Counter counter = rapl();
  counter.longest_silence_s = 1000;
  CounterChanges changes(counter);
  changes.add(good(0, 5));
  EXPECT_FALSE(changes.add(good(300, 5000)));
  const auto gaps = changes.take_gaps();
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_FALSE(gaps[0].ticks);
}

TEST(CounterChanges, InputThatCannotBeRightIsRefused) {
  EXPECT_THROW(CounterChanges(Counter{}), Error);
  Counter unbounded = rapl();
  unbounded.most_watts = 0;
  EXPECT_THROW(CounterChanges{unbounded}, Error);
  CounterChanges changes(rapl());
  changes.add(good(1, 5));
  EXPECT_THROW(changes.add(good(1, 6)), Error);
  EXPECT_THROW(changes.add(good(0.5, 6)), Error);
  EXPECT_THROW(changes.add(good(std::nan(""), 6)), Error);
  EXPECT_THROW(changes.add(good(2, kRange)), Error);
}

}  // namespace
}  // namespace molen::ledger
