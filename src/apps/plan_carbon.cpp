#include "apps/plan_carbon.h"

#include <fmt/format.h>

#include <limits>

#include "apps/cli.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "config/values.h"

namespace molen::apps {
namespace {

constexpr double kKgPerJouleInGramsPerKwh = 1e3 * 3.6e6;  // one kg/J in g/kWh
constexpr double kJoulesPerMwh = 3.6e9;

// A deadline is a time, or a length from the earliest start on.
double deadline_of(const std::string& text, double earliest_s) {
  if (const auto length = config::parse_seconds(text)) return earliest_s + length.value().value;
  const auto time = parse_time(text);
  if (!time)
    throw UsageError("--deadline: '{}' is neither a length such as \"10 days\" nor a time such as 2026-11-21T04:02Z",
                     text);
  return time.value();
}

Json window_json(const CarbonPlan& p, const plan::CarbonWindow& w) {
  const plan::Estimate kg = p.emissions(w);
  return {{"start", utc_timestamp(w.start_s)},
          {"end", utc_timestamp(w.end_s)},
          {"g_per_kwh", w.kg_per_j * kKgPerJouleInGramsPerKwh},
          {"kg_co2e", {{"value", kg.value}, {"low", kg.low()}, {"high", kg.high()}}}};
}

}  // namespace

plan::Estimate CarbonPlan::emissions(const plan::CarbonWindow& window) const {
  return window.kg_per_j * site;
}

CarbonQuestion::CarbonQuestion(const PlanCarbonArguments& o)
    : forecast_(cluster::read_intensity(o.forecast)),
      earliest_s_(o.from ? time_option(*o.from, "--from") : wall_time()) {
  if (earliest_s_ < forecast_.begin_s() || earliest_s_ >= forecast_.end_s())
    throw UsageError("--carbon: {} is a forecast for {} to {}, and {}, {}, is not in between", o.forecast,
                     utc_timestamp(forecast_.begin_s()), utc_timestamp(forecast_.end_s()),
                     o.from ? "--from" : "the present (--from says another time)", utc_timestamp(earliest_s_));
  if (o.deadline) deadline_s_ = deadline_of(*o.deadline, earliest_s_);
  if (deadline_s_ && *deadline_s_ <= earliest_s_)
    throw UsageError("--deadline: {} is not after the earliest start, {}", utc_timestamp(*deadline_s_),
                     utc_timestamp(earliest_s_));
}

CarbonPlan CarbonQuestion::answer(const WholeRun& run) const {
  if (!run.run)
    throw UsageError("--carbon: no whole run is predicted, so no window can be chosen: {}",
                     run.absent.empty() ? "train.until does not say how long the run is" : run.absent);
  if (!run.run->ends()) throw UsageError("--carbon: failures come so often that the run is not expected to end");
  try {
    const auto windows = plan::carbon_windows(forecast_, run.run->total.high(), earliest_s_,
                                              deadline_s_.value_or(std::numeric_limits<double>::infinity()));
    return {windows, run.run->total, run.run->site, forecast_.origin(), deadline_s_};
  } catch (const UsageError& error) {
    throw UsageError("--carbon: {}; the time of the run is the upper end of its 80 % interval", error.what());
  }
}

Json carbon_json(const CarbonPlan& p) {
  return {{"forecast", p.forecast},
          {"deadline", p.deadline_s ? Json(utc_timestamp(*p.deadline_s)) : Json()},
          {"latest_start", utc_timestamp(p.windows.latest_start_s)},
          {"duration_s", {{"value", p.duration.value}, {"low", p.duration.low()}, {"high", p.duration.high()}}},
          {"site_j", {{"value", p.site.value}, {"low", p.site.low()}, {"high", p.site.high()}}},
          {"best", window_json(p, p.windows.best)},
          {"at_once", window_json(p, p.windows.at_once)},
          {"worst", window_json(p, p.windows.worst)}};
}

void print_carbon(const CarbonPlan& p) {
  const double now = p.emissions(p.windows.at_once).value;
  std::vector<std::vector<std::string>> table{{"start", "", "ends by", "g CO2e/kWh", "kg CO2e", "beside at once"}};
  const auto add = [&](const char* name, const plan::CarbonWindow& w) {
    const double kg = p.emissions(w).value;
    table.push_back({name, utc_timestamp(w.start_s), utc_timestamp(w.end_s),
                     fmt::format("{:.0f}", w.kg_per_j * kKgPerJouleInGramsPerKwh), fmt::format("{:.4g}", kg),
                     now > 0.0 ? fmt::format("{:+.1f} %", 100.0 * (kg / now - 1.0)) : "-"});
  };
  add("at once", p.windows.at_once);
  add("least CO2e", p.windows.best);
  add("most CO2e", p.windows.worst);
  fmt::print("\n");
  print_columns(table, {3, 4, 5});
  fmt::print(
      "by {}: the whole run takes {} ({} at most, with a probability of 90 %) and {:.4g} MWh of the site; it can start "
      "until {}\n",
      p.forecast, human(Seconds(p.duration.value)), human(Seconds(p.duration.high())), p.site.value / kJoulesPerMwh,
      utc_timestamp(p.windows.latest_start_s));
}

}  // namespace molen::apps
