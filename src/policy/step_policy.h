// Policies that choose one setting (a clock or a power limit) for whole steps, by measuring. They are state machines
// without clocks, files and random numbers: fed with each step's seconds and joules, they answer with the setting of
// the next step. Ranks that feed them the same readings get the same answers, so one rank of each host can set it.
//
// Settings are numbered from the greatest value down (Actuator::ladder). Every comparison is with the *reference*
// setting, measured in turn with the candidate, never with what happens to be set.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/paired.h"

namespace molen::policy {

enum class Selector { kEnergy, kTime, kZeusCost, kMaxSlowdown };

struct StepPolicyOptions {
  std::vector<double> settings;         // values in one unit (Hz or W), strictly descending; at least one
  std::vector<std::string> names = {};  // of the settings, for sentences; empty: their values
  std::size_t reference = 0;            // min_time and min_time_energy climb from it, so theirs is above 0
  double slowdown = 0.05;               // min_energy: a step may take so much longer than at the reference, as a share
  double efficiency = 0.7;              // min_time: EAR's min_eff_gain
  Selector selector = Selector::kZeusCost;  // of the sweep
  double eta = 0.5;                         // ZeusCost: the weight of energy, 0 to 1
  std::optional<Watts> most_power;          // ZeusCost; absent: the power that is measured at the reference
  int hold_steps = 1000;                    // between two checks of the chosen setting beside the reference
  SamplingOptions sampling;

  std::string name_of(std::size_t setting) const;
};

struct Decision {
  std::size_t setting = 0;  // of the next step
  std::string news;         // a sentence where the policy has decided something; else empty
};

class StepPolicy {
 public:
  virtual ~StepPolicy() = default;
  // Takes the step that ran at the setting that was last returned (the reference, before the first call).
  virtual Decision next(const StepReading& reading) = 0;
  // Returns the setting that the policy has chosen; nothing while it still searches.
  virtual std::optional<std::size_t> chosen() const = 0;
  // Returns what the chosen setting saves, by pairs that were measured since it was chosen.
  virtual const Savings& savings() const = 0;
};

// Returns the names of the policies: "monitor" changes nothing; "min_energy" takes the least joules a step within
// `slowdown`; "min_time" climbs from the reference while the time that is gained is worth the clock (EAR's rule,
// gain of time >= efficiency * gain of clock, both relative to the reference); "min_time_energy" climbs, and where that
// gains nothing, takes min_energy's way down; "sweep" measures all settings from the reference down, as Zeus does for
// power limits, and chooses by `selector`.
const std::vector<std::string>& step_policy_names();

// Makes a policy. Throws UsageError that names the option or the policy for what makes no sense.
std::unique_ptr<StepPolicy> make_step_policy(std::string_view name, const StepPolicyOptions& options);

// A candidate beside the reference: ratios, 1 for the reference itself.
struct Measured {
  std::size_t setting = 0;
  Interval seconds;
  std::optional<Interval> joules;
  double reference_s = 0.0;  // mean step at the reference
  std::optional<double> reference_j;
};

enum class Verdict { kMore, kGood, kBad };  // kMore: more pairs are needed

// How a policy searches; StepPolicy of make_step_policy measures for it.
class Strategy {
 public:
  explicit Strategy(StepPolicyOptions options) : options_(std::move(options)) {}
  virtual ~Strategy() = default;
  virtual bool needs_joules() const = 0;
  // Judges a candidate by the pairs so far.
  virtual Verdict judge(const Measured& candidate) const = 0;
  // Returns the next candidate after those that were measured, in their order, each with its verdict; nothing when the
  // search has ended.
  virtual std::optional<std::size_t> candidate(const std::vector<std::pair<Measured, Verdict>>& measured) const = 0;
  // Returns the best setting of those.
  virtual std::size_t choose(const std::vector<std::pair<Measured, Verdict>>& measured) const = 0;
  // Returns whether a setting that lies further from the reference is better than the chosen one.
  virtual bool better(const Measured& further, const Measured& chosen) const = 0;
  // Returns whether a setting beyond the chosen one is tried at each check.
  virtual bool explores() const { return true; }
  const StepPolicyOptions& options() const { return options_; }

 private:
  StepPolicyOptions options_;
};
std::unique_ptr<Strategy> make_strategy(std::string_view name, const StepPolicyOptions& options);

}  // namespace molen::policy
