// The budgets of a run (energy.energy_budget, energy.co2_budget), and the forecast of its energy and emissions. Rank 0
// measures and decides, and the loop makes all ranks do what it wants. docs/decisions/0022-budgets.md has the reasons.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "cluster/site.h"
#include "config/config.h"
#include "policy/loss_curve.h"
#include "policy/run_budget.h"
#include "store/metrics.h"
#include "train/observe/recorder.h"

namespace molen::train {

// Throws UsageError, with the key and the reason, for a budget of emissions where no site gives an intensity.
// `cluster`: the description or calibration that --cluster names.
void require_intensity(const config::Config& config, const std::optional<std::string>& cluster);
// Throws UsageError for a budget where a host of `energy` has no meter, or where `totals` (of the checkpoint that is
// continued, after `step` steps; `origin` names it) have energy of unknown emissions.
void require_measured(const config::Config& config, const JobEnergy& energy, const std::optional<Json>& totals,
                      std::int64_t step, const std::string& origin);
bool has_budget(const config::Config& config);

// A resume must know how a budget has shortened the schedule. This is the member "shrunk" of a checkpoint's "budget".
struct Shrunk {
  std::int64_t after_step = 0;  // the steps after it have the shorter schedule
  std::string from;             // train.until as it was
  std::int64_t to = 0;          // steps
};
// Returns nothing if no budget has shortened the schedule of the state. Throws UsageError that names `origin`.
std::optional<Shrunk> shrunk_of(const Json& state, const std::string& origin);

class EnergyBudget {
 public:
  struct Length {
    std::int64_t total_steps = 0, warmup_steps = 0;
    std::int64_t save_every = 0;  // steps; 0: every `save_every_s`
    double save_every_s = 0.0;
    std::int64_t validate_every = 0;  // steps; 0: the run does not validate
  };
  // `coverage`: the parts of the machine that the meters leave out, as energy::Coverage::partial. `site`: where the
  // attempt runs, or null; must outlive this object. `wall_clock` gives seconds since 1970.
  EnergyBudget(const config::Config& config, const Length& length, std::string coverage, const cluster::RunSite* site,
               std::function<double()> wall_clock);

  // Takes over what an earlier attempt knew, from the value of `state`. Throws UsageError that names `origin`.
  void restore(const Json& state, const std::string& origin);
  Json state() const;

  struct Taken {
    std::int64_t step = 0;
    double time_s = 0.0;                      // at its end, on a clock that does not go back
    std::optional<double> so_far_j, added_j;  // as energy::StepEnergy
    std::optional<double> loss;               // absent: the update was skipped
    Recorder::Spent spent;
  };
  void took(const Taken& step);
  // Says that rank 0 saved or validated after the last step, for so long.
  void saved(double seconds) { outside_.save += seconds; }
  void validated(double seconds) { outside_.validation += seconds; }

  // The forecast after the last step; absent until enough steps are measured.
  std::optional<store::AtEnd> kwh_at_end() const { return kwh_; }
  std::optional<store::AtEnd> kg_co2e_at_end() const { return kg_; }

  struct Wanted {
    bool stop = false;
    bool save = false, validation = false;  // now, because none was measured yet
    std::int64_t shrink_to = 0;             // steps; 0: the schedule stays
  };
  const Wanted& wanted() const { return wanted_; }
  // Returns whether energy.on_budget = "slow" lets its policy search.
  bool slowing() const { return slowing_; }
  // Says, in the log, how the slower setting does once the policy has chosen; to be called after each step.
  void slow_chosen(bool chosen);
  // The schedule ends after `wanted().shrink_to` steps from now on.
  void shrink();

  // Returns whether the budget pays for no step after `step`, before any step of this attempt.
  bool used_up(std::int64_t step, const Recorder::Spent& spent);
  // Returns why the run stops: a sentence for the event "stop".
  std::string reason() const;
  // Returns a warning where a predicted step (J) says that a budget cannot be met, else "". `by`: whose prediction.
  std::string warning(double step_j, std::int64_t step, const Recorder::Spent& spent, const std::string& by) const;
  // Returns the events "budget" since the last call.
  std::vector<Json> take_events();
  // Returns the last event, of a run that has consumed `spent` after `step` steps.
  Json end(std::int64_t step, const Recorder::Spent& spent) const;

 private:
  struct Outside {
    double save = 0.0, validation = 0.0;  // s
  };
  void measure(const Taken& step);
  std::optional<policy::RunCosts> costs() const;
  policy::RunAhead ahead(std::int64_t step, bool pending) const;
  policy::Left left(const Recorder::Spent& spent) const;
  policy::Emissions emissions() const;
  void forecast(const policy::RunCosts& costs);
  void decide(const policy::RunCosts& costs);
  void want_shrink(std::int64_t sure);
  bool wants_measurement(const policy::RunCosts& costs);
  Json event(const char* action, std::int64_t paid) const;
  Json loss_json(std::int64_t paid) const;
  std::string budgets_text() const;
  std::string used_text(const Recorder::Spent& spent) const;
  std::string costs_text() const;
  std::string loss_text(std::int64_t paid) const;

  std::optional<Joules> joules_;
  std::optional<config::Kilograms> kg_budget_;
  std::string action_;  // energy.on_budget
  std::string until_;   // train.until as the user has it
  Length length_;
  std::string coverage_;
  const cluster::RunSite* site_;
  std::function<double()> wall_clock_;

  policy::RecentSteps recent_;
  std::optional<policy::StepUse> earlier_;  // of the attempt before
  std::optional<policy::Use> save_, validation_;
  policy::LossCurve losses_;
  std::optional<Shrunk> shrunk_;

  std::int64_t step_ = 0;
  Recorder::Spent spent_;
  std::optional<double> last_so_far_, last_time_;
  Outside outside_;  // since the last step
  int without_joules_ = 0;

  std::optional<store::AtEnd> kwh_, kg_;
  Wanted wanted_;
  bool exceeds_ = false, asked_save_ = false, asked_validation_ = false, slowing_ = false, said_slow_ = false;
  bool said_no_shrink_ = false;
  int chosen_for_ = 0;  // steps since the policy of "slow" has chosen
  std::vector<Json> events_;
};

}  // namespace molen::train
