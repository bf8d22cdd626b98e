#include "ledger/lag.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ledger/simulated_meter.h"

namespace molen::ledger {
namespace {

Activity activity_of(const SimulatedJob& job) {
  Activity activity(static_cast<int>(job.phases.size()), job.ranks);
  for (const Interval& i : job.intervals) activity.add(i.rank, i.phase, i.start_s, i.end_s);
  for (int rank = 0; rank < job.ranks; ++rank) activity.complete(rank, job.end_s + 1.0);
  return activity;
}

// The changes with an earlier update whose phases are known at any lag.
std::vector<Change> changes_of(const SimulatedJob& job, const SimulatedMeter& meter) {
  CounterChanges counter(counter_of(meter));
  std::vector<Change> changes;
  for (const Sample& sample : samples_of(job, meter, 1))
    if (const auto change = counter.add(sample);
        change && change->from && change->from->earliest_s > kMostLag + kLagMargin)
      changes.push_back(*change);
  return changes;
}

// The errors of changes that do not follow each other are independent, so the estimate does not depend on which of two
// stretches of changes comes first.
TEST(EstimateLag, StretchesOfChangesOnEitherSideOfAGapHaveNoOrder) {
  const SimulatedJob job = fsdp_job(1, 60, 1);
  SimulatedMeter meter;
  meter.joules_per_tick = 0.5;  // roundings of one change are made up for by the next, as Whitening describes
  meter.noise = 0.0;
  std::vector<Change> changes = changes_of(job, meter);
  const auto middle = changes.begin() + static_cast<std::ptrdiff_t>(changes.size() / 3);
  changes.erase(middle);
  const Activity activity = activity_of(job);
  const auto before = estimate_lag(changes, activity, meter.joules_per_tick);
  ASSERT_TRUE(before.ok()) << before.reason();
  EXPECT_GT(before.value().noise_ratio, 0.0) << "neighbours are correlated";
  std::rotate(changes.begin(), middle, changes.end());
  const auto after = estimate_lag(changes, activity, meter.joules_per_tick);
  ASSERT_TRUE(after.ok()) << after.reason();
  EXPECT_EQ(after.value().noise_ratio, before.value().noise_ratio);
  // Sums in another order; the search for the lag ends within 1e-4 s, at the same places but for their last bits.
  EXPECT_NEAR(after.value().seconds, before.value().seconds, 1e-9);
  EXPECT_NEAR(after.value().standard_error_s, before.value().standard_error_s, 1e-9);
  for (Eigen::Index i = 0; i < before.value().watts.size(); ++i)
    EXPECT_NEAR(after.value().watts[i], before.value().watts[i], 1e-6 * before.value().watts[i]);
}

}  // namespace
}  // namespace molen::ledger
