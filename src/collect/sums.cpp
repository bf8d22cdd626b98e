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

std::string sum_sql(const SumQuery& query, Dialect dialect) {
  const std::string key = sum_column(query.by, dialect);
  return fmt::format(
      "SELECT {0}, SUM(CASE WHEN counted = 1 THEN joules END), COUNT(DISTINCT node), SUM(CASE WHEN joules IS NULL THEN "
      "1 ELSE 0 END), MIN(start_s), MAX(end_s) FROM energy_periods WHERE start_s >= {1} AND start_s < {2} GROUP BY {0} "
      "ORDER BY {0}",
      key, query.since_s, query.until_s);
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
    EnergySum sum;
    sum.key = row.at(0).value_or("");
    if (row.at(1)) sum.joules = std::stod(*row[1]);
    sum.nodes = std::stoll(row.at(2).value());
    sum.without_reading = std::stoll(row.at(3).value());
    sum.from_s = std::stod(row.at(4).value());
    sum.until_s = std::stod(row.at(5).value());
    sums.push_back(std::move(sum));
  }
  return sums;
}

}  // namespace molen::collect
