// The joules of a whole job. One rank of each host reads that host's meters. The readings of all hosts are added by the
// reduction over ranks that the loop makes in each step anyway.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "energy/accountant.h"
#include "energy/coverage.h"
#include "energy/totals.h"

namespace molen::train {

// This rank's host, as the meters see it.
struct EnergyHost {
  std::string id;                      // the same on all ranks that share one set of counters
  std::string name;                    // for people
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
};

// Opens one host's meters; `visible` holds the devices of all its ranks. Throws UsageError when a meter that the
// configuration names is not there.
using OpenMeters = std::function<energy::Meters(const std::optional<std::string>& visible)>;
using HasGpus = std::function<bool(const std::optional<std::string>& visible)>;

class JobEnergy {
 public:
  // Collective over `world`, which must outlive this object. `open` is called on the lowest rank of each host. Throws
  // UsageError on every rank when `open` throws it on one rank.
  JobEnergy(comm::Communicator& world, const EnergyHost& host, const OpenMeters& open, const HasGpus& has_gpus);
  // Uses this machine, with the configuration's meters and the process's environment.
  JobEnergy(comm::Communicator& world, const config::Config& config);

  void begin_step();
  // Ends the step on this host and appends its joules to `sums`, which the caller then sums over ranks. Every rank
  // appends the same number of values.
  void end_step(std::vector<double>& sums);
  // Returns the job's step from the appended values after their sum over ranks. A scope is null, with its reason, when
  // any host has no reading of it; the total is then null too.
  energy::StepEnergy step(std::span<const double> summed) const;
  std::size_t values() const { return 2 * scopes_.size() + 2; }

  // Returns the energy of all hosts since the meters were opened. Collective.
  energy::EnergySoFar so_far();

  const energy::Coverage& coverage() const { return coverage_; }
  // Returns the meters for the run's events, as Accountant::describe does. When there are several hosts, each key
  // begins with "HOST: ".
  const Json& describe() const { return description_; }

 private:
  struct Scope {
    energy::Source source = energy::Source::kNone;  // the least certain source of any host
    std::string lacking;                            // why a host has no meter for it; empty: all hosts have one
  };
  void exchange(comm::Communicator& world, const std::string& own);
  void add_host(const Json& host);

  comm::Communicator& world_;
  std::unique_ptr<energy::Accountant> accountant_;  // on one rank of each host
  double opened_ = 0;                               // on the clock of base/clock.h
  std::int64_t hosts_ = 0;
  std::map<std::string, Scope> scopes_;  // the scopes of any host; the values in the sums have this order
  energy::Coverage coverage_;
  energy::StepEnergy own_;  // this host's last step: its reasons are exact
  std::string unmetered_;   // why a host has no total at all
  Json description_;
};

}  // namespace molen::train
