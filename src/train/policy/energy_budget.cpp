#include "train/policy/energy_budget.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/json_fields.h"
#include "base/units.h"
#include "energy/totals.h"
#include "sim/calibration.h"
#include "store/console.h"

namespace molen::train {
namespace {

// A budget says so when it has had no joules for so many steps.
constexpr int kSilentSteps = 20;
// The share of a run's steps in which its loss falls faster than by the power law of the rest.
constexpr std::int64_t kTransient = 10;

std::vector<std::string> keys_of(const config::Config& c) {
  std::vector<std::string> keys;
  if (c.energy.energy_budget) keys.emplace_back("energy.energy_budget");
  if (c.energy.co2_budget) keys.emplace_back("energy.co2_budget");
  return keys;
}

Json or_null(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

Json range_json(const policy::Range& range) {
  return {{"value", range.value}, {"low", range.low}, {"high", range.high}};
}

std::string range_text(const policy::Range& range) {
  return fmt::format("{:.4g} ({:.4g} to {:.4g})", range.value, range.low, range.high);
}

Json use_json(const std::optional<policy::Use>& use) {
  return use ? Json{{"joules", use->joules}, {"seconds", use->seconds}} : Json();
}

std::optional<policy::Use> use_from(const JsonFields& fields, const char* key) {
  const Json* of = fields.find(key);
  if (!of) return std::nullopt;
  const JsonFields use(*of, fmt::format("{}: {}", fields.origin(), key));
  return policy::Use{use.number("joules"), use.number("seconds")};
}

// Keeps the greatest: one that is a little too dear only ends a run a little sooner.
void keep_greatest(std::optional<policy::Use>& known, const policy::Use& seen) {
  if (!known || seen.joules > known->joules) known = seen;
}

std::string energy_text_of(double joules) {
  return store::energy_text(joules / kJoulesPerKwh);
}

}  // namespace

bool has_budget(const config::Config& config) {
  return config.energy.energy_budget || config.energy.co2_budget;
}

void require_intensity(const config::Config& config, const std::optional<std::string>& cluster) {
  if (!config.energy.co2_budget || config.energy.site || (cluster && !sim::is_calibration(*cluster))) return;
  throw UsageError(
      "{}: emissions need the carbon intensity of a site, and none is named: set energy.site to a country such as NL, "
      "a cluster or a file (docs/formats/site.md)",
      config.where("energy.co2_budget"));
}

void require_measured(const config::Config& config, const JobEnergy& energy, const std::optional<Json>& totals,
                      std::int64_t step, const std::string& origin) {
  for (const std::string& key : keys_of(config))
    if (const std::string& why = energy.unmetered(); !why.empty())
      throw UsageError(
          "{}: a budget is compared with what meters count, and the run's energy is not measured: {} (`molen energy "
          "list` says why)",
          config.where(key), why);
  if (!config.energy.co2_budget || !totals) return;
  const energy::RunTotals before = energy::totals_from_json(*totals, step, origin);
  if (before.spent_total_j > 0.0 && !before.spent_at_site.kg_co2e)
    throw UsageError(
        "{}: an earlier attempt of this run measured energy and named no site (energy.site), so its emissions so far "
        "are not known; use energy.energy_budget, or begin a new run",
        config.where("energy.co2_budget"));
}

std::optional<Shrunk> shrunk_of(const Json& state, const std::string& origin) {
  if (!state.contains("budget")) return std::nullopt;
  const JsonFields budget(state.at("budget"), origin + ": budget");
  const Json* shrunk = budget.find("shrunk");
  if (!shrunk) return std::nullopt;
  const JsonFields fields(*shrunk, origin + ": budget: shrunk");
  const Shrunk found{fields.integer("after_step"), fields.text("from"), fields.integer("to")};
  if (found.to <= found.after_step || found.after_step < 0)
    throw UsageError("{}: a schedule that ends after step {} was shortened after step {}", fields.origin(), found.to,
                     found.after_step);
  return found;
}

EnergyBudget::EnergyBudget(const config::Config& config, const Length& length, std::string coverage,
                           const cluster::RunSite* site, std::function<double()> wall_clock)
    : joules_(config.energy.energy_budget),
      kg_budget_(config.energy.co2_budget),
      action_(config.energy.on_budget),
      until_(config::print(config.train.until)),
      length_(length),
      coverage_(std::move(coverage)),
      site_(site),
      wall_clock_(std::move(wall_clock)) {}

void EnergyBudget::restore(const Json& state, const std::string& origin) {
  const JsonFields fields(state, origin + ": budget");
  if (const Json* step = fields.find("step")) {
    const JsonFields of(*step, fields.origin() + ": step");
    const auto degrees = static_cast<int>(of.integer("degrees"));
    if (degrees < 1) throw UsageError("{}: {} degrees of freedom", of.origin(), degrees);
    earlier_ = policy::StepUse{
        {of.number("joules"), of.number("seconds")}, of.number("mean_variance"), of.number("step_variance"), degrees};
  }
  save_ = use_from(fields, "save"), validation_ = use_from(fields, "validation");
  if (const Json* losses = fields.find("losses"))
    losses_ = policy::LossCurve::from_json(*losses, fields.origin() + ": losses");
  shrunk_ = shrunk_of({{"budget", state}}, origin);
  if (shrunk_ && shrunk_->to != length_.total_steps) shrunk_.reset();  // --allow-change train.until
}

Json EnergyBudget::state() const {
  Json step;
  if (const auto known = costs())
    step = {{"joules", known->step.mean.joules},
            {"seconds", known->step.mean.seconds},
            {"mean_variance", known->step.mean_variance},
            {"step_variance", known->step.step_variance},
            {"degrees", known->step.degrees}};
  Json all{
      {"step", step}, {"save", use_json(save_)}, {"validation", use_json(validation_)}, {"losses", losses_.to_json()}};
  if (shrunk_) all["shrunk"] = {{"after_step", shrunk_->after_step}, {"from", shrunk_->from}, {"to", shrunk_->to}};
  return all;
}

// The joules between two steps belong to what the run did there, in proportion to its seconds. The first step of an
// attempt is not measured: it sets up what later ones reuse.
void EnergyBudget::measure(const Taken& t) {
  const Outside between = std::exchange(outside_, {});
  const double outside_s = between.save + between.validation;
  const std::optional<double> before = std::exchange(last_so_far_, t.so_far_j);
  const std::optional<double> since = std::exchange(last_time_, t.time_s);
  if (!before || !since || !t.so_far_j) return;
  const double rise = *t.so_far_j - *before;
  double joules = rise;
  if (outside_s > 0.0) {
    if (!t.added_j) return;
    joules = *t.added_j;
    const double watts = std::max(0.0, rise - joules) / outside_s;
    if (between.save > 0.0) keep_greatest(save_, {watts * between.save, between.save});
    if (between.validation > 0.0) keep_greatest(validation_, {watts * between.validation, between.validation});
  }
  recent_.add({joules, std::max(0.0, t.time_s - *since - outside_s)});
}

void EnergyBudget::took(const Taken& t) {
  step_ = t.step, spent_ = t.spent;
  if (t.loss) losses_.add(t.step, *t.loss);
  measure(t);
  wanted_ = {};
  const bool budget = joules_ || kg_budget_;
  without_joules_ = t.so_far_j ? 0 : without_joules_ + 1;
  if (budget && without_joules_ == kSilentSteps) {
    Json news = event("unmeasured", 0);
    news["text"] = fmt::format("{}: no joules for {} steps, so the budget is compared with what was counted before",
                               budgets_text(), kSilentSteps);
    events_.push_back(std::move(news));
  }
  const auto known = costs();
  if (known) forecast(*known);
  if (!budget || step_ >= length_.total_steps) return;
  const policy::Left rest = left(spent_);
  if ((rest.joules && *rest.joules <= 0.0) || (rest.kg && *rest.kg <= 0.0))
    wanted_.stop = true;
  else if (known)
    decide(*known);
}

std::optional<policy::RunCosts> EnergyBudget::costs() const {
  auto step = recent_.use();
  if (!step) step = earlier_;
  if (!step) return std::nullopt;
  return policy::RunCosts{*step, save_, validation_};
}

policy::RunAhead EnergyBudget::ahead(std::int64_t step, bool pending) const {
  return {step, pending, length_.save_every, length_.save_every_s, length_.validate_every};
}

policy::Left EnergyBudget::left(const Recorder::Spent& spent) const {
  policy::Left rest;
  if (joules_) rest.joules = joules_->value - spent.joules.value_or(0.0);
  if (kg_budget_) rest.kg = kg_budget_->value - spent.kg.value_or(0.0);
  return rest;
}

policy::Emissions EnergyBudget::emissions() const {
  if (!site_) return {};
  return [site = site_, from = wall_clock_()](double joules, double seconds) {
    return joules * site->pue.value * site->mean_intensity(from, from + seconds);
  };
}

void EnergyBudget::forecast(const policy::RunCosts& costs) {
  kwh_.reset(), kg_.reset();
  if (!spent_.joules) return;
  const policy::Ahead rest = needed(costs, ahead(step_, true), std::max(step_, length_.total_steps));
  const auto kwh = [&](double joules) { return (*spent_.joules + joules) / kJoulesPerKwh; };
  kwh_ = {kwh(rest.joules.value), kwh(rest.joules.low), kwh(rest.joules.high)};
  if (!site_ || !spent_.kg) return;
  const policy::Emissions of = emissions();
  const auto kg = [&](double joules) { return *spent_.kg + of(joules, rest.seconds); };
  kg_ = {kg(rest.joules.value), kg(rest.joules.low), kg(rest.joules.high)};
}

void EnergyBudget::decide(const policy::RunCosts& costs) {
  const policy::RunAhead now = ahead(step_, true);
  const policy::Left rest = left(spent_);
  const auto paid = [&](policy::Bound bound) {
    return last_paid(rest, costs, now, length_.total_steps, bound, emissions());
  };
  const std::int64_t sure = paid(policy::Bound::kHigh), expected = paid(policy::Bound::kValue);
  wanted_.stop = sure <= step_;
  if (wanted_.stop || expected >= length_.total_steps) return;
  if (wants_measurement(costs)) return;
  if (action_ == "shrink") {
    // A shorter schedule cannot be taken back, so the first one is not taken for chance. A schedule that is shorter
    // already gives way at once: a run that stops within its decay loses more than a few steps.
    if (shrunk_ || surely_exceeds(rest, costs, now, length_.total_steps, emissions())) want_shrink(sure);
    return;
  }
  if (std::exchange(exceeds_, true)) return;
  slowing_ = action_ == "slow";
  Json news = event(slowing_ ? "slow" : "exceeds", expected);
  news["text"] =
      fmt::format("{}: pays for {} of {}; {}. {}. {}", budgets_text(), counted(expected, "step"),
                  counted(length_.total_steps, "step"), costs_text(),
                  slowing_ ? "The run looks for the setting with the least energy a step (energy.on_budget = \"slow\")"
                           : "The run will stop there (energy.on_budget = \"stop\")",
                  loss_text(expected));
  events_.push_back(std::move(news));
}

// The checkpoint and the validation that end a run must be paid for, so both have to be measured before the end.
bool EnergyBudget::wants_measurement(const policy::RunCosts& costs) {
  wanted_.save = !costs.save && !std::exchange(asked_save_, true);
  wanted_.validation = length_.validate_every > 0 && !costs.validation && !std::exchange(asked_validation_, true);
  return wanted_.save || wanted_.validation;
}

void EnergyBudget::want_shrink(std::int64_t sure) {
  if (sure > length_.warmup_steps) {
    wanted_.shrink_to = sure;
    return;
  }
  if (std::exchange(said_no_shrink_, true)) return;
  Json news = event("exceeds", sure);
  news["text"] = fmt::format(
      "{}: pays for {}, which is within the {} of warm-up, so no shorter schedule fits; the run will stop there. {}",
      budgets_text(), counted(sure, "step"), counted(length_.warmup_steps, "step"), costs_text());
  events_.push_back(std::move(news));
}

void EnergyBudget::shrink() {
  const std::int64_t to = wanted_.shrink_to;
  Json news = event("shrink", to);
  news["text"] = fmt::format(
      "{}: the learning-rate schedule ends after {} instead of {}, from step {} on (energy.on_budget = \"shrink\"); "
      "{}. {}",
      budgets_text(), counted(to, "step"), length_.total_steps, step_ + 1, costs_text(), loss_text(to));
  events_.push_back(std::move(news));
  shrunk_ = {step_, shrunk_ ? shrunk_->from : until_, to};
  length_.total_steps = to;
}

void EnergyBudget::slow_chosen(bool chosen) {
  chosen_for_ = slowing_ && chosen ? chosen_for_ + 1 : 0;
  // The steps of the search are then no longer among those that the forecast rests on.
  if (chosen_for_ < static_cast<int>(policy::RecentSteps::kSteps) || said_slow_) return;
  const auto known = costs();
  if (!known) return;
  said_slow_ = true;
  const std::int64_t expected =
      last_paid(left(spent_), *known, ahead(step_, true), length_.total_steps, policy::Bound::kValue, emissions());
  Json news = event("slow", expected);
  news["text"] =
      expected >= length_.total_steps
          ? fmt::format("{}: the setting that was chosen is expected to keep it; {}", budgets_text(), costs_text())
          : fmt::format(
                "{}: the setting that was chosen is not enough: pays for {} of {}, and the run will stop "
                "there; {}. {}",
                budgets_text(), counted(expected, "step"), counted(length_.total_steps, "step"), costs_text(),
                loss_text(expected));
  events_.push_back(std::move(news));
}

bool EnergyBudget::used_up(std::int64_t step, const Recorder::Spent& spent) {
  step_ = step, spent_ = spent;
  if (step >= length_.total_steps) return false;
  const policy::Left rest = left(spent);
  if ((rest.joules && *rest.joules <= 0.0) || (rest.kg && *rest.kg <= 0.0)) return true;
  const auto known = costs();
  return known &&
         last_paid(rest, *known, ahead(step, false), length_.total_steps, policy::Bound::kHigh, emissions()) <= step;
}

std::string EnergyBudget::reason() const {
  return fmt::format("{} of {} steps; {} pays for no further one ({}); a greater budget lets the run go on. {}", step_,
                     length_.total_steps, budgets_text(), used_text(spent_), loss_text(step_));
}

std::string EnergyBudget::warning(double step_j, std::int64_t step, const Recorder::Spent& spent,
                                  const std::string& by) const {
  const auto steps = static_cast<double>(length_.total_steps - step);
  policy::RunCosts predicted{{{step_j, 0.0}, 0.0, 0.0, 1}, {}, {}};
  const policy::Emissions of = emissions();
  const double more = needed(predicted, ahead(step, false), length_.total_steps).joules.value;
  const double joules = spent.joules.value_or(0.0) + more;
  std::string text;
  if (joules_ && joules > joules_->value)
    text += fmt::format("energy.energy_budget: {} is less than the {} that the run takes by the prediction of {}",
                        energy_text_of(joules_->value), energy_text_of(joules), by);
  if (kg_budget_ && of)
    if (const double kg = spent.kg.value_or(0.0) + of(more, 0.0); kg > kg_budget_->value)
      text += fmt::format("{}energy.co2_budget: {} is less than the {} that the run emits by the prediction of {}",
                          text.empty() ? "" : "; ", store::emissions_text(kg_budget_->value), store::emissions_text(kg),
                          by);
  if (text.empty()) return text;
  return fmt::format("{} ({:.0f} steps of {:.4g} J, with {} before; checkpoints and validations come on top)", text,
                     steps, step_j, energy_text_of(spent.joules.value_or(0.0)));
}

std::vector<Json> EnergyBudget::take_events() {
  return std::exchange(events_, {});
}

Json EnergyBudget::end(std::int64_t step, const Recorder::Spent& spent) const {
  Json last = event("end", step);
  last["step"] = step;
  last["used_j"] = or_null(spent.joules), last["used_kg"] = or_null(spent.kg);
  last["text"] = fmt::format("budget of the run: {}", used_text(spent));
  return last;
}

Json EnergyBudget::event(const char* action, std::int64_t paid) const {
  const auto at_end = [](const std::optional<store::AtEnd>& value) {
    return value ? Json{{"value", value->value}, {"low", value->low}, {"high", value->high}} : Json();
  };
  const auto known = costs();
  return {{"step", step_},
          {"action", action},
          {"on_budget", action_},
          {"budget_j", joules_ ? Json(joules_->value) : Json()},
          {"budget_kg", kg_budget_ ? Json(kg_budget_->value) : Json()},
          {"used_j", or_null(spent_.joules)},
          {"used_kg", or_null(spent_.kg)},
          {"undone_j", spent_.undone_j},
          {"planned_steps", length_.total_steps},
          {"paid_steps", paid},
          {"step_j", known ? Json(known->step.mean.joules) : Json()},
          {"save_j", save_ ? Json(save_->joules) : Json()},
          {"validation_j", validation_ ? Json(validation_->joules) : Json()},
          {"kwh_at_end", at_end(kwh_)},
          {"kg_co2e_at_end", at_end(kg_)},
          {"coverage", coverage_},
          {"loss", loss_json(paid)}};
}

Json EnergyBudget::loss_json(std::int64_t paid) const {
  const auto law = policy::LossLaw::fit(losses_, std::max(length_.warmup_steps, step_ / kTransient));
  if (!law) return {{"why", law.reason()}};
  const auto at = [&](std::int64_t step) {
    return range_json(law.value().at(static_cast<double>(std::max<std::int64_t>(1, step))));
  };
  return {
      {"planned", at(length_.total_steps)}, {"paid", at(paid)}, {"e", law.value().e()}, {"alpha", law.value().alpha()}};
}

std::string EnergyBudget::loss_text(std::int64_t paid) const {
  const auto law = policy::LossLaw::fit(losses_, std::max(length_.warmup_steps, step_ / kTransient));
  if (!law) return fmt::format("No forecast of the loss: {}", law.reason());
  const auto at = [&](std::int64_t step) {
    return range_text(law.value().at(static_cast<double>(std::max<std::int64_t>(1, step))));
  };
  return fmt::format(
      "By a power law through the run's own losses, which knows no decay of the learning rate, {} reach a loss of {}, "
      "and {} reach {}",
      counted(length_.total_steps, "step"), at(length_.total_steps), counted(paid, "step"), at(paid));
}

std::string EnergyBudget::budgets_text() const {
  std::vector<std::string> all;
  if (joules_) all.push_back("energy.energy_budget = " + config::print(*joules_));
  if (kg_budget_) all.push_back("energy.co2_budget = " + config::print(*kg_budget_));
  return fmt::format("{}", fmt::join(all, " with "));
}

std::string EnergyBudget::used_text(const Recorder::Spent& spent) const {
  std::vector<std::string> all;
  const auto share = [](double used, double budget) { return 100.0 * used / budget; };
  if (joules_)
    all.push_back(spent.joules ? fmt::format("{} of {} used, {:.1f} %", energy_text_of(*spent.joules),
                                             energy_text_of(joules_->value), share(*spent.joules, joules_->value))
                               : "energy not measured");
  if (kg_budget_)
    all.push_back(spent.kg ? fmt::format("{} of {} emitted, {:.1f} %", store::emissions_text(*spent.kg),
                                         store::emissions_text(kg_budget_->value), share(*spent.kg, kg_budget_->value))
                           : "emissions not known");
  std::string text = fmt::format("{}", fmt::join(all, "; "));
  if (spent.undone_j > 0.0)
    text += fmt::format("; {} of it on steps that failures undid", energy_text_of(spent.undone_j));
  if (!coverage_.empty()) text += fmt::format("; counted: {}", coverage_);
  return text;
}

std::string EnergyBudget::costs_text() const {
  std::string text = used_text(spent_);
  const auto known = costs();
  if (!known) return text;
  text += fmt::format("; a step takes {}", energy_text_of(known->step.mean.joules));
  text += save_ ? fmt::format(", a checkpoint {}", energy_text_of(save_->joules)) : ", a checkpoint is not measured";
  if (length_.validate_every > 0)
    text += validation_ ? fmt::format(", a validation {}", energy_text_of(validation_->joules))
                        : ", a validation is not measured";
  if (kwh_)
    text += fmt::format("; {} would take {} ({} to {})", counted(length_.total_steps, "step"),
                        store::energy_text(kwh_->value), store::energy_text(kwh_->low), store::energy_text(kwh_->high));
  if (kg_)
    text += fmt::format(" and emit {} ({} to {})", store::emissions_text(kg_->value), store::emissions_text(kg_->low),
                        store::emissions_text(kg_->high));
  return text;
}

}  // namespace molen::train
