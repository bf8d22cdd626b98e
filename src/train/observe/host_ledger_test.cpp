// Tests which ranks the account of a counter counts, and what becomes of an account that cannot go on.
#include "train/observe/host_ledger.h"

#include <gtest/gtest.h>

#include <thread>

namespace molen::train {
namespace {

class StillCounter : public energy::Meter {
 public:
  StillCounter(const std::string& scope, double joules_per_tick)
      : Meter({"still", scope, energy::Source::kCounter, "", Seconds(0), true, joules_per_tick, Seconds(1e-3)}) {}
  Result<energy::Reading> read() override { return energy::Reading{}; }
};

energy::Meters counters(const std::vector<std::string>& scopes, double joules_per_tick = 1e-3) {
  energy::Meters meters;
  for (const std::string& scope : scopes)
    meters.meters.push_back(std::make_unique<StillCounter>(scope, joules_per_tick));
  return meters;
}

energy::Sample sample_at(double time_s, std::int64_t ticks) {
  return {time_s, energy::Reading{Joules(0), 0, ticks}};
}

constexpr std::int64_t kSecondNs = 1'000'000'000;

// Each rank is in `forward` for as many tenths of a second as its number, in each of the seconds. The counters rise by
// 100 W for every rank of `drawing` that is in it.
Collected seconds_of(int ranks, int seconds, const std::vector<std::vector<int>>& drawing) {
  constexpr int kForward = 1;
  Collected all;
  all.samples.resize(drawing.size());
  std::vector<double> joules(drawing.size(), 0.0);
  for (int r = 0; r < ranks; ++r) all.ranks.push_back({seconds * kSecondNs, {}});
  for (int s = 0; s < seconds; ++s)
    for (int r = 0; r < ranks; ++r)
      all.ranks[static_cast<std::size_t>(r)].times.push_back(
          {kForward, s * kSecondNs + (s * 7 + r * 3) % 5 * kSecondNs / 10,
           s * kSecondNs + (s * 7 + r * 3) % 5 * kSecondNs / 10 + (r + 1) * kSecondNs / 10});
  for (int sample = 1; sample < seconds * 50; ++sample) {
    const double at_s = sample * 0.02;
    for (std::size_t m = 0; m < drawing.size(); ++m) {
      double sum = 10.0 * at_s;
      for (const int r : drawing[m])
        for (const PhaseTime& t : all.ranks[static_cast<std::size_t>(r)].times)
          sum += 100.0 * std::max(0.0, std::min(at_s, static_cast<double>(t.end_ns) * 1e-9) -
                                           static_cast<double>(t.start_ns) * 1e-9);
      all.samples[m].push_back(sample_at(at_s, static_cast<std::int64_t>(sum * 1e3)));
    }
  }
  return all;
}

// A scope of a GPU counts the ranks that use this GPU; any other scope counts all. A GPU that no rank uses has no
// account.
TEST(HostLedger, AGpuHasThePhasesOfItsOwnRanks) {
  const energy::Meters meters = counters({"gpu0", "superchip1", "gpu2", "node"});
  HostLedger ledger(meters, {1, 0}, 0.0, Seconds(0.02));
  ledger.add(seconds_of(2, 40, {{1}, {0}, {}, {0, 1}}));
  Json accounts;
  for (int i = 0; i < 100 && (accounts.empty() || accounts["node"]["changes"] == 0); ++i) accounts = ledger.accounts();
  EXPECT_FALSE(accounts.contains("gpu2"));
  const auto forward = [&](const char* scope) { return accounts[scope]["entries"]["forward"]; };
  EXPECT_NEAR(forward("gpu0")["rank_seconds"].get<double>(), 8.0, 0.3) << "of rank 1, 0.2 s in each of 40 s";
  EXPECT_NEAR(forward("superchip1")["rank_seconds"].get<double>(), 4.0, 0.2) << "of rank 0";
  EXPECT_NEAR(forward("node")["rank_seconds"].get<double>(), 12.0, 0.5);
  for (const char* scope : {"gpu0", "superchip1", "node"})
    EXPECT_NEAR(forward(scope)["joules"].get<double>() / forward(scope)["rank_seconds"].get<double>(), 100.0, 5.0)
        << scope;
}

// Ticks of 2^-32 J would overflow in the sum over hosts; they are counted in larger ones, and the joules stay.
TEST(HostLedger, SmallTicksAreCountedInLargerOnes) {
  const energy::Meters meters = counters({"cpu-package0"}, 0x1p-32);
  HostLedger ledger(meters, {-1}, 0.0, Seconds(0.02));
  Collected all{{{kSecondNs, {}}}, {{sample_at(0.1, 0), sample_at(0.2, std::int64_t{1} << 62)}}};
  ledger.add(std::move(all));
  const Json account = ledger.accounts()["cpu-package0"];
  EXPECT_EQ(account["joules_per_tick"], 0x1p-19);
  EXPECT_EQ(account["ticks"], std::int64_t{1} << 49);
  EXPECT_EQ(account["joules"], 0x1p30);
  EXPECT_EQ(account["not_attributed"].get<std::string>().find("broke off"), std::string::npos);
}

// An error in booking ends the account. The account says so and keeps the ticks that it had booked.
TEST(HostLedger, AnErrorEndsTheAccountAndNothingElse) {
  const energy::Meters meters = counters({"cpu-package0"});
  HostLedger ledger(meters, {-1}, 0.0, Seconds(0.02));
  ledger.add({{{kSecondNs, {}}}, {{sample_at(0.1, 0), sample_at(0.2, 500)}}});
  EXPECT_EQ(ledger.accounts()["cpu-package0"]["ticks"], 500);
  ledger.add({{{2 * kSecondNs, {{1, 0, kSecondNs / 2}}}}, {{}}});  // a phase of a time that was said to be complete
  const Json account = ledger.accounts()["cpu-package0"];
  EXPECT_EQ(account["ticks"], 500);
  EXPECT_EQ(account["not_attributed"].get<std::string>().rfind("the account broke off: phase 1 of rank 0 begins at", 0),
            0U)
      << account;
  ledger.add({{{3 * kSecondNs, {}}}, {{sample_at(2.5, 900)}}});
  EXPECT_EQ(ledger.accounts()["cpu-package0"]["ticks"], 500);
}

TEST(HostLedger, EndsWithABacklog) {
  const energy::Meters meters = counters({"cpu-package0"});
  HostLedger ledger(meters, {-1, -1}, 0.0, Seconds(0.02));
  for (int i = 0; i < 50; ++i) ledger.add(seconds_of(2, 1, {{0}}));
}

TEST(HostLedger, ListsAHundredGapsAndCountsTheOthers) {
  const energy::Meters meters = counters({"cpu-package0"});
  HostLedger ledger(meters, {-1}, 0.0, Seconds(0.02));
  Collected all{{{kSecondNs, {}}}, {{}}};
  for (int i = 1; i <= 251; ++i)
    all.samples[0].push_back(i % 2 == 0 ? energy::Sample{i * 0.01, std::nullopt} : sample_at(i * 0.01, i));
  ledger.add(std::move(all));
  const Json account = ledger.accounts()["cpu-package0"];
  EXPECT_EQ(account["gaps"].size(), 100U);
  EXPECT_EQ(account["gaps_count"], 125);
  EXPECT_EQ(ledger.accounts()["cpu-package0"]["gaps_count"], 0) << "gaps since the last call";
}

}  // namespace
}  // namespace molen::train
