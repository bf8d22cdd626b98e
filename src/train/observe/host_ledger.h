// The joules of each phase on one host, from its counters and the times of its ranks. To estimate a lag can take
// seconds, so a thread of its own does the work while training goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "energy/accountant.h"
#include "ledger/scope_ledger.h"
#include "train/observe/phase_times.h"

namespace molen::train {

// The times of a host's ranks and the samples of its counters since the last collection.
struct Collected {
  struct Rank {
    std::int64_t until_ns = 0;     // everything that began before was told
    std::vector<PhaseTime> times;  // since the last time
  };
  std::vector<Rank> ranks;
  std::vector<std::vector<energy::Sample>> samples;  // by meter
};

class HostLedger {
 public:
  // `opened_s`: when the meters were opened, on the steady clock. `device_of`: for each rank of the host the number of
  // its GPU among those that are read, or -1. A scope of a GPU counts the ranks that use it, and any other scope all.
  HostLedger(const energy::Meters& meters, const std::vector<int>& device_of, double opened_s, Seconds sample_every);
  ~HostLedger();  // what was not booked yet is dropped
  HostLedger(const HostLedger&) = delete;
  HostLedger& operator=(const HostLedger&) = delete;

  // Books it soon, and returns at once.
  void add(Collected collected);
  // Returns the account of each counter by scope, and its gaps since the last call. Waits for what is not booked yet,
  // but not longer than kMostWait: a checkpoint after a stop signal may have to be quick. An error in booking ends it,
  // and the accounts say so; it does not end the training.
  Json accounts();
  static constexpr std::chrono::milliseconds kMostWait{300};
  // Returns the ranks of the host whose phases a scope of `accounts` counts.
  const std::vector<int>& counted_ranks(const std::string& scope) const { return scopes_.at(scope).ranks; }

 private:
  struct Scope {
    std::size_t meter = 0;
    int shift = 0;               // the ledger counts in 2^shift ticks of the counter
    double joules_per_tick = 0;  // of the ledger
    std::vector<int> ranks;      // of the host, whose phases count
    ledger::ScopeLedger ledger;
    std::int64_t gaps = -1;  // of the meter's last good reading; -1 before the first
  };
  void work();
  void book(const Collected& collected);
  void publish();
  double seconds(std::int64_t ns) const { return static_cast<double>(ns) * 1e-9 - opened_s_; }

  double opened_s_;
  std::map<std::string, Scope> scopes_;  // of the thread, but for their ranks
  std::mutex mutex_;
  std::string failure_;
  Json published_ = Json::object();                       // the accounts of all that was booked
  std::map<std::string, std::vector<ledger::Gap>> gaps_;  // by scope, since they were last returned
  std::condition_variable changed_;
  std::deque<Collected> waiting_;
  bool booking_ = false, stopping_ = false;
  std::thread thread_;  // last member: it uses the others
};

}  // namespace molen::train
