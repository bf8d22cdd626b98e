#include "serve/energy_events.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/csv.h"
#include "base/error.h"
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
  e.attempt = whole(line, "attempt"), e.step = whole(line, "step");
  e.kind = kind;
  return e;
}

std::string reasons_text(const Json& reasons) {
  std::string text;
  for (const auto& [scope, _] : reasons.items())
    text += (text.empty() ? "" : "; ") + scope + ": " + text_of(reasons, scope);
  return text;
}

// Adds what a line of events.jsonl says.
void take_event(const std::string& name, const Json& line, std::vector<RunEvent>& events) {
  if (name == "policy" || name == "budget") {
    RunEvent e = event_of(line, name);
    e.text = text_of(line, "text");
    if (name == "policy") e.value = finite_member(line, "chosen");
    events.push_back(std::move(e));
  }
  if (name != "meters" || !line.contains("unavailable") || !line["unavailable"].is_object()) return;
  for (const auto& [meter, _] : line["unavailable"].items()) {
    events.push_back(event_of(line, "unavailable"));
    events.back().text = meter + ": " + text_of(line["unavailable"], meter);
  }
}

// Adds the gaps of the counters since the line of phases before.
void take_gaps(const Json& line, std::vector<RunEvent>& events) {
  if (!line.contains("scopes") || !line["scopes"].is_object()) return;
  for (const auto& [scope, account] : line["scopes"].items()) {
    if (!account.is_object() || !account.contains("gaps") || !account["gaps"].is_array()) continue;
    for (const Json& gap : account["gaps"]) {
      if (!gap.is_object()) continue;
      RunEvent e = event_of(line, "gap");
      e.host = text_of(gap, "host");
      e.value = finite_member(gap, "joules");
      e.text = fmt::format("{}: from {:.3f} s to {:.3f} s after the opening of the meters: {}", scope,
                           number_of(gap, "start_s"), number_of(gap, "end_s"), text_of(gap, "reason"));
      events.push_back(std::move(e));
    }
  }
}

// Adds what a line of energy.jsonl says.
void take_energy(const std::string& name, const Json& line, std::vector<RunEvent>& events) {
  if (name == "phases") take_gaps(line, events);
  if (name != "unread" || !line.contains("reasons") || !line["reasons"].is_object()) return;
  RunEvent e = event_of(line, "unread");
  e.text = line["reasons"].empty() ? "all scopes are read again" : reasons_text(line["reasons"]);
  events.push_back(std::move(e));
}

// Adds the steps at which a policy set another clock or limit than in the step before.
void take_settings(const fs::path& run, std::vector<RunEvent>& events) {
  std::optional<double> before;
  for (const store::StepMetrics& m : read_run(run).metrics.steps) {
    if (m.policy_setting && m.policy_setting != before) {
      RunEvent e;
      e.time_s = m.wall_time_s, e.attempt = m.attempt, e.step = m.step;
      e.kind = "setting", e.value = m.policy_setting;
      e.text = before ? fmt::format("{:g}, before {:g}", *m.policy_setting, *before)
                      : fmt::format("{:g}", *m.policy_setting);
      events.push_back(std::move(e));
    }
    before = m.policy_setting;
  }
}

}  // namespace

std::vector<RunEvent> energy_events_of(const fs::path& run) {
  if (!fs::is_directory(run)) throw UsageError("{}: no such run directory", run.string());
  std::vector<RunEvent> events;
  std::map<std::int64_t, std::pair<std::string, std::string>> jobs;  // of each attempt
  for (const fs::path& file : with_abandoned(run, "events.jsonl"))
    each_event(file, "", [&](const std::string& name, const Json& line) {
      if (name == "start" || name == "resume")
        jobs[whole(line, "attempt")] = {text_of(line, "slurm_job"), text_of(line, "slurm_step")};
      take_event(name, line, events);
    });
  for (const fs::path& file : with_abandoned(run, "energy.jsonl"))
    each_event(file, "", [&](const std::string& name, const Json& line) { take_energy(name, line, events); });
  take_settings(run, events);
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
          {"step", e.step},
          {"kind", e.kind},
          {"text", e.text},
          {"host", or_null(e.host)},
          {"value", e.value ? Json(*e.value) : Json()},
          {"job", or_null(e.job)},
          {"job_step", or_null(e.job_step)}};
}

std::string events_csv(const std::vector<RunEvent>& events) {
  std::string csv = "timestamp,event_type,job_id,step_id,value,node_id,app_id,step,text\n";
  for (const RunEvent& e : events)
    csv += fmt::format("{},{},{},{},{},{},{},{},{}\n", std::isfinite(e.time_s) ? utc_timestamp(e.time_s) : "", e.kind,
                       csv_cell(e.job), csv_cell(e.job_step), csv_number(e.value), csv_cell(e.host),
                       csv_cell(fmt::format("{}/{}", e.run, e.attempt)), e.step, csv_cell(e.text));
  return csv;
}

}  // namespace molen::serve
