// The policy of a run that changes clocks or power limits between its steps (energy.policy, energy.power_budget), or
// lets its program set the clocks within a step (energy.policy = "slack").
// Rank 0 decides by the steps as all ranks measured them, and one rank of each host sets the devices of its host.
// A policy changes how fast a step runs, and no value of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actuate/session.h"
#include "base/json.h"
#include "comm/communicator.h"
#include "config/config.h"
#include "policy/power_budget.h"
#include "policy/step_policy.h"
#include "train/observe/job_energy.h"

namespace molen::train {

struct EnergyPolicyOptions {
  std::function<actuate::Actuators()> open;  // what this host can set; called on the rank that leads it
  // Takes the settings of this host that the policy chose, as Session::open.
  std::function<Result<std::unique_ptr<actuate::HeldSettings>>(
      actuate::Actuators here, const std::vector<std::string>& ids, actuate::SessionOptions options)>
      hold;
  actuate::SessionOptions session;
  policy::SamplingOptions sampling;
  bool cuda = false;  // the job computes on GPUs, so their settings are those that count
};
// Uses this machine, its energy daemon where there is one, and `molen energy guard` of this program as the guardian.
EnergyPolicyOptions policy_options_here(bool cuda);

// Throws UsageError on all ranks if energy.policy = "slack" meets a program that sets no clocks, or another policy one
// that does. `program_khz`: the clocks that the program of this rank sets. Collective.
void require_clocks_agree(comm::Communicator& world, const config::Config& config,
                          const std::vector<std::int64_t>& program_khz);

class EnergyPolicy {
 public:
  // Returns null where the configuration asks for no policy that sets something; `options` is called where it does.
  // `program_khz`: the clocks that the program of this rank sets (program::clocks_set_by), which require_clocks_agree
  // has accepted. Throws UsageError on all ranks, with the key and the reason, if a host has no setting that the job
  // may change, if the policy needs joules that no meter of a host reads, or if a device of the host cannot have one of
  // the program's clocks. Collective.
  static std::unique_ptr<EnergyPolicy> open(comm::Communicator& world, const JobEnergy& energy,
                                            const config::Config& config, const std::vector<std::int64_t>& program_khz,
                                            const std::function<EnergyPolicyOptions()>& options);
  ~EnergyPolicy();

  // Takes a step of all ranks; to be called on rank 0.
  void took(const policy::StepReading& reading);
  // Returns what rank 0 tells the others, and 0 on them: the maximum over ranks is what `set` takes.
  std::int32_t wanted() const;
  // Returns whether a device of this host refused a setting; so that all ranks know, `set` takes the maximum.
  bool refused() const { return !failure_.empty(); }
  // Makes the setting of the next step. Once a host has been refused one, all hosts restore what they found, and the
  // policy ends. To be called on all ranks with the same values; collective only if `refused`.
  void set(std::int32_t wanted, bool refused);
  // Sets the clock that the program asks for, during a step that is the program's; in other steps, and once the policy
  // has ended, nothing. A device that refuses is said by `refused`. To be called by the thread that runs the step.
  void set_by_program(std::int64_t khz);
  // Restores what was found.
  void end();
  // Gives rank 0 the sentences of all hosts; to be called once, after `end`. Collective.
  void gather_news();

  // The setting of the present step, in Hz or W; absent once the policy has ended, and in a step whose program sets the
  // clocks.
  std::optional<double> setting() const;
  // Returns whether the policy has chosen a setting; on rank 0.
  bool has_chosen() const { return policy_ && policy_->chosen(); }
  // Returns whether the present step may run at less than the greatest setting.
  bool lowers() const { return !ended_ && present_ > 0; }
  // Returns the sentences since the last call, for the log.
  std::vector<std::string> take_news();
  // Returns what the policy did, for the end of the run: {"policy", "kind", "unit", "settings", "coverage", "chosen",
  // "savings": {"joules", "seconds": each {"value", "low", "high", "pairs"} or null}, "budget_w", "refused", "text"}.
  Json summary() const;

 private:
  EnergyPolicy(comm::Communicator& world, const config::Config& config, std::string coverage);
  void choose_settings(const std::vector<Json>& hosts);
  void open_session(actuate::Actuators here, const EnergyPolicyOptions& options);
  void take_programs_clocks(const std::vector<std::int64_t>& khz);
  void set_devices(std::int64_t value);

  comm::Communicator& world_;
  std::string name_, key_;         // of the policy, and where the configuration asks for it
  std::string coverage_;           // as energy::Coverage::partial
  std::optional<Watts> asked_;     // the budget
  std::vector<std::string> news_;  // the session's end may add to it
  std::string failure_, refusal_;  // of this host; of any host
  actuate::Kind kind_ = actuate::Kind::kClock;
  std::vector<std::int64_t> ladder_;                // descending, in the units of `kind_`
  std::unique_ptr<policy::StepPolicy> policy_;      // on rank 0, if no budget is asked for
  std::optional<policy::PowerBudget> budget_;       // on rank 0
  std::unique_ptr<actuate::HeldSettings> session_;  // on one rank of each host
  std::size_t next_ = 0, present_ = 0;              // places in the ladder
  bool ended_ = false, out_of_reach_ = false;
  int without_joules_ = 0;  // steps in a row
  // "slack": of the two places in the ladder, the first is the greatest clock for the whole step. The second leaves
  // clocks to the program; the least clock, which the ladder has there, is only tried.
  bool by_program_ = false;
  std::int64_t last_khz_ = 0;  // that the program has set last in a step of its own; 0: none yet
};

}  // namespace molen::train
