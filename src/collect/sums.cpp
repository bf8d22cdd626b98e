#include "collect/sums.h"

#include "base/error.h"
#include "collect/database.h"
#include "collect/schema.h"

namespace molen::collect {
namespace {

std::string sum_column(const std::string& by, Dialect dialect) {
  if (by == "node") return "node";
  if (by == "job") return "job";
  if (by == "step") return "CASE WHEN step IS NULL THEN job ELSE job || '.' || step END";
  if (by == "user") return "user_name";
  MOLEN_CHECK(by == "day", "sums by {}", by);
  return day_of_start(dialect);
}

// SQL for the joules of the scopes of a kind: of gpu0, gpu1 and so on.
std::string joules_of(const std::string& kind) {
  return fmt::format(
      "SUM(CASE WHEN substr(scope, 1, {0}) = '{1}' AND substr(scope, {0} + 1, 1) BETWEEN '0' AND '9' THEN joules END)",
      kind.size(), kind);
}
std::string joules_of_scope(const std::string& scope) {
  return fmt::format("SUM(CASE WHEN scope = '{}' THEN joules END)", scope);
}

// SQL for a column where all periods have the same, else null.
std::string if_the_same(const std::string& column) {
  return fmt::format("CASE WHEN COUNT({0}) = COUNT(*) AND MIN({0}) = MAX({0}) THEN MIN({0}) END", column);
}

// SQL for the joules and the seconds of the periods of `readings` that have the same `parts`. A period adds the seconds
// in which no earlier one had been: so moments count once, however many scopes and nodes have them.
std::string joules_and_seconds(const std::string& parts, const std::string& where = "") {
  return fmt::format(
      "SELECT {0}, SUM(joules) AS joules, SUM(CASE WHEN before IS NULL OR before <= start_s THEN end_s - start_s WHEN "
      "before < end_s THEN end_s - before ELSE 0 END) AS seconds FROM (SELECT {0}, start_s, end_s, joules, MAX(end_s) "
      "OVER (PARTITION BY {0} ORDER BY start_s, end_s ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM "
      "readings{1}) AS ordered GROUP BY {0}",
      parts, where);
}

std::string sum_sql(const SumQuery& query, Dialect dialect) {
  const std::string of_job = query.job.empty() ? "" : fmt::format(" AND job = {}", sql_text(query.job));
  const std::string periods = fmt::format(
      "SELECT COALESCE({}, '') AS k, node, scope, start_s, end_s, joules, counted, job, step, user_name FROM "
      "energy_periods WHERE start_s >= {} AND start_s < {}{}",
      sum_column(query.by, dialect), query.since_s, query.until_s, of_job);
  const std::string sums = fmt::format(
      "SELECT k, SUM(CASE WHEN counted = 1 THEN joules END) AS joules, COUNT(DISTINCT node) AS nodes, SUM(CASE WHEN "
      "joules IS NULL THEN 1 ELSE 0 END) AS without_reading, MIN(start_s) AS from_s, MAX(end_s) AS until_s, {} AS "
      "node_j, "
      "COALESCE({}, {}) AS cpu_j, COALESCE({}, {}) AS dram_j, COALESCE({}, {}) AS gpu_j, {} AS node, {} AS job, {} AS "
      "step, {} AS user_name FROM periods GROUP BY k",
      joules_of_scope("node"), joules_of("cpu-package"), joules_of_scope("cpu"), joules_of("dram"),
      joules_of_scope("dram"), joules_of("gpu"), joules_of("accel"), if_the_same("node"), if_the_same("job"),
      if_the_same("step"), if_the_same("user_name"));
  return fmt::format(
      "WITH periods AS ({}), readings AS (SELECT * FROM periods WHERE counted = 1 AND joules IS NOT NULL), sums AS "
      "({}), "
      "times AS ({}), of_nodes AS ({}), steps AS ({}) SELECT sums.*, times.seconds, (SELECT SUM(seconds) FROM of_nodes "
      "WHERE of_nodes.k = sums.k), (SELECT SUM(joules * seconds) FROM steps WHERE steps.k = sums.k) FROM sums LEFT "
      "JOIN "
      "times ON times.k = sums.k ORDER BY sums.k",
      periods, sums, joules_and_seconds("k"), joules_and_seconds("k, node"),
      joules_and_seconds("k, job, step", " WHERE job IS NOT NULL"));
}

}  // namespace

const std::vector<std::string>& sum_keys() {
  static const std::vector<std::string> keys{"node", "job", "step", "user", "day"};
  return keys;
}

std::vector<EnergySum> energy_sums(const std::string& words, const SumQuery& query) {
  const auto rows =
      database_rows(words, sum_sql(query, is_postgres_uri(words) ? Dialect::kPostgres : Dialect::kSqlite));
  std::vector<EnergySum> sums;
  for (const auto& row : rows) {
    const auto number = [&](std::size_t column) {
      return row.at(column) ? std::optional(std::stod(*row[column])) : std::nullopt;
    };
    EnergySum sum;
    sum.key = row.at(0).value_or("");
    sum.joules = number(1);
    sum.nodes = std::stoll(row.at(2).value());
    sum.without_reading = std::stoll(row.at(3).value());
    sum.from_s = number(4).value(), sum.until_s = number(5).value();
    sum.parts = {number(6), number(7), number(8), number(9)};
    sum.node = row.at(10).value_or(""), sum.job = row.at(11).value_or("");
    sum.step = row.at(12).value_or(""), sum.user = row.at(13).value_or("");
    sum.seconds = number(14).value_or(0.0), sum.node_seconds = number(15).value_or(0.0);
    sum.edp = number(16);
    sums.push_back(std::move(sum));
  }
  return sums;
}

}  // namespace molen::collect
