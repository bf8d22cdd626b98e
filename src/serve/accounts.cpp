#include "serve/accounts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/csv.h"
#include "base/error.h"
#include "serve/facts.h"
#include "serve/footprint.h"
#include "serve/run_data.h"
#include "serve/run_lines.h"

namespace molen::serve {
namespace {

constexpr const char* kPhases = "\"phases\"";  // long lines that the account does not need

// The lines of energy.jsonl that tell of one attempt.
struct AttemptLines {
  Json totals, site;  // the last ones
  Json reading;       // "last_reading", which the next attempt wrote
};

// All records of a run that the account needs, with those that later histories left behind (docs/formats/run.md).
struct RunRecords {
  std::map<std::int64_t, Attempt> attempts;
  std::map<std::int64_t, AttemptLines> lines;
  std::map<std::int64_t, std::pair<double, Json>>
      totals_of_step;                                           // the last line of each step, and when it was written
  std::map<std::int64_t, std::optional<std::int64_t>> history;  // attempt that began one -> step it went on from
};

std::map<std::string, double> scope_joules(const Json& line, const char* key) {
  std::map<std::string, double> found;
  if (line.is_object() && line.contains(key) && line[key].is_object())
    for (const auto& [scope, joules] : line[key].items())
      if (joules.is_number()) found[scope] = joules.get<double>();
  return found;
}

// What all attempts of a history consumed until a point.
struct Spent {
  double total = 0.0, seconds = 0.0;
  double used = 0.0;         // without what failures undid
  std::optional<double> kg;  // emissions of `used`
  std::map<std::string, double> by_scope;
};

Spent spent_in(const Json& totals) {
  const auto or_zero = [&](const char* key, const char* other) {
    const double value = number_of(totals, key), second = number_of(totals, other);
    return std::isfinite(value) ? value : std::isfinite(second) ? second : 0.0;
  };
  Spent s{or_zero("spent_total_j", "total_j"), or_zero("spent_s", "seconds"), or_zero("total_j", ""), {}, {}};
  if (const double kg = number_of(totals, "kg_co2e"); std::isfinite(kg)) s.kg = kg;
  s.by_scope = scope_joules(totals, totals.contains("spent_j") ? "spent_j" : "energy_j");
  return s;
}

// The PUE of a site, and the emissions of a joule of the computers: of this attempt's joules where the totals tell,
// else by the site's constant.
void add_emissions(Attempt& a, const Json& site, const Spent& before, const Spent& after) {
  const auto value = [&](const char* key) {
    return site.is_object() && site.contains(key) ? number_of(site[key], "value") : std::nan("");
  };
  const double pue = value("pue"), grams = value("intensity_g_per_kwh");
  if (!a.joules || !std::isfinite(pue)) return;
  a.site_j = *a.joules * pue;
  if (after.kg && after.used > before.used && (before.kg || before.used == 0.0))
    a.kg_co2e = *a.joules * (*after.kg - before.kg.value_or(0.0)) / (after.used - before.used);
  else if (std::isfinite(grams))
    a.kg_co2e = *a.site_j / kJoulesPerKwh * grams * 1e-3;
}

// Sets the consumption of an attempt, and moves `spent`, that of all before it in its history, to its end.
void add_consumption(Attempt& a, const AttemptLines& lines, Spent& spent) {
  if (!lines.totals.is_object() && !lines.reading.is_object()) return;
  const Spent after = lines.totals.is_object() ? spent_in(lines.totals) : spent;
  const Spent before = spent;
  a.hosts = std::max<std::int64_t>(a.hosts, whole(lines.totals, "hosts"));
  a.partial = text_of(lines.totals, "partial");
  if (after.total > before.total) a.joules = after.total - before.total;
  for (const auto& [scope, joules] : after.by_scope) {
    const auto was = before.by_scope.find(scope);
    a.by_scope[scope] = joules - (was == before.by_scope.end() ? 0.0 : was->second);
  }
  spent = after;
  // The next attempt's totals contain what this one consumed after its last checkpoint, and in how many seconds. Older
  // files do not say the seconds.
  if (const double seconds = number_of(lines.reading, "seconds"); std::isfinite(seconds))
    spent.seconds = std::max(spent.seconds, before.seconds + seconds);
  a.seconds = std::max(0.0, spent.seconds - before.seconds);
  if (const double read = number_of(lines.reading, "total_j"); std::isfinite(read) && read > a.joules.value_or(0.0)) {
    spent.total = before.total + read;
    a.joules = read;
    for (const auto& [scope, joules] : scope_joules(lines.reading, "energy_j")) {
      const auto was = before.by_scope.find(scope);
      a.by_scope[scope] = joules;
      spent.by_scope[scope] = joules + (was == before.by_scope.end() ? 0.0 : was->second);
    }
  }
  add_emissions(a, lines.site, before, after);
}

void take_owner(const Json& event, Attempt& a) {
  a.user = text_of(event, "user"), a.group = text_of(event, "group");
  a.account = text_of(event, "slurm_account"), a.job = text_of(event, "slurm_job");
  a.step = text_of(event, "slurm_step"), a.host = text_of(event, "host");
  a.start_s = number_of(event, "wall_time_s");
  a.hosts = whole(event, "hosts");
}

RunRecords records_of(const fs::path& run) {
  RunRecords records;
  for (const fs::path& file : with_abandoned(run, "events.jsonl"))
    each_event(file, kPhases, [&](const std::string& name, const Json& event) {
      const std::int64_t attempt = whole(event, "attempt");
      if (name == "start" || name == "resume") take_owner(event, records.attempts[attempt]);
      if (name == "history")
        records.history[attempt] =
            number_of(event, "from_step") >= 0.0 ? std::optional(whole(event, "from_step")) : std::nullopt;
    });
  std::map<std::int64_t, double> written;  // when the last totals of each attempt were
  for (const fs::path& file : with_abandoned(run, "energy.jsonl"))
    each_event(file, kPhases, [&](const std::string& name, const Json& event) {
      const std::int64_t attempt = whole(event, "attempt");
      AttemptLines& lines = records.lines[attempt];
      if (name == "site") lines.site = event;
      if (name == "last_reading") records.lines[whole(event, "of_attempt")].reading = event;
      if (name != "totals") return;
      const double wall = number_of(event, "wall_time_s");
      if (!lines.totals.is_object() || !(wall < written[attempt])) lines.totals = event, written[attempt] = wall;
      auto& of_step = records.totals_of_step[whole(event, "step")];
      if (of_step.second.is_null() || !(wall < of_step.first)) of_step = {wall, event};
    });
  return records;
}

// Returns what a history had spent when it began: that of the checkpoint of the step from which it went on.
Spent spent_before(const RunRecords& records, const std::optional<std::int64_t>& from_step) {
  const auto totals = from_step ? records.totals_of_step.find(*from_step) : records.totals_of_step.end();
  return totals == records.totals_of_step.end() ? Spent{} : spent_in(totals->second.second);
}

std::vector<std::string> keys_of(const Attempt& a, const std::string& by) {
  if (by == "tag") return a.tags;
  if (by == "step") return {a.step.empty() ? a.job : a.job + "." + a.step};
  if (by == "month") return {std::isfinite(a.start_s) ? utc_timestamp(a.start_s).substr(0, 7) : ""};
  return {by == "run"       ? a.run
          : by == "user"    ? a.user
          : by == "group"   ? a.group
          : by == "account" ? a.account
          : by == "job"     ? a.job
                            : a.host};
}

void add_to(AccountRow& row, const Attempt& a) {
  ++row.attempts;
  row.seconds += a.seconds;
  row.node_seconds += a.seconds * static_cast<double>(std::max<std::int64_t>(1, a.hosts));
  if (!a.joules) {
    ++row.unmeasured;
    return;
  }
  const bool first = row.joules == 0.0;
  const auto sum = [&](std::optional<double>& total, const std::optional<double>& more) {
    total = more && (total || first) ? std::optional(total.value_or(0.0) + *more) : std::nullopt;
  };
  sum(row.site_j, a.site_j), sum(row.kg_co2e, a.kg_co2e);
  row.joules += *a.joules;
  row.measured_seconds += a.seconds;
  row.edp += *a.joules * a.seconds;
}

// The mean power (W) of the scopes of the first kind that was measured, for a column of CSV.
std::string watts_of(const Attempt& a, const std::vector<std::string>& kinds) {
  std::optional<double> joules;
  for (const std::string& kind : kinds)
    if (!joules) joules = joules_of_kind(a.by_scope, kind);
  return joules && a.seconds > 0.0 ? csv_number(*joules / a.seconds) : "";
}

}  // namespace

std::vector<Attempt> attempts_of(const fs::path& run) {
  if (!fs::is_directory(run)) throw UsageError("{}: no such run directory", run.string());
  RunRecords records = records_of(run);
  const std::vector<std::string> tags = tags_of(run);
  std::vector<Attempt> all;
  Spent spent;
  for (auto& [number, a] : records.attempts) {
    a.run = fs::canonical(run).filename().string();
    a.number = number;
    a.tags = tags;
    if (const auto begun = records.history.find(number); begun != records.history.end())
      spent = spent_before(records, begun->second);
    add_consumption(a, records.lines[number], spent);
    all.push_back(std::move(a));
  }
  return all;
}

const std::vector<std::string>& account_keys() {
  static const std::vector<std::string> keys{"run", "user", "group", "account", "job", "step", "tag", "host", "month"};
  return keys;
}

std::vector<AccountRow> account(const std::vector<Attempt>& attempts, const std::string& by) {
  MOLEN_CHECK(std::ranges::find(account_keys(), by) != account_keys().end(), "an account by {}", by);
  std::map<std::string, AccountRow> rows;
  std::map<std::string, std::set<std::string>> runs;
  for (const Attempt& a : attempts) {
    std::vector<std::string> keys = keys_of(a, by);
    if (keys.empty()) keys.emplace_back();
    for (const std::string& key : keys) {
      add_to(rows[key], a);
      runs[key].insert(a.run);
    }
  }
  std::vector<AccountRow> sorted;
  for (auto& [key, row] : rows) {
    row.key = key.empty() ? "-" : key;
    row.runs = static_cast<std::int64_t>(runs[key].size());
    sorted.push_back(row);
  }
  std::ranges::stable_sort(sorted, [](const auto& a, const auto& b) { return a.joules > b.joules; });
  return sorted;
}

Json to_json(const AccountRow& row) {
  const bool measured = row.attempts > row.unmeasured;
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  return {{"key", row.key},
          {"runs", row.runs},
          {"attempts", row.attempts},
          {"unmeasured_attempts", row.unmeasured},
          {"seconds", row.seconds},
          {"node_seconds", row.node_seconds},
          {"energy_j", measured ? Json(row.joules) : Json()},
          {"site_j", or_null(row.site_j)},
          {"kg_co2e", or_null(row.kg_co2e)},
          {"mean_w", or_null(watts_of(row))},
          {"edp_js", measured ? Json(row.edp) : Json()}};
}

std::optional<double> watts_of(const AccountRow& row) {
  const bool measured = row.attempts > row.unmeasured && row.measured_seconds > 0.0;
  return measured ? std::optional(row.joules / row.measured_seconds) : std::nullopt;
}

std::string rows_csv(const std::string& by, const std::vector<AccountRow>& rows) {
  // A step of a job has two columns of EAR. The others of molen's keys are no columns of EAR.
  const std::map<std::string, std::string> names{{"job", "job_id"},       {"user", "user_id"}, {"group", "user_group"},
                                                 {"account", "user_acc"}, {"tag", "e_tag"},    {"host", "node_id"}};
  const auto name = names.find(by);
  std::string csv = by == "step" ? "job_id,step_id" : name == names.end() ? by : name->second;
  csv += ",runs,attempts,unmeasured_attempts,time,node_seconds,energy_J,power_W,EDP,site_J,kg_co2e\n";
  for (const AccountRow& row : rows) {
    const bool measured = row.attempts > row.unmeasured;
    const std::string key = row.key == "-" ? "" : row.key;
    const std::size_t dot = std::min(key.size(), key.find('.'));
    csv += by == "step" ? csv_cell(key.substr(0, dot)) + "," + csv_cell(key.substr(std::min(key.size(), dot + 1)))
                        : csv_cell(key);
    csv +=
        fmt::format(",{},{},{},{},{},{},{},{},{},{}\n", row.runs, row.attempts, row.unmeasured, csv_number(row.seconds),
                    csv_number(row.node_seconds), csv_number(measured ? std::optional(row.joules) : std::nullopt),
                    csv_number(watts_of(row)), csv_number(measured ? std::optional(row.edp) : std::nullopt),
                    csv_number(row.site_j), csv_number(row.kg_co2e));
  }
  return csv;
}

std::string attempts_csv(const std::vector<Attempt>& attempts) {
  std::string csv =
      "job_id,step_id,app_id,user_id,user_group,user_acc,e_tag,node_id,nodes,start_time,end_time,time,energy_J,DC_"
      "power,"
      "PCK_power,DRAM_power,GPU_power,EDP,site_J,kg_co2e\n";
  for (const Attempt& a : attempts) {
    const bool dated = std::isfinite(a.start_s);
    const std::vector<std::string> cells{a.job,
                                         a.step,
                                         fmt::format("{}/{}", a.run, a.number),
                                         a.user,
                                         a.group,
                                         a.account,
                                         fmt::format("{}", fmt::join(a.tags, " ")),
                                         a.host,
                                         a.hosts > 0 ? std::to_string(a.hosts) : "",
                                         dated ? utc_timestamp(a.start_s) : "",
                                         dated ? utc_timestamp(a.start_s + a.seconds) : "",
                                         csv_number(a.seconds),
                                         csv_number(a.joules),
                                         watts_of(a, {"node"}),
                                         watts_of(a, {"cpu-package", "cpu", "grace"}),
                                         watts_of(a, {"dram"}),
                                         watts_of(a, {"gpu", "accel"}),
                                         a.joules ? csv_number(*a.joules * a.seconds) : "",
                                         csv_number(a.site_j),
                                         csv_number(a.kg_co2e)};
    for (std::size_t i = 0; i < cells.size(); ++i) csv += (i > 0 ? "," : "") + csv_cell(cells[i]);
    csv += "\n";
  }
  return csv;
}

}  // namespace molen::serve
