// The joules of each phase on one host: its counters, and the phases of all ranks of the host.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "comm/communicator.h"
#include "energy/accountant.h"
#include "train/observe/host_ledger.h"
#include "train/observe/phase_parts.h"
#include "train/observe/phase_times.h"

namespace molen::train {

class PhaseEnergy {
 public:
  // `host`: the ranks of one host. `device_of`: as HostLedger has it. `accountant`: on rank 0, null elsewhere; it
  // samples the host's counters since `opened_s` on the steady clock. Both must outlive this object. `clock` is the
  // steady clock of times and samples.
  PhaseEnergy(comm::Communicator& host, const std::vector<int>& device_of, energy::Accountant* accountant,
              double opened_s, Seconds sample_every, std::function<std::int64_t()> clock = now_ns);

  // Add times of this rank; `waits` and the timeline as in add_phase_times.
  void add_step(const program::Program& program, const std::vector<program::Expanded>& ops,
                const program::Timeline& timeline, const std::vector<data::LoaderWait>& waits = {});
  void add_outside(OutsideSteps what, std::int64_t start_ns, std::int64_t end_ns);
  // Returns whether this rank has kept times for long enough that they should be collected.
  bool due() const;

  // Brings the times of all ranks of the host to the rank that reads meters. What a rank adds later counts from now on.
  // Collective over `host`.
  void collect();
  // Returns the account of each counter of this host by scope, with the parts of its phases (divide_phases), and its
  // gaps since the last call; an empty object on the ranks that do not read the meters. Collective over `host`.
  Json accounts();

 private:
  double seconds_since(std::int64_t ns) const { return static_cast<double>(clock_() - ns) * 1e-9; }

  comm::Communicator& host_;
  energy::Accountant* accountant_;
  std::function<std::int64_t()> clock_;
  std::int64_t until_ns_;  // all before was collected
  std::vector<PhaseTime> times_;
  PhaseParts parts_;
  std::unique_ptr<HostLedger> ledger_;  // where `accountant_` is
};

// Returns the sum of the accounts of several hosts, which `accounts` returned: by scope, the joules of each entry with
// their standard errors, the hosts without an estimate with the reason, and the gaps. Entries that phases share on some
// hosts are entries of their own.
Json sum_of_accounts(const std::map<std::string, Json>& by_host);

// Returns a line for people on the sum over the `summed` scopes: "backward 41%, forward 20%, ..., unattributed 2% of
// 1.2 MJ"; "" when no counter has counted anything.
std::string phase_line(const Json& accounts, const std::set<std::string>& summed);

}  // namespace molen::train
