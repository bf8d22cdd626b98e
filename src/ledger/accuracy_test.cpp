// Energies of phases beside their truth, over 2,000 steps of simulated jobs and meters.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "ledger/simulated_meter.h"

namespace molen::ledger {
namespace {

constexpr int kSteps = 2000;

struct Case {
  std::string name;
  bool pipeline = false;
  int ranks = 1;
  SimulatedMeter meter = {};
  int gaps = 0;
  std::optional<double> bubble_watts = {};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool pipeline : {false, true})
    for (const int ranks : {1, 4}) {
      const std::string job = fmt::format("{}_{}_rank{}", pipeline ? "1f1b" : "fsdp", ranks, ranks > 1 ? "s" : "");
      for (const double lag_s : {0.0, 0.05, 0.15, 0.3}) {
        Case c{fmt::format("{}_lag_{:.0f}_ms", job, 1000 * lag_s), pipeline, ranks, {}, 0};
        c.meter.lag_s = lag_s;
        all.push_back(c);
      }
      // RAPL: updated more often than it is read; wraps at 2^32 ticks of 2^-16 J, that is every 65,536 J.
      Case rapl{job + "_wraps", pipeline, ranks, {}, 0};
      rapl.meter.joules_per_tick = 0x1p-16;
      rapl.meter.period = std::uint64_t{1} << 32;
      rapl.meter.update_s = 0.001;
      rapl.meter.update_jitter_s = 0.00001;
      rapl.meter.sample_s = 0.1;
      rapl.meter.lag_s = 0.003;
      all.push_back(rapl);
      if (ranks == 4) continue;
      Case amd{job + "_tick_15_uJ", pipeline, ranks, {}, 0};
      amd.meter.joules_per_tick = 0x1p-16;
      all.push_back(amd);
      Case cray{job + "_tick_1_J", pipeline, ranks, {}, 0};
      cray.meter.joules_per_tick = 1.0;
      all.push_back(cray);
      Case broken{job + "_gaps_and_restarts", pipeline, ranks, {}, 5};
      broken.meter.failing_s = {{20, 21}, {300, 330}, {900, 900.5}};
      broken.meter.restarts_s = {500.0, 1000.0};
      all.push_back(broken);
    }
  // A rank that waits for a message of another stage draws less than one that computes, and more than an idle one.
  for (const int ranks : {1, 4})
    for (const double lag_s : {0.0, 0.15})
      for (const double watts : {60.0, 120.0}) {
        const char* plural = ranks > 1 ? "s" : "";
        Case c{fmt::format("1f1b_{}_rank{}_bubble_{:.0f}_W_lag_{:.0f}_ms", ranks, plural, watts, 1000 * lag_s), true,
               ranks};
        c.meter.lag_s = lag_s, c.bubble_watts = watts;
        all.push_back(c);
      }
  return all;
}

class Accuracy : public testing::TestWithParam<Case> {};

TEST_P(Accuracy, PhasesAboveThreePercentAreWithinTwoPercent) {
  const Case& c = GetParam();
  const SimulatedJob job =
      c.pipeline ? pipeline_job(c.ranks, kSteps, 7, 1.0, c.bubble_watts) : fsdp_job(c.ranks, kSteps, 7);
  const auto samples = samples_of(job, c.meter, 7);
  ScopeLedger ledger(counter_of(c.meter), job.phases, c.ranks);
  play(job, samples, ledger);
  const Account account = ledger.account();
  ASSERT_EQ(account.refusal, "");
  ASSERT_EQ(account.entries.size(), job.phases.size() + 2) << "phases share an entry";
  const auto truth = joules_between_updates(job, samples, counter_of(c.meter), c.meter.lag_s);
  double total = 0;
  for (const double joules : truth) total += joules;
  std::int64_t ticks = 0;
  std::string figures;
  int judged = 0;
  for (std::size_t e = 0; e < account.entries.size(); ++e) {
    const Entry& entry = account.entries[e];
    ticks += entry.ticks;
    if (e == truth.size()) continue;
    const double error = entry.energy.value / truth[e] - 1;
    figures += fmt::format(" {} {:+.2f}%", entry.name, 100 * error);
    if (truth[e] < 0.03 * total) continue;
    ++judged;
    EXPECT_LT(std::abs(error), 0.02) << entry.name;
  }
  fmt::print("{:<28} lag {:6.1f} +- {:.1f} ms;{}\n", c.name, 1000 * account.lag->value, 1000 * account.lag_error->value,
             figures);
  EXPECT_GE(judged, 4);
  if (c.bubble_watts) EXPECT_GT(truth[job.phases.size() - 1], 0.03 * total) << "the bubble is not judged";
  EXPECT_EQ(ticks, account.ticks);
  EXPECT_EQ(ledger.take_gaps().size(), static_cast<std::size_t>(c.gaps));
  // An update lies within bounds that are a sampling period apart, or an update period if that is shorter. The lag is
  // not known better than half of these where samples are in step with updates, and here they are not.
  EXPECT_NEAR(account.lag->value, c.meter.lag_s, 0.5 * std::min(c.meter.sample_s, c.meter.update_s));
}

INSTANTIATE_TEST_SUITE_P(Meters, Accuracy, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace molen::ledger
