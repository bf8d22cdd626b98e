#include "collect/sums.h"

#include <fmt/format.h>

#include <set>
#include <sstream>

#include "base/error.h"
#include "collect/database.h"
#include "collect/schema.h"

namespace molen::collect {
namespace {

bool is_label(const std::string& by) {
  return by == "group" || by == "account" || by == "tag";
}

bool has_labels(const std::string& words) {
  const char* sql = is_postgres_uri(words) ? "SELECT 1 WHERE to_regclass('energy_jobs') IS NOT NULL"
                                           : "SELECT 1 FROM sqlite_master WHERE name = 'energy_jobs'";
  return !database_rows(words, sql).empty();
}

std::string sum_column(const std::string& by, Dialect dialect) {
  if (by == "node") return "node";
  if (by == "job") return "job";
  if (by == "step") return "CASE WHEN step IS NULL THEN job ELSE job || '.' || step END";
  if (by == "user") return "user_name";
  if (by == "group") return "group_name";
  if (is_label(by)) return by;
  MOLEN_CHECK(by == "day", "sums by {}", by);
  return day_of_start(dialect);
}

// SQL for whether a scope is of a kind: gpu0, gpu1 and so on.
std::string is_of(const std::string& kind) {
  return fmt::format("substr(scope, 1, {0}) = '{1}' AND substr(scope, {0} + 1, 1) BETWEEN '0' AND '9'", kind.size(),
                     kind);
}

// The kinds of scopes that have the joules of a part of a node. A node that has several of them counts by the first.
struct PartKinds {
  const char* part;
  std::vector<std::string> conditions;
};
const std::vector<PartKinds>& part_kinds() {
  static const std::vector<PartKinds> kinds{{"node", {"scope = 'node'"}},
                                            {"cpu", {is_of("cpu-package"), "scope = 'cpu'", is_of("grace")}},
                                            {"dram", {is_of("dram"), "scope = 'dram'"}},
                                            {"gpu", {is_of("gpu"), is_of("accel")}}};
  return kinds;
}

// SQL for a column where all periods have the same, else null.
std::string if_the_same(const std::string& column) {
  return fmt::format("CASE WHEN COUNT({0}) = COUNT(*) AND MIN({0}) = MAX({0}) THEN MIN({0}) END", column);
}

// SQL for the joules and the seconds of the periods of `table` that have the same `keys`. Periods are taken in the
// order of their starts; each adds the seconds that no earlier one covers. So a moment counts once, however many scopes
// and nodes have it.
std::string joules_and_seconds(const std::string& table, const std::string& keys) {
  return fmt::format(
      "SELECT {0}, SUM(joules) AS joules, SUM(CASE WHEN before IS NULL OR before <= start_s THEN end_s - start_s "
      "WHEN before < end_s THEN end_s - before ELSE 0 END) AS seconds FROM (SELECT {0}, start_s, end_s, joules, "
      "MAX(end_s) OVER (PARTITION BY {0} ORDER BY start_s, end_s ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) "
      "AS before FROM {1}) AS ordered GROUP BY {0}",
      keys, table);
}

// SQL for the joules and the seconds of each part: columns node_j, node_s, cpu_j and so on of each k. Each node has its
// own kind of scopes for a part, because sites have nodes with meters of different kinds.
std::string part_tables() {
  std::string part = "CASE", place = "CASE", columns;
  for (const PartKinds& kinds : part_kinds()) {
    for (std::size_t i = 0; i < kinds.conditions.size(); ++i) {
      part += fmt::format(" WHEN {} THEN '{}'", kinds.conditions[i], kinds.part);
      place += fmt::format(" WHEN {} THEN {}", kinds.conditions[i], i);
    }
    for (const auto& [column, of] : {std::pair("j", "joules"), std::pair("s", "seconds")})
      columns += fmt::format(", SUM(CASE WHEN part = '{0}' THEN {2} END) AS {0}_{1}", kinds.part, column, of);
  }
  return fmt::format(
      "of_scopes AS (SELECT k, node, start_s, end_s, joules, {} END AS part, {} END AS place FROM periods WHERE "
      "joules IS NOT NULL), of_kinds AS (SELECT k, part, start_s, end_s, joules, place, MIN(place) OVER (PARTITION "
      "BY k, node, part) AS first_place FROM of_scopes WHERE part IS NOT NULL), of_parts AS (SELECT k, part, "
      "start_s, end_s, SUM(joules) AS joules FROM of_kinds WHERE place = first_place GROUP BY k, part, start_s, "
      "end_s), part_times AS ({}), parts AS (SELECT k{} FROM part_times GROUP BY k)",
      part, place, joules_and_seconds("of_parts", "k, part"), columns);
}

// SQL for the names of the scopes that count, separated by commas, in any order.
std::string counted_scopes(const std::string& by, Dialect dialect) {
  if (by != "node") return "NULL";
  const char* scope = "CASE WHEN counted = 1 THEN scope END";
  return dialect == Dialect::kSqlite ? fmt::format("group_concat(DISTINCT {})", scope)
                                     : fmt::format("string_agg(DISTINCT {}, ',')", scope);
}

// SQL for the periods with what their jobs are booked to, which databases of before the labels do not know.
std::string booked_periods(bool labels) {
  if (!labels) return "SELECT p.*, NULL AS group_name, NULL AS account, NULL AS tag FROM energy_periods p";
  return "SELECT p.*, j.group_name, j.account, j.tag FROM energy_periods p LEFT JOIN energy_jobs j ON j.session_id = "
         "p.session_id AND j.job = p.job";
}

std::string sum_sql(const SumQuery& query, Dialect dialect, bool labels) {
  const std::string of_job = query.job.empty() ? "" : fmt::format(" AND job = {}", sql_text(query.job));
  const std::string periods = fmt::format(
      "SELECT COALESCE({}, '') AS k, node, scope, start_s, end_s, joules, counted, job, step, user_name, group_name, "
      "account, tag FROM ({}) AS booked WHERE start_s >= {} AND start_s < {}{}",
      sum_column(query.by, dialect), booked_periods(labels), query.since_s, query.until_s, of_job);
  const std::string sums = fmt::format(
      "SELECT k, SUM(CASE WHEN counted = 1 THEN joules END) AS joules, COUNT(DISTINCT node) AS nodes, SUM(CASE WHEN "
      "joules IS NULL THEN 1 ELSE 0 END) AS without_reading, MIN(start_s) AS from_s, MAX(end_s) AS until_s, SUM(CASE "
      "WHEN counted = 1 AND joules IS NULL THEN 1 ELSE 0 END) AS unread, SUM(CASE WHEN counted = 1 AND joules IS "
      "NULL THEN end_s - start_s ELSE 0 END) AS unread_s, {} AS counted, {} AS node, {} AS job, {} AS step, {} AS "
      "user_name, {} AS group_name, {} AS account, {} AS tag FROM periods GROUP BY k",
      counted_scopes(query.by, dialect), if_the_same("node"), if_the_same("job"), if_the_same("step"),
      if_the_same("user_name"), if_the_same("group_name"), if_the_same("account"), if_the_same("tag"));
  // The scopes of a node that are read together are one reading.
  return fmt::format(
      "WITH periods AS ({}), readings AS (SELECT k, node, job, step, start_s, end_s, SUM(joules) AS joules FROM "
      "periods WHERE counted = 1 AND joules IS NOT NULL GROUP BY k, node, job, step, start_s, end_s), of_jobs AS "
      "(SELECT * FROM readings WHERE job IS NOT NULL), sums AS ({}), times AS ({}), of_nodes AS ({}), nodes AS "
      "(SELECT k, SUM(seconds) AS seconds FROM of_nodes GROUP BY k), steps AS ({}), delays AS (SELECT k, SUM(joules "
      "* seconds) AS edp FROM steps GROUP BY k), {} SELECT sums.*, times.seconds, nodes.seconds, delays.edp, node_j, "
      "node_s, cpu_j, cpu_s, dram_j, dram_s, gpu_j, gpu_s FROM sums LEFT JOIN times ON times.k = sums.k LEFT JOIN "
      "nodes ON nodes.k = sums.k LEFT JOIN delays ON delays.k = sums.k LEFT JOIN parts ON parts.k = sums.k ORDER BY "
      "sums.k",
      periods, sums, joules_and_seconds("readings", "k"), joules_and_seconds("readings", "k, node"),
      joules_and_seconds("of_jobs", "k, job, step"), part_tables());
}

// Sorts names that commas separate, and writes them with spaces.
std::string in_order(const std::string& names) {
  std::set<std::string> sorted;
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');) sorted.insert(name);
  return fmt::format("{}", fmt::join(sorted, " "));
}

}  // namespace

const std::vector<std::string>& sum_keys() {
  static const std::vector<std::string> keys{"node", "job", "step", "user", "day", "group", "account", "tag"};
  return keys;
}

std::vector<EnergySum> energy_sums(const std::string& words, const SumQuery& query) {
  const bool labels = has_labels(words);
  if (is_label(query.by) && !labels)
    throw UsageError(
        "--by: this database has no groups, accounts and tags of jobs; `molen energy collect` of this version makes "
        "their table when it opens the database");
  const auto rows =
      database_rows(words, sum_sql(query, is_postgres_uri(words) ? Dialect::kPostgres : Dialect::kSqlite, labels));
  std::vector<EnergySum> sums;
  for (const auto& row : rows) {
    const auto number = [&](std::size_t column) {
      return row.at(column) ? std::optional(std::stod(*row[column])) : std::nullopt;
    };
    const auto part = [&](std::size_t column) {
      const auto joules = number(column);
      return joules ? std::optional(PartEnergy{*joules, number(column + 1).value()}) : std::nullopt;
    };
    EnergySum sum;
    sum.key = row.at(0).value_or("");
    sum.joules = number(1);
    sum.nodes = std::stoll(row.at(2).value());
    sum.without_reading = std::stoll(row.at(3).value());
    sum.from_s = number(4).value(), sum.until_s = number(5).value();
    sum.unread = std::stoll(row.at(6).value()), sum.unread_s = number(7).value();
    sum.counted = in_order(row.at(8).value_or(""));
    sum.node = row.at(9).value_or(""), sum.job = row.at(10).value_or("");
    sum.step = row.at(11).value_or(""), sum.user = row.at(12).value_or("");
    sum.group = row.at(13).value_or(""), sum.account = row.at(14).value_or(""), sum.tag = row.at(15).value_or("");
    sum.seconds = number(16).value_or(0.0), sum.node_seconds = number(17).value_or(0.0);
    sum.edp = number(18);
    sum.parts = {part(19), part(21), part(23), part(25)};
    sums.push_back(std::move(sum));
  }
  return sums;
}

}  // namespace molen::collect
