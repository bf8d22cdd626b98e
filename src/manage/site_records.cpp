#include "manage/site_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "collect/database.h"
#include "collect/schema.h"

namespace molen::manage {
namespace {

constexpr double kLongestPeriodOfSenderS = 1800;  // `molen energy send --every`
constexpr int kMostPeriodsBack = 1000;            // of a node without readings, that are looked at

ScopePower power_of(const std::vector<std::optional<std::string>>& row, std::size_t at) {
  ScopePower power{row.at(at).value(), row.at(at + 1).value() == "1", std::nullopt, std::stod(row.at(at + 4).value())};
  const double seconds = power.until_s - std::stod(row.at(at + 3).value());
  if (row.at(at + 2) && seconds > 0) power.watts = std::stod(*row.at(at + 2)) / seconds;
  return power;
}

using Records = std::map<std::string, NodeRecord>;

NodeRecord& record_of(Records& records, const std::string& node) {
  NodeRecord& record = records[node];
  record.name = node;
  return record;
}

// Enters the last period of each scope that is not old.
void read_fresh(const std::string& database, const Caps& caps, double now_s, Records& records) {
  // The last one of a scope is the one that began last; several may have begun together.
  const double since_s = now_s - caps.stale_after.value - kLongestPeriodOfSenderS;
  const auto rows = collect::database_rows(
      database,
      fmt::format("SELECT p.node, p.scope, p.counted, p.joules, p.start_s, p.end_s FROM energy_periods p JOIN (SELECT "
                  "node, scope, MAX(start_s) AS last_s FROM energy_periods WHERE start_s >= {} AND start_s <= {} GROUP "
                  "BY node, scope) l "
                  "ON p.node = l.node AND p.scope = l.scope AND p.start_s = l.last_s WHERE p.end_s >= {} ORDER BY "
                  "p.node, p.scope, p.end_s",
                  since_s, now_s, now_s - caps.stale_after.value));
  for (const auto& row : rows) {
    auto& scopes = record_of(records, row.at(0).value()).scopes;
    const ScopePower power = power_of(row, 1);
    if (!scopes.empty() && scopes.back().scope == power.scope) scopes.pop_back();
    scopes.push_back(power);
  }
}

// Enters which nodes have readings of a time that has not come: they tell nothing of now, and would stay the last ones.
void read_future(const std::string& database, double now_s, Records& records) {
  for (const auto& row : collect::database_rows(
           database,
           fmt::format("SELECT node, MAX(end_s) FROM energy_periods WHERE start_s > {} GROUP BY node", now_s)))
    record_of(records, row.at(0).value())
        .notes.push_back(
            fmt::format("it has readings until {}, which is still to come: set its clock; they do not count",
                        utc_timestamp(std::stod(row.at(1).value()))));
}

// Enters the last reading of each scope that has none which is not old.
void read_last_known(const std::string& database, const Caps& caps, double now_s, NodeRecord& record) {
  const auto rows = collect::database_rows(
      database, fmt::format("SELECT scope, counted, joules, start_s, end_s FROM energy_periods WHERE node = {} AND "
                            "start_s >= {} AND start_s <= {} AND joules IS NOT NULL ORDER BY start_s DESC LIMIT {}",
                            collect::sql_text(record.name), now_s - caps.forget_after.value, now_s, kMostPeriodsBack));
  const bool whole_node = record.scopes.empty();
  double last_s = 0;
  for (const auto& row : rows) {
    const ScopePower power = power_of(row, 0);
    last_s = std::max(last_s, power.until_s);
    const auto at = std::find_if(record.scopes.begin(), record.scopes.end(),
                                 [&](const ScopePower& s) { return s.scope == power.scope; });
    if (at != record.scopes.end()) {
      if (!at->watts) at->watts = power.watts, at->until_s = power.until_s;
    } else if (whole_node && power.until_s >= last_s - caps.stale_after.value) {
      record.scopes.push_back(power);  // scopes that were read together last
    }
  }
}

// Enters what the nodes said that they can limit.
void read_limitable(const std::string& database, const Caps& caps, double now_s, Records& records) {
  const auto rows = collect::database_rows(
      database, fmt::format("SELECT node, time_s, limitable FROM energy_limitable WHERE time_s >= {}",
                            now_s - caps.forget_after.value));
  for (const auto& row : rows) {
    NodeRecord& record = record_of(records, row.at(0).value());
    const std::string origin = fmt::format("energy_limitable of {}", record.name);
    record.asked_s = std::min(now_s, std::stod(row.at(1).value()));
    try {
      record.limitable = collect::limitable_of(parse_json(row.at(2).value(), origin), origin);
    } catch (const UsageError& error) {
      // One node's row must not end the limits of all the others.
      record.limitable = collect::Limitable{{}, error.what()};
    }
  }
}

// Enters the limits that the nodes are to keep now.
void read_ordered(const std::string& database, double now_s, Records& records) {
  const auto rows =
      collect::database_rows(database, fmt::format("SELECT node, limits FROM energy_limits WHERE until_s > {}", now_s));
  for (const auto& row : rows) {
    NodeRecord& record = record_of(records, row.at(0).value());
    const std::string origin = fmt::format("energy_limits of {}", record.name);
    try {
      record.ordered = collect::limits_of(parse_json(row.at(1).value(), origin), origin);
    } catch (const UsageError& error) {
      record.notes.push_back(error.what());
    }
  }
}

}  // namespace

std::vector<NodeRecord> read_nodes(const std::string& database, const Caps& caps, const std::set<std::string>& named,
                                   double now_s) {
  Records records;
  read_fresh(database, caps, now_s, records);
  read_future(database, now_s, records);
  read_limitable(database, caps, now_s, records);
  read_ordered(database, now_s, records);
  const double since_s = now_s - caps.forget_after.value;
  for (const auto& row : collect::database_rows(
           database,
           fmt::format("SELECT DISTINCT node FROM energy_sessions WHERE node NOT LIKE '{}%'", collect::kCapPrefix)))
    (void)record_of(records, row.at(0).value());
  std::set<std::string> recent;
  for (const auto& row : collect::database_rows(
           database, fmt::format("SELECT DISTINCT node FROM energy_events WHERE time_s >= {}", since_s)))
    recent.insert(row.at(0).value());
  for (const std::string& node : named) (void)record_of(records, node);
  std::vector<NodeRecord> nodes;
  for (auto& [name, record] : records) {
    const bool complete =
        !record.scopes.empty() && std::all_of(record.scopes.begin(), record.scopes.end(),
                                              [](const ScopePower& s) { return !s.counted || s.watts.has_value(); });
    if (!complete) read_last_known(database, caps, now_s, record);
    // A node that has sent nothing for long is no part of the site any more, unless a cap names it.
    if (record.scopes.empty() && record.notes.empty() && !record.limitable && !recent.contains(name) &&
        !named.contains(name))
      continue;
    nodes.push_back(std::move(record));
  }
  return nodes;
}

std::vector<PeriodSum> read_sums(const std::string& database, double since_s, double until_s) {
  constexpr const char* kRead = "CASE WHEN counted = 1 AND joules IS NOT NULL THEN";
  std::vector<PeriodSum> sums;
  for (const auto& row : collect::database_rows(
           database,
           fmt::format("SELECT node, scope, SUM({0} joules END), SUM({0} end_s - start_s END), MIN({0} start_s "
                       "END), MAX({0} end_s END), SUM(CASE WHEN joules IS NULL THEN 1 ELSE 0 END) FROM "
                       "energy_periods WHERE start_s >= {1} AND start_s < {2} GROUP BY node, scope",
                       kRead, since_s, until_s))) {
    const auto value = [&](std::size_t at) { return row.at(at) ? std::stod(*row[at]) : 0.0; };
    sums.push_back({{row.at(0).value(), row.at(1).value(), value(2), value(3), value(4), value(5)},
                    std::stoll(row.at(6).value())});
  }
  return sums;
}

std::vector<CapEvent> read_events(const std::string& database, const std::string& cap,
                                  const std::vector<std::string>& kinds, const std::string& all_of, double since_s) {
  const std::string node = collect::sql_text(collect::kCapPrefix + cap);
  std::vector<CapEvent> events;
  const auto add = [&](const std::string& where) {
    for (const auto& row : collect::database_rows(
             database,
             fmt::format("SELECT time_s, kind, count FROM energy_events WHERE node = {} AND {}", node, where)))
      events.push_back({std::stod(row.at(0).value()), row.at(1).value(), std::stoll(row.at(2).value())});
  };
  for (const std::string& kind : kinds)
    add(fmt::format("kind = {} ORDER BY time_s DESC LIMIT 1", collect::sql_text(kind)));
  if (!all_of.empty()) add(fmt::format("kind = {} AND time_s >= {}", collect::sql_text(all_of), since_s));
  return events;
}

}  // namespace molen::manage
