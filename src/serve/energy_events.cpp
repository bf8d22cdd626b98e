#include "serve/energy_events.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/csv.h"
#include "base/error.h"
#include "base/units.h"
#include "serve/run_data.h"
#include "serve/run_lines.h"

namespace molen::serve {
namespace {

std::optional<double> finite_member(const Json& object, const char* key) {
  const double value = number_of(object, key);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

RunEvent event_of(const Json& line, const std::string& kind) {
  RunEvent e;
  e.time_s = number_of(line, "wall_time_s");
  e.attempt = whole(line, "attempt");
  if (finite_member(line, "step")) e.step = whole(line, "step");
  e.kind = kind;
  return e;
}

std::string reasons_text(const Json& reasons) {
  std::string text;
  for (const auto& [scope, _] : reasons.items())
    text += (text.empty() ? "" : "; ") + scope + ": " + text_of(reasons, scope);
  return text;
}

// Returns the unit of a policy's setting. The events of the attempt's policy say it. An attempt of an earlier version
// that was killed has none, but no clock is as low as 1 MHz, and no power limit of a device is as high as 1 MW.
std::string unit_of_setting(const std::string& said, double setting) {
  constexpr double kLeastClockHz = 1e6;
  return said == "Hz" || said == "W" ? said : setting < kLeastClockHz ? "W" : "Hz";
}

std::string setting_text(double setting, const std::string& unit) {
  return unit == "Hz" ? fmt::format("{:g} GHz", setting * 1e-9) : fmt::format("{:g} {}", setting, unit);
}

// Adds what a line of events.jsonl says.
void take_event(const std::string& name, const Json& line, std::vector<RunEvent>& events) {
  if (name == "policy" || name == "budget") {
    RunEvent e = event_of(line, name);
    e.text = text_of(line, "text");
    if (name == "policy") e.value = finite_member(line, "chosen");
    if (e.value) e.unit = unit_of_setting(text_of(line, "unit"), *e.value);
    events.push_back(std::move(e));
  }
  if (name != "meters" || !line.contains("unavailable") || !line["unavailable"].is_object()) return;
  for (const auto& [meter, _] : line["unavailable"].items()) {
    events.push_back(event_of(line, "unavailable"));
    events.back().text = meter + ": " + text_of(line["unavailable"], meter);
  }
}

RunEvent gap_event(const Json& line, const std::string& scope, const Json& gap) {
  RunEvent e = event_of(line, "gap");
  const double start_s = number_of(gap, "start_s");
  // The seconds of the line are those since the opening of the meters. Without them the time of the line is all that is
  // known.
  if (const double since = number_of(line, "seconds"); std::isfinite(since) && std::isfinite(start_s))
    e.time_s += start_s - since;
  e.host = text_of(gap, "host");
  e.value = finite_member(gap, "joules");
  if (e.value) e.unit = "J";
  e.text = fmt::format("{}: from {:.3f} s to {:.3f} s after the opening of the meters: {}", scope, start_s,
                       number_of(gap, "end_s"), text_of(gap, "reason"));
  return e;
}

// Adds the gaps of the counters since the line of phases before. A line has the first ones, and the number of all.
void take_gaps(const Json& line, std::vector<RunEvent>& events) {
  if (!line.contains("scopes") || !line["scopes"].is_object()) return;
  for (const auto& [scope, account] : line["scopes"].items()) {
    if (!account.is_object()) continue;
    std::int64_t listed = 0;
    if (account.contains("gaps") && account["gaps"].is_array())
      for (const Json& gap : account["gaps"]) {
        ++listed;
        if (gap.is_object()) events.push_back(gap_event(line, scope, gap));
      }
    const std::int64_t more = whole(account, "gaps_count") - listed;
    if (more <= 0) continue;
    events.push_back(event_of(line, "gap"));
    events.back().text =
        fmt::format("{}: {} {} not recorded one by one", scope, counted(more, "more gap"), more == 1 ? "is" : "are");
  }
}

// Adds what a line of energy.jsonl says.
void take_energy(const std::string& name, const Json& line, std::vector<RunEvent>& events) {
  if (name == "phases") take_gaps(line, events);
  if ((name != "unread" && name != "doubtful") || !line.contains("reasons") || !line["reasons"].is_object()) return;
  RunEvent e = event_of(line, name);
  e.text = line["reasons"].empty() ? "all scopes are read again" : reasons_text(line["reasons"]);
  events.push_back(std::move(e));
}

// Adds the steps at which a policy set another clock or limit than in the step before. A policy begins anew with each
// attempt. `units`: those that the attempts' policies named.
void take_settings(const fs::path& run, const std::map<std::int64_t, std::string>& units,
                   std::vector<RunEvent>& events) {
  struct Step {
    double time_s = 0.0;
    std::optional<double> setting;
  };
  // A later history moves the end of an attempt's lines to another file, so the steps are put in order.
  std::map<std::int64_t, std::map<std::int64_t, Step>> attempts;
  for (const fs::path& file : with_abandoned(run, "metrics.jsonl"))
    each_event(file, "", [&](const std::string&, const Json& line) {
      if (!finite_member(line, "step")) return;
      attempts[whole(line, "attempt")][whole(line, "step")] = {number_of(line, "wall_time_s"),
                                                               finite_member(line, "policy_setting")};
    });
  for (const auto& [attempt, steps] : attempts) {
    const auto said = units.find(attempt);
    std::optional<double> before;
    for (const auto& [number, step] : steps) {
      if (step.setting && step.setting != before) {
        RunEvent e;
        e.time_s = step.time_s, e.attempt = attempt, e.step = number;
        e.kind = "setting", e.value = step.setting;
        e.unit = unit_of_setting(said == units.end() ? "" : said->second, *step.setting);
        e.text = setting_text(*step.setting, e.unit);
        if (before) e.text += ", before " + setting_text(*before, e.unit);
        events.push_back(std::move(e));
      }
      before = step.setting;
    }
  }
}

}  // namespace

std::vector<RunEvent> energy_events_of(const fs::path& run) {
  if (!fs::is_directory(run)) throw UsageError("{}: no such run directory", run.string());
  std::vector<RunEvent> events;
  std::map<std::int64_t, std::pair<std::string, std::string>> jobs;  // of each attempt
  std::map<std::int64_t, std::string> units;                         // of each attempt's policy
  for (const fs::path& file : with_abandoned(run, "events.jsonl"))
    each_event(file, "", [&](const std::string& name, const Json& line) {
      if (name == "start" || name == "resume")
        jobs[whole(line, "attempt")] = {text_of(line, "slurm_job"), text_of(line, "slurm_step")};
      if (name == "policy" || name == "policy_settings") units[whole(line, "attempt")] = text_of(line, "unit");
      take_event(name, line, events);
    });
  for (const fs::path& file : with_abandoned(run, "energy.jsonl"))
    each_event(file, "", [&](const std::string& name, const Json& line) { take_energy(name, line, events); });
  take_settings(run, units, events);
  for (RunEvent& e : events) {
    e.run = fs::canonical(run).filename().string();
    std::tie(e.job, e.job_step) = jobs[e.attempt];
  }
  return events;
}

Json to_json(const RunEvent& e) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"time", std::isfinite(e.time_s) ? Json(utc_timestamp(e.time_s)) : Json()},
          {"run", e.run},
          {"attempt", e.attempt},
          {"step", e.step ? Json(*e.step) : Json()},
          {"kind", e.kind},
          {"text", e.text},
          {"host", or_null(e.host)},
          {"value", e.value ? Json(*e.value) : Json()},
          {"unit", or_null(e.unit)},
          {"job", or_null(e.job)},
          {"job_step", or_null(e.job_step)}};
}

std::string events_csv(const std::vector<RunEvent>& events) {
  std::string csv = "timestamp,event_type,job_id,step_id,value,node_id,app_id,step,text\n";
  for (const RunEvent& e : events)
    csv += fmt::format("{},{},{},{},{},{},{},{},{}\n", std::isfinite(e.time_s) ? utc_timestamp(e.time_s) : "", e.kind,
                       csv_cell(e.job), csv_cell(e.job_step), csv_number(e.value), csv_cell(e.host),
                       csv_cell(fmt::format("{}/{}", e.run, e.attempt)), e.step ? std::to_string(*e.step) : "",
                       csv_cell(e.text));
  return csv;
}

}  // namespace molen::serve
