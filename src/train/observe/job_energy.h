// The joules of a whole job. One rank of each host reads that host's meters. The readings of all hosts are added by the
// reduction over ranks that the loop makes in each step anyway.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "energy/accountant.h"
#include "energy/coverage.h"
#include "energy/totals.h"
#include "energy/visible.h"
#include "store/energy_ring.h"
#include "train/observe/job_model.h"
#include "train/observe/phase_energy.h"

namespace molen::train {

// This rank's host, as the meters see it.
struct EnergyHost {
  std::string id;                  // the same on all ranks that share one set of counters
  std::string name;                // for people
  energy::VisibleGpus visible;     // the GPUs of this rank
  std::optional<int> device = {};  // the GPU of this rank: its place among the visible ones
  std::string cpus = "";           // the processors that this rank may use, as "0-3,8"; empty: not known
};

// Opens one host's meters; `visible` holds the devices of all its ranks. Throws UsageError when a meter that the
// configuration names is not there.
using OpenMeters = std::function<energy::Meters(const energy::VisibleGpus& visible)>;
using HasGpus = std::function<bool(const energy::VisibleGpus& visible)>;
// Opens the model of one host's parts without a meter (energy::open_model). `cpus`: those of all ranks of the host,
// absent where they are not known.
using OpenModel = std::function<std::unique_ptr<energy::PowerModel>(const energy::Meters& measured, bool gpus,
                                                                    const energy::VisibleGpus& visible,
                                                                    const std::optional<std::string>& cpus)>;

class JobEnergy {
 public:
  // Collective over `world`, which must outlive this object. `open` is called on the lowest rank of each host. Counters
  // are sampled at this interval to divide their joules among phases; 0: joules are not divided. Throws UsageError on
  // every rank when `open` throws it on one rank.
  JobEnergy(comm::Communicator& world, const EnergyHost& host, const OpenMeters& open, const HasGpus& has_gpus,
            Seconds sample_every = Seconds(0), const OpenModel& open_model = {});
  // Uses this machine, with the configuration's meters and the process's environment. `device`: as in EnergyHost.
  // `figures`: of energy.model.
  JobEnergy(comm::Communicator& world, const config::Config& config, std::optional<int> device,
            const std::optional<energy::PowerFigures>& figures);

  void begin_step();
  // Ends the step on this host and appends its joules to `sums`, which the caller then sums over ranks. Every rank
  // appends the same number of values.
  void end_step(std::vector<double>& sums);
  // Returns the job's step from the appended values after their sum over ranks. A scope is null, with its reason, when
  // any host has no reading of it; the total is then null too.
  energy::StepEnergy step(std::span<const double> summed) const;
  std::size_t values() const { return 3 * scopes_.size() + 7 + (model_ ? model_->values() : 0); }

  // Returns the energy of all hosts since the meters were opened; on rank 0 with its phases, as sum_of_accounts does,
  // and with the joules of each host. Collective.
  energy::EnergySoFar so_far();

  // Keeps the last readings of each host's meters in a file of `folder`, so that they survive the process
  // (store/energy_ring.h). Rank 0 gives attempt, history and the earlier attempts' consumption; `head` of other ranks
  // is not used, and the other fields follow from the meters. Returns, on all ranks, why hosts could not make their
  // file: the training goes on without it. Collective.
  std::vector<std::string> keep_readings(const fs::path& folder, const store::EnergyRingHead& head);
  // Says that the attempt ends by itself after this step; its files then say so. To be called on all ranks.
  void end(std::int64_t step);

  // The mean power of a scope of this host from `time_s` on, until the next point of the scope.
  struct Power {
    std::string scope;
    double time_s = 0, watts = 0;  // since `start_ns`
  };
  // Returns the power between these times of the steady clock, in the order of times, as the last readings have it. It
  // begins and changes where a counter changes. Empty on ranks that read no meters, and before `keep_readings`.
  std::vector<Power> power_between(std::int64_t start_ns, std::int64_t end_ns) const;

  // Tell what this rank did and when, for the joules of phases: a step, and what it does outside of steps. `waits` and
  // the timeline as in add_phase_times.
  void ran(const program::Program& program, const std::vector<program::Expanded>& ops,
           const program::Timeline& timeline, const std::vector<data::LoaderWait>& waits);
  void ran(OutsideSteps what, std::int64_t start_ns, std::int64_t end_ns);
  // Returns whether the times of phases should be collected, which is then to be done on all ranks.
  bool phases_due() const { return phases_ && phases_->due(); }
  bool divides_by_phases() const { return phases_ != nullptr; }  // the same on all ranks
  void collect_phases();                                         // collective
  std::int64_t opened_ns() const;  // the time of the steady clock at which the meters were opened

  // Returns why the energy of the job is not known: a host has no meter. Empty: each host has one.
  const std::string& unmetered() const { return unmetered_; }
  const energy::Coverage& coverage() const { return coverage_; }
  // Returns whether this rank reads its host's meters; one rank of each host does.
  bool leads_host() const { return accountant_ != nullptr; }
  const std::string& host_name() const { return host_name_; }
  // Returns the meters for the run's events, as Accountant::describe does. When there are several hosts, each key
  // begins with "HOST: ".
  const Json& describe() const { return description_; }
  // Returns JobModel::describe; null where energy.model is off.
  Json describe_model() const { return model_ ? model_->describe() : Json(); }

 private:
  struct Scope {
    energy::Source source = energy::Source::kNone;  // the least certain source of any host
    std::string lacking;                            // why a host has no meter for it; empty: all hosts have one
  };
  void exchange(comm::Communicator& world, const std::string& own);
  void divide_by_phases(int lowest, const std::vector<int>& device_of, Seconds sample_every);
  Json phases();  // collective
  // Returns EnergySoFar::by_host. Collective. `own`: what the rank that reads this host's meters has read.
  std::map<std::string, energy::HostEnergy> of_hosts(const energy::EnergySoFar& own);
  std::map<std::string, std::string> doubts_of_hosts(const energy::EnergySoFar& own);
  void add_host(const Json& host);
  // `scope_of`: the place of each meter's scope in scopes_.
  void keep_reading(const std::vector<std::size_t>& scope_of, std::size_t scopes, std::span<const double> of_meters,
                    double counted);
  void sync_readings(const std::stop_token& stop);

  comm::Communicator& world_;
  std::string host_name_;
  std::unique_ptr<comm::Communicator> of_host_;  // the ranks of this host
  // The accountant's thread writes to the ring and to the readings.
  std::unique_ptr<store::EnergyRing> ring_;
  struct Joules {
    std::int64_t ns;
    std::vector<double> of_scope;  // in the order of scopes_
  };
  std::atomic<std::int64_t> ended_at_ = -1;  // as in EnergyRing::record
  mutable std::mutex readings_mutex_;
  std::deque<Joules> readings_;                     // the last ones
  std::unique_ptr<energy::Accountant> accountant_;  // on one rank of each host
  std::unique_ptr<PhaseEnergy> phases_;             // when any host has a counter
  double opened_ = 0;                               // on the clock of base/clock.h
  std::int64_t hosts_ = 0;
  std::map<std::string, Scope> scopes_;  // the scopes of any host; the values in the sums have this order
  std::jthread syncing_;                 // with several hosts: writes the ring to disk every few seconds
  energy::Coverage coverage_;
  std::unique_ptr<JobModel> model_;  // where energy.model asks for it
  energy::StepEnergy own_;           // this host's last step: its reasons are exact
  std::string unmetered_;            // why a host has no total at all
  Json description_;
};

}  // namespace molen::train
