#include "policy/power_budget.h"

#include <cmath>
#include <utility>

#include "base/error.h"

namespace molen::policy {
namespace {

// The weight of a new reading beside those before it. A reading above what was expected counts whole, so that a step
// over the budget is answered at once.
constexpr double kWeight = 0.25;
// The least time over which a power is taken.
constexpr double kLeastS = 0.5;
// A greater setting is taken only with so much room, so that the setting does not go to and fro.
constexpr double kRoom = 0.98;
// After so many judgements without a change, the powers of greater settings are forgotten: they may have been those of
// a moment, and a setting that is never run is never measured again.
constexpr int kForgetAfter = 50;

double positive_budget(Watts budget) {
  if (!(budget.value > 0.0) || !std::isfinite(budget.value))
    throw UsageError("energy.power_budget: must be above 0 W, is {:g} W", budget.value);
  return budget.value;
}

}  // namespace

PowerBudget::PowerBudget(std::vector<double> settings, Watts budget)
    : settings_(std::move(settings)), watts_(settings_.size()), budget_w_(positive_budget(budget)) {
  if (settings_.empty()) throw UsageError("energy.power_budget: there is no setting to choose");
  for (std::size_t i = 0; i < settings_.size(); ++i)
    if (!(settings_[i] > 0.0) || !std::isfinite(settings_[i]) || (i > 0 && settings_[i] >= settings_[i - 1]))
      throw UsageError("energy.power_budget: settings must be positive and descending");
}

void PowerBudget::set_budget(Watts budget) {
  budget_w_ = positive_budget(budget);
}

std::optional<Watts> PowerBudget::expected(std::size_t setting) const {
  MOLEN_CHECK(setting < settings_.size(), "setting {} of {}", setting, settings_.size());
  if (watts_[setting]) return Watts(*watts_[setting]);
  std::optional<std::size_t> above, below;  // measured settings of greater and of lesser values
  for (std::size_t i = 0; i < setting; ++i)
    if (watts_[i]) above = i;
  for (std::size_t i = settings_.size(); i-- > setting + 1;)
    if (watts_[i]) below = i;
  if (above && below) {
    const double share = (settings_[setting] - settings_[*below]) / (settings_[*above] - settings_[*below]);
    return Watts(*watts_[*below] + share * (*watts_[*above] - *watts_[*below]));
  }
  if (above) return Watts(*watts_[*above] * settings_[setting] / settings_[*above]);
  if (below) return Watts(*watts_[*below] * std::pow(settings_[setting] / settings_[*below], 3.0));
  return std::nullopt;
}

std::size_t PowerBudget::greatest_within() const {
  for (std::size_t i = 0; i < settings_.size(); ++i)
    if (expected(i)->value <= budget_w_ * (i < setting_ ? kRoom : 1.0)) return i;
  return settings_.size() - 1;
}

bool PowerBudget::out_of_reach() const {
  const auto least = expected(settings_.size() - 1);
  return least && least->value > budget_w_;
}

std::size_t PowerBudget::next(const StepReading& reading) {
  const bool read = reading.joules && std::isfinite(reading.joules->value) && reading.joules->value >= 0.0 &&
                    reading.seconds.value > 0.0 && std::isfinite(reading.seconds.value);
  if (!read) return setting_;
  pending_s_ += reading.seconds.value;
  pending_j_ += reading.joules->value;
  if (pending_s_ < kLeastS || !(pending_j_ > 0.0)) return setting_;
  const double watts = std::exchange(pending_j_, 0.0) / std::exchange(pending_s_, 0.0);
  std::optional<double>& known = watts_[setting_];
  known = known && watts <= *known ? (1.0 - kWeight) * *known + kWeight * watts : watts;
  if (quiet_ >= kForgetAfter) {
    for (std::size_t i = 0; i < setting_; ++i) watts_[i].reset();
    quiet_ = 0;
  }
  const std::size_t before = std::exchange(setting_, greatest_within());
  quiet_ = setting_ == before ? quiet_ + 1 : 0;
  return setting_;
}

}  // namespace molen::policy
