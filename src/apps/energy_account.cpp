#include "apps/energy_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "apps/cli.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/suggest.h"
#include "base/units.h"
#include "base/utf8.h"
#include "serve/accounts.h"
#include "serve/energy_events.h"
#include "serve/footprint.h"

namespace molen::apps {
namespace {

bool is_run(const fs::path& path) {
  return fs::exists(path / "events.jsonl");
}

// Each directory is a run, or a folder of runs.
std::vector<fs::path> runs_in(const std::vector<std::string>& directories) {
  std::vector<fs::path> runs;
  for (const std::string& directory : directories) {
    if (!fs::is_directory(directory)) throw UsageError("{}: no such directory", directory);
    if (is_run(directory)) {
      runs.emplace_back(directory);
      continue;
    }
    const std::size_t before = runs.size();
    for (const auto& entry : fs::directory_iterator(directory))
      if (entry.is_directory() && is_run(entry.path())) runs.push_back(entry.path());
    if (runs.size() == before)
      throw UsageError("{}: neither a run directory nor a folder of runs (`molen train` makes runs/)", directory);
  }
  std::ranges::sort(runs);
  const auto again = std::ranges::unique(runs);
  runs.erase(again.begin(), again.end());
  return runs;
}

void print_rows(const std::string& by, const std::vector<serve::AccountRow>& rows) {
  std::vector<std::vector<std::string>> table{
      {by, "runs", "attempts", "time", "node hours", "kWh", "with site", "kg CO2e", "mean W", "EDP (MJ s)"}};
  std::int64_t unmeasured = 0;
  for (const serve::AccountRow& row : rows) {
    const auto joules = row.attempts > row.unmeasured ? std::optional(row.joules) : std::nullopt;
    unmeasured += row.unmeasured;
    table.push_back({printable(row.key), std::to_string(row.runs), std::to_string(row.attempts),
                     human(Seconds(row.seconds)), fmt::format("{:.4g}", row.node_seconds / 3600.0),
                     shown(joules, serve::kJoulesPerKwh), shown(row.site_j, serve::kJoulesPerKwh),
                     shown(row.kg_co2e, 1.0), shown(serve::watts_of(row), 1.0),
                     shown(joules ? std::optional(row.edp) : std::nullopt, 1e6)});
  }
  print_columns(table, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  if (unmeasured > 0)
    fmt::print("{} had no meter with a reading; their energy is in no sum\n", counted(unmeasured, "attempt"));
}

// Prints the events of runs that concern energy.
int list_events(const AccountArguments& o, double since, double until) {
  std::vector<serve::RunEvent> events;
  for (const fs::path& run : runs_in(o.directories))
    for (auto& event : serve::energy_events_of(run)) {
      if (o.job && event.job != *o.job) continue;
      if (std::isfinite(event.time_s) ? event.time_s >= since && event.time_s < until : !o.since && !o.until)
        events.push_back(std::move(event));
    }
  std::ranges::stable_sort(events, {}, [](const auto& e) { return std::isfinite(e.time_s) ? e.time_s : -HUGE_VAL; });
  if (o.format == "csv") {
    fmt::print("{}", serve::events_csv(events));
    return kOk;
  }
  if (o.format == "json") {
    Json all = Json::array();
    for (const auto& event : events) all.push_back(serve::to_json(event));
    fmt::print("{}\n", Json{{"events", all}}.dump(2));
    return kOk;
  }
  std::vector<std::vector<std::string>> table{{"time", "run", "attempt", "step", "event", "host", "job", "text"}};
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : printable(text); };
  for (const auto& e : events)
    table.push_back({std::isfinite(e.time_s) ? utc_timestamp(e.time_s) : "-", printable(e.run),
                     std::to_string(e.attempt), e.step ? std::to_string(*e.step) : "-", printable(e.kind),
                     or_dash(e.host), or_dash(e.job), printable(e.text)});
  print_columns(table, {2, 3});
  return kOk;
}

}  // namespace

std::string shown(const std::optional<double>& value, double unit) {
  return value ? fmt::format("{:.4g}", *value / unit) : "-";
}

std::string chosen_key(const AccountArguments& o, const std::vector<std::string>& keys) {
  std::string by = o.by.value_or(keys.front());
  if (std::ranges::find(keys, by) == keys.end())
    throw UsageError("--by: '{}' is not one of {}{}", by, fmt::join(keys, ", "), did_you_mean(by, keys));
  return by;
}

int run_energy_account(const AccountArguments& o) {
  if (o.database) return run_site_account(o);
  const std::string by = chosen_key(o, serve::account_keys());
  const double since = o.since ? time_option(*o.since, "--since") : -HUGE_VAL;
  const double until = o.until ? time_option(*o.until, "--until") : HUGE_VAL;
  if (o.events) return list_events(o, since, until);
  std::vector<serve::Attempt> attempts;
  for (const fs::path& run : runs_in(o.directories)) {
    for (auto& attempt : serve::attempts_of(run)) {
      if (o.job && attempt.job != *o.job) continue;
      // An attempt that nothing dates is in an account without limits only.
      if (std::isfinite(attempt.start_s) ? attempt.start_s >= since && attempt.start_s < until : !o.since && !o.until)
        attempts.push_back(std::move(attempt));
    }
  }
  if (o.format == "csv" && !o.by) {
    fmt::print("{}", serve::attempts_csv(attempts));
    return kOk;
  }
  const auto rows = serve::account(attempts, by);
  if (o.format == "csv") {
    fmt::print("{}", serve::rows_csv(by, rows));
    return kOk;
  }
  if (o.format == "text") {
    print_rows(by, rows);
    return kOk;
  }
  Json all = Json::array();
  for (const auto& row : rows) all.push_back(serve::to_json(row));
  fmt::print("{}\n", Json{{"by", by}, {"rows", all}}.dump(2));
  return kOk;
}

}  // namespace molen::apps
