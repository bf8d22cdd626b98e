#include "ledger/scope_ledger.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "ledger/simulated_meter.h"

namespace molen::ledger {
namespace {

std::int64_t sum_of_ticks(const Account& account) {
  std::int64_t sum = 0;
  for (const Entry& entry : account.entries) sum += entry.ticks;
  return sum;
}

const Entry& entry_of(const Account& account, const std::string& name) {
  for (const Entry& entry : account.entries)
    if (entry.name == name) return entry;
  throw Error("no entry {}", name);
}

// One rank that alternates between phases of its own making: (phase, seconds) pairs of each step, in order.
SimulatedJob alternating(std::vector<std::string> phases, std::vector<double> watts, int steps,
                         const std::vector<std::pair<int, double>>& order) {
  SimulatedJob job;
  job.phases = std::move(phases);
  job.watts = std::move(watts);
  job.base_watts = 100;
  const std::uint64_t key = stream_key(4, "alternating");
  double t = 0.01;
  for (int step = 0; step < steps; ++step) {
    for (const auto& [phase, seconds] : order) {
      const double end_s = t + job.about(key, seconds, 0.2);
      if (phase >= 0) job.intervals.push_back({0, phase, t, end_s});
      t = end_s;
    }
    job.step_ends_s.push_back(t);
  }
  job.end_s = t;
  return job;
}

TEST(ScopeLedger, EntriesAddUpToTheCounterAcrossWrapsAndGaps) {
  const SimulatedJob job = fsdp_job(1, 150, 1);
  SimulatedMeter meter;
  meter.failing_s = {{30, 31.5}, {70, 70.2}};
  std::vector<Sample> plain = samples_of(job, meter, 1);
  const std::uint64_t period = 1'000'000;  // of 1 mJ: a wrap every three seconds
  std::vector<Sample> wrapping = plain;
  for (Sample& sample : wrapping)
    if (sample.ticks) *sample.ticks %= period;
  Counter counter = counter_of(meter);
  counter.most_watts = 600;  // 1 kJ takes longer than the gap of 1.5 s
  counter.period = period;
  ScopeLedger ledger(counter, job.phases, 1);
  play(job, wrapping, ledger);
  const Account account = ledger.account();
  EXPECT_EQ(account.refusal, "");
  EXPECT_EQ(account.ticks, static_cast<std::int64_t>(*plain.back().ticks - *plain.front().ticks));
  EXPECT_EQ(sum_of_ticks(account), account.ticks);
  const auto gaps = ledger.take_gaps();
  ASSERT_EQ(gaps.size(), meter.failing_s.size());
  std::int64_t in_gaps = 0;
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    // A gap lies between good samples, which are a sampling period apart.
    EXPECT_NEAR(gaps[i].start_s, meter.failing_s[i].first, 0.011);
    EXPECT_NEAR(gaps[i].end_s, meter.failing_s[i].second, 0.011);
    ASSERT_TRUE(gaps[i].ticks);
    in_gaps += *gaps[i].ticks;
  }
  EXPECT_GT(in_gaps, 0);
  EXPECT_GE(entry_of(account, kUnattributed).ticks, in_gaps);
}

TEST(ScopeLedger, HoldsABoundedNumberOfTimesUntilTheLagIsKnown) {
  const SimulatedJob job = fsdp_job(1, 60, 3);
  const SimulatedMeter meter;
  ScopeLedger ledger(counter_of(meter), job.phases, 1, {.most_held = 500});
  play(job, samples_of(job, meter, 3), ledger);
  const Account account = ledger.account();
  EXPECT_EQ(account.refusal, "the lag was not known when 500 times of phases had to be held");
  EXPECT_EQ(entry_of(account, kUnattributed).ticks, account.ticks);
  EXPECT_GT(account.ticks, 0);
  EXPECT_LT(ledger.held(), 500U);
}

// A lag asks for four changes of the counter for each column, whoever asks for it.
TEST(ScopeLedger, TooFewChangesGiveNoLag) {
  const SimulatedJob job = fsdp_job(1, 40, 3);
  const SimulatedMeter meter;
  ScopeLedger ledger(counter_of(meter), job.phases, 1, {.first_changes = 27, .most_changes = 30});
  play(job, samples_of(job, meter, 3), ledger);
  EXPECT_EQ(ledger.account().refusal, "27 changes of the counter; the lag needs 28 at least");
}

// The lag is estimated as soon as there are as many changes as it is to be estimated from.
TEST(ScopeLedger, TheFirstTryNeedsNoFurtherChange) {
  const SimulatedJob job = fsdp_job(1, 40, 3);
  const SimulatedMeter meter;
  CounterChanges counter(counter_of(meter));
  const std::vector<Sample> samples = samples_of(job, meter, 3);
  std::ptrdiff_t needed = 0;
  for (int changes = 0; changes < 100; ++needed) {
    const auto change = counter.add(samples.at(static_cast<std::size_t>(needed)));
    changes += change && change->from;
  }
  for (const bool enough : {false, true}) {
    ScopeLedger ledger(counter_of(meter), job.phases, 1, {.first_changes = 100, .most_changes = 100});
    play(job, {samples.begin(), samples.begin() + (enough ? needed : needed - 1)}, ledger);
    const std::string refusal = ledger.account().refusal;
    EXPECT_EQ(refusal, enough ? "" : "99 changes of the counter so far; the lag is estimated from 100");
  }
}

TEST(ScopeLedger, ARestartIsAGapOfUnknownEnergyAndBooksNothing) {
  const SimulatedJob job = fsdp_job(1, 120, 2);
  SimulatedMeter meter;
  meter.restarts_s = {50};
  ScopeLedger ledger(counter_of(meter), job.phases, 1);
  const auto samples = samples_of(job, meter, 2);
  play(job, samples, ledger);
  std::int64_t known = 0;
  for (std::size_t i = 1; i < samples.size(); ++i)
    if (*samples[i].ticks >= *samples[i - 1].ticks)
      known += static_cast<std::int64_t>(*samples[i].ticks - *samples[i - 1].ticks);
  const Account account = ledger.account();
  EXPECT_EQ(account.ticks, known);
  EXPECT_EQ(sum_of_ticks(account), known);
  const auto gaps = ledger.take_gaps();
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_FALSE(gaps[0].ticks);
  EXPECT_NEAR(gaps[0].end_s, 50, 0.011);
}

TEST(ScopeLedger, PhasesThatAlwaysRunTogetherShareAnEntry) {
  SimulatedJob job =
      alternating({"forward", "all_gather", "backward"}, {200, 60, 300}, 250, {{0, 0.15}, {2, 0.2}, {-1, 0.1}});
  std::vector<Interval> both;
  for (const Interval& i : job.intervals) {
    both.push_back(i);
    if (i.phase == 0) both.push_back({0, 1, i.start_s, i.start_s + 0.5 * (i.end_s - i.start_s)});
    if (i.phase == 0) both.push_back({0, 1, i.start_s + 0.5 * (i.end_s - i.start_s), i.end_s});
  }
  job.intervals = both;
  SimulatedMeter meter;
  const auto samples = samples_of(job, meter, 3);
  ScopeLedger ledger(counter_of(meter), job.phases, 1);
  play(job, samples, ledger);
  const Account account = ledger.account();
  ASSERT_EQ(account.refusal, "");
  ASSERT_EQ(account.entries.size(), 4u);
  const Entry& shared = entry_of(account, "forward+all_gather");
  EXPECT_NE(shared.note.find("proportion"), std::string::npos) << shared.note;
  const auto truth = joules_between_updates(job, samples, counter_of(meter), meter.lag_s);
  // Five standard errors, of which a test in a million would fail by chance.
  EXPECT_NEAR(shared.energy.value, truth[0] + truth[1], 5 * shared.standard_error->value);
  EXPECT_LT(shared.standard_error->value, 0.02 * shared.energy.value);
  EXPECT_EQ(entry_of(account, "backward").note, "");
}

TEST(ScopeLedger, PhasesThatLeaveNoTimeContainTheBase) {
  const SimulatedJob job = alternating({"compute", "wait"}, {300, 40}, 250, {{0, 0.23}, {1, 0.17}});
  SimulatedMeter meter;
  const auto samples = samples_of(job, meter, 3);
  ScopeLedger ledger(counter_of(meter), job.phases, 1);
  play(job, samples, ledger);
  const Account account = ledger.account();
  ASSERT_EQ(account.refusal, "");
  ASSERT_EQ(account.entries.size(), 3u);
  const auto truth = joules_between_updates(job, samples, counter_of(meter), meter.lag_s);
  for (std::size_t p = 0; p < 2; ++p) {
    const Entry& entry = entry_of(account, job.phases[p]);
    EXPECT_NE(entry.note.find("base"), std::string::npos) << entry.note;
    const double with_base = truth[p] * (job.watts[p] + job.base_watts) / job.watts[p];
    EXPECT_NEAR(entry.energy.value, with_base, 5 * entry.standard_error->value);
    EXPECT_LT(entry.standard_error->value, 0.02 * with_base);
  }
}

TEST(ScopeLedger, APowerThatDoesNotFollowThePhasesIsAttributedToNone) {
  SimulatedJob job = alternating({"a", "b"}, {0, 0}, 400, {{0, 0.13}, {1, 0.2}, {-1, 0.07}});
  SimulatedMeter meter;
  const auto samples = samples_of(job, meter, 5);
  LedgerOptions options;
  options.most_changes = 800;
  ScopeLedger ledger(counter_of(meter), job.phases, 1, options);
  play(job, samples, ledger);
  const Account account = ledger.account();
  EXPECT_NE(account.refusal.find("any lag"), std::string::npos) << account.refusal;
  ASSERT_EQ(account.entries.size(), 1u);
  EXPECT_EQ(account.entries[0].name, kUnattributed);
  EXPECT_EQ(account.entries[0].ticks, static_cast<std::int64_t>(*samples.back().ticks - *samples.front().ticks));
  EXPECT_LT(ledger.held(), 50u) << "after the last try nothing needs to be kept";
}

TEST(ScopeLedger, ALagBeyondTheRangeIsRefused) {
  const SimulatedJob job = alternating({"a", "b"}, {200, 500}, 300, {{0, 1.3}, {1, 1.1}, {-1, 0.6}});
  SimulatedMeter meter;
  meter.lag_s = 0.55;
  LedgerOptions options;
  options.most_changes = 400;
  ScopeLedger ledger(counter_of(meter), job.phases, 1, options);
  play(job, samples_of(job, meter, 6), ledger);
  EXPECT_NE(ledger.account().refusal.find("0.4 s or more"), std::string::npos) << ledger.account().refusal;
}

TEST(ScopeLedger, TheOrderOfPhasesAndSamplesDoesNotMatter) {
  const SimulatedJob job = fsdp_job(2, 90, 8);
  const auto samples = samples_of(job, SimulatedMeter{}, 8);
  ScopeLedger in_step(counter_of({}), job.phases, 2), phases_first(counter_of({}), job.phases, 2);
  play(job, samples, in_step);
  play(job, {}, phases_first);
  for (const Sample& sample : samples) phases_first.add_sample(sample);
  ScopeLedger samples_first(counter_of({}), job.phases, 2);
  for (const Sample& sample : samples) samples_first.add_sample(sample);
  EXPECT_NE(samples_first.account().refusal, "") << "without phases there is no estimate";
  EXPECT_EQ(sum_of_ticks(samples_first.account()), samples_first.account().ticks);
  play(job, {}, samples_first);
  const Account account = in_step.account();
  for (const ScopeLedger* other : {&phases_first, &samples_first}) {
    const Account same = other->account();
    ASSERT_EQ(same.entries.size(), account.entries.size());
    for (std::size_t e = 0; e < account.entries.size(); ++e) EXPECT_EQ(same.entries[e].ticks, account.entries[e].ticks);
  }
}

TEST(ScopeLedger, PowersThatGiveTooMuchAreScaledDownToTheCounter) {
  int scaled = 0, left = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const SimulatedJob job = fsdp_job(1, 80, 30 + seed);
    SimulatedMeter meter;
    const auto samples = samples_of(job, meter, 30 + seed);
    ScopeLedger ledger(counter_of(meter), job.phases, 1);
    play(job, samples, ledger);
    const Account account = ledger.account();
    ASSERT_EQ(account.refusal, "");
    EXPECT_EQ(sum_of_ticks(account), account.ticks);
    // The ticks until the first update that was seen have no known seconds.
    std::int64_t before = 0;
    for (const Sample& sample : samples)
      if (*sample.ticks != *samples.front().ticks) {
        before = static_cast<std::int64_t>(*sample.ticks - *samples.front().ticks);
        break;
      }
    const std::int64_t rest = entry_of(account, kUnattributed).ticks;
    (account.scaled_by < 1.0 ? scaled : left) += 1;
    if (account.scaled_by < 1.0) EXPECT_LE(std::abs(rest - before), 1) << "rounding moves a share by a tick at most";
    EXPECT_GE(rest, before - 1);
    EXPECT_GT(account.scaled_by, 0.999);
  }
  EXPECT_GT(scaled, 0) << "no seed has a model that gives too much";
  EXPECT_GT(left, 0);
}

TEST(ScopeLedger, MemoryDoesNotGrowWithTheRun) {
  std::size_t most[2] = {0, 0};
  for (const int longer : {0, 1}) {
    const SimulatedJob job = fsdp_job(1, longer ? 600 : 150, 9);
    const auto samples = samples_of(job, SimulatedMeter{}, 9);
    ScopeLedger ledger(counter_of({}), job.phases, 1);
    std::size_t sample = 0, interval = 0;
    for (const double end_s : job.step_ends_s) {
      for (; samples[sample].time_s < end_s && sample + 1 < samples.size(); ++sample)
        ledger.add_sample(samples[sample]);
      for (; interval < job.intervals.size() && job.intervals[interval].start_s < end_s; ++interval)
        ledger.add_phase(0, job.intervals[interval].phase, job.intervals[interval].start_s,
                         job.intervals[interval].end_s);
      ledger.complete_phases(0, end_s);
      most[longer] = std::max(most[longer], ledger.held());
    }
    EXPECT_LT(ledger.held(), 150u);
  }
  EXPECT_EQ(most[0], most[1]) << "the most is held before the lag is known";
}

TEST(ScopeLedger, ACounterThatStandsStillKeepsNoPhases) {
  const SimulatedJob job = fsdp_job(1, 200, 10);
  std::vector<Sample> samples;
  for (double t = 0.005; t < job.end_s; t += 0.01) samples.push_back({t, 77, false});
  ScopeLedger ledger(counter_of({}), job.phases, 1);
  play(job, samples, ledger);
  // Some 40 knots a step, for the longest_still_s that a change may last, and a second more.
  EXPECT_LT(ledger.held(), 40u * 15u);
  EXPECT_EQ(ledger.account().ticks, 0);
}

TEST(ScopeLedger, NamesThatMeanTwoThingsAreRefused) {
  EXPECT_THROW(ScopeLedger(counter_of({}), {"a", "a"}, 1), Error);
  EXPECT_THROW(ScopeLedger(counter_of({}), {"a", kBase}, 1), Error);
  EXPECT_THROW(ScopeLedger(counter_of({}), {kUnattributed}, 1), Error);
}

}  // namespace
}  // namespace molen::ledger
