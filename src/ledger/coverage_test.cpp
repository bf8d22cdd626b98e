// How often the 95% intervals of energies contain the truth.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/test_sanitized.h"
#include "ledger/simulated_meter.h"

namespace molen::ledger {
namespace {

constexpr int kRuns = kSanitized ? 25 : 150;  // of each kind of job
constexpr int kShortSteps = 100;

struct Count {
  double intervals = 0, contain = 0, squares = 0;  // of errors in standard errors
};

// Adds what the entries of one run are, in standard errors from their truth.
void count_run(bool pipeline, int ranks, std::uint64_t run, std::vector<Count>& counts) {
  const std::uint64_t seed = 1000 + run + (pipeline ? 5000 : 0) + 10'000 * static_cast<std::uint64_t>(ranks);
  const SimulatedJob job = pipeline ? pipeline_job(ranks, kShortSteps, seed) : fsdp_job(ranks, kShortSteps, seed);
  SimulatedMeter meter;
  meter.lag_s = std::vector<double>{0.0, 0.05, 0.15, 0.3}[run % 4];
  meter.joules_per_tick = std::vector<double>{1e-3, 0x1p-16, 1.0}[run % 3];
  const auto samples = samples_of(job, meter, seed);
  ScopeLedger ledger(counter_of(meter), job.phases, ranks);
  play(job, samples, ledger);
  const Account account = ledger.account();
  ASSERT_EQ(account.refusal, "");
  const auto truth = joules_between_updates(job, samples, counter_of(meter), meter.lag_s);
  ASSERT_EQ(account.entries.size(), truth.size() + 1);
  for (std::size_t e = 0; e < truth.size(); ++e) {
    const Entry& entry = account.entries[e];
    const double off = (entry.energy.value - truth[e]) / entry.standard_error->value;
    counts[e].intervals += 1;
    counts[e].contain += std::abs(off) < 1.96;
    counts[e].squares += off * off;
  }
}

std::string judged(const Count& count) {
  // Intervals of 1.96 standard errors contain 90% of errors whose deviation is 1.96 / 1.645 = 1.191 standard errors,
  // and 99% of those whose deviation is 1.96 / 2.576 = 0.761. The mean of n squares of normal numbers has the relative
  // standard deviation sqrt(2 / n), so four of these are chance.
  const double square = count.squares / count.intervals, chance = 4 * std::sqrt(2.0 / count.intervals);
  EXPECT_LT(square, 1.191 * 1.191 * (1 + chance));
  EXPECT_GT(square, 0.761 * 0.761 * (1 - chance));
  // At 90%, a binomial count is four standard deviations below its mean once in 30,000 times.
  EXPECT_GT(count.contain, count.intervals * 0.9 - 4 * std::sqrt(count.intervals * 0.9 * 0.1));
  return fmt::format(" {:.1f}% ({:.2f})", 100 * count.contain / count.intervals, std::sqrt(square));
}

TEST(Coverage, NominalIntervalsContainTheTruth) {
  Count all;
  for (const bool pipeline : {false, true})
    for (const int ranks : {1, 4}) {
      std::vector<Count> counts(6);
      for (int run = 0; run < kRuns; ++run) count_run(pipeline, ranks, static_cast<std::uint64_t>(run), counts);
      std::string figures;
      for (const Count& count : counts) {
        figures += judged(count);
        all.intervals += count.intervals, all.contain += count.contain;
      }
      fmt::print("{}, {} in a scope, {} runs; coverage of phases and base (rms error in standard errors):{}\n",
                 pipeline ? "1F1B" : "FSDP", ranks, kRuns, figures);
    }
  fmt::print("{:.1f}% of {:.0f} intervals contain the truth\n", 100 * all.contain / all.intervals, all.intervals);
  EXPECT_GT(all.contain / all.intervals, 0.90);
  EXPECT_LT(all.contain / all.intervals, 0.99);
}

}  // namespace
}  // namespace molen::ledger
