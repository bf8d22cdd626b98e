// A budget of power, kept by choosing among settings: the greatest setting whose power is within the budget. It answers
// a step, or a new budget, with the setting of the next step. Pure and deterministic, like StepPolicy.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "policy/paired.h"

namespace molen::policy {

class PowerBudget {
 public:
  // `settings`: strictly descending positive values. Throws UsageError for others, and for a budget that is not
  // positive. The first step runs at the greatest setting.
  PowerBudget(std::vector<double> settings, Watts budget);
  // Takes another budget, which the next call of `next` answers.
  void set_budget(Watts budget);
  // Takes the step that ran at the setting that was last returned; returns that of the next step. Steps shorter than
  // half a second are judged together, because counters change a few times a second. A step without joules is left out.
  std::size_t next(const StepReading& reading);
  // Returns the power that a step takes at a setting: as measured; between two measured settings by the line through
  // them; beyond them by the nearest, in proportion to the setting below it, and to its cube above it, which is the
  // most that a circuit takes (C V^2 f, with a voltage in proportion to the clock). Absent before the first reading.
  std::optional<Watts> expected(std::size_t setting) const;
  // Returns whether even the least setting is expected to exceed the budget.
  bool out_of_reach() const;

 private:
  std::size_t greatest_within() const;

  std::vector<double> settings_;
  std::vector<std::optional<double>> watts_;
  double budget_w_;
  std::size_t setting_ = 0;
  double pending_s_ = 0.0, pending_j_ = 0.0;  // of the steps that were not judged yet
  int quiet_ = 0;                             // judgements in a row that kept the setting
};

}  // namespace molen::policy
