#include "collect/site_events.h"

#include <fmt/format.h>

#include "base/clock.h"
#include "base/csv.h"
#include "collect/database.h"
#include "collect/schema.h"

namespace molen::collect {
namespace {

// SQL for the events that senders and managers recorded. The text of a job's events begins with its name.
std::string recorded_sql(const SumQuery& query) {
  std::string of_job;
  if (!query.job.empty()) {
    const std::string begins = "job=" + query.job + " ";
    of_job = fmt::format(" AND kind IN ('job_start', 'job_labels', 'job_stop') AND substr(text || ' ', 1, {}) = {}",
                         begins.size(), sql_text(begins));
  }
  return fmt::format(
      "SELECT time_s AS at, NULL AS until, node, kind, text, count, NULL AS job, NULL AS step, seq FROM energy_events "
      "WHERE time_s >= {} AND time_s < {}{}",
      query.since_s, query.until_s, of_job);
}

// SQL for the gaps. A period begins a gap unless the one before it ended where it begins: the periods of a sender
// follow each other to the last bit.
std::string gaps_sql(const SumQuery& query) {
  constexpr const char* kSame = "node, scope, reason, job, step";
  const std::string periods = fmt::format(
      "SELECT {0}, start_s, end_s, seq, CASE WHEN LAG(end_s) OVER (PARTITION BY {0} ORDER BY start_s) = start_s THEN 0 "
      "ELSE 1 END AS begins FROM energy_periods WHERE joules IS NULL AND start_s >= {1} AND start_s < {2}{3}",
      kSame, query.since_s, query.until_s, query.job.empty() ? "" : " AND job = " + sql_text(query.job));
  return fmt::format(
      "SELECT MIN(start_s) AS at, MAX(end_s) AS until, node, 'no_reading' AS kind, scope || ': ' || reason AS text, "
      "COUNT(*) AS count, job, step, MIN(seq) AS seq FROM (SELECT {0}, start_s, end_s, seq, SUM(begins) OVER "
      "(PARTITION "
      "BY {0} ORDER BY start_s ROWS UNBOUNDED PRECEDING) AS gap FROM ({1}) AS marked) AS numbered GROUP BY {0}, gap",
      kSame, periods);
}

}  // namespace

std::vector<SiteEvent> site_events(const std::string& words, const SumQuery& query) {
  const std::string sql = fmt::format("SELECT * FROM ({} UNION ALL {}) AS events ORDER BY at, node, seq, kind, text",
                                      recorded_sql(query), gaps_sql(query));
  std::vector<SiteEvent> events;
  for (const auto& row : database_rows(words, sql)) {
    SiteEvent event{std::stod(row.at(0).value()), {}, row.at(2).value(), row.at(3).value(), row.at(4).value(),
                    std::stoll(row.at(5).value())};
    if (row.at(1)) event.until_s = std::stod(*row[1]);
    event.job = row.at(6).value_or(""), event.step = row.at(7).value_or("");
    events.push_back(std::move(event));
  }
  return events;
}

Json to_json(const SiteEvent& event) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return {{"time", utc_timestamp(event.time_s)},
          {"until", event.until_s ? Json(utc_timestamp(*event.until_s)) : Json()},
          {"node", event.node},
          {"kind", event.kind},
          {"text", event.text},
          {"count", event.count},
          {"job", or_null(event.job)},
          {"step", or_null(event.step)}};
}

std::string site_events_csv(const std::vector<SiteEvent>& events) {
  std::string csv = "timestamp,event_type,job_id,step_id,value,node_id,until,text\n";
  for (const SiteEvent& e : events)
    csv += fmt::format("{},{},{},{},{},{},{},{}\n", utc_timestamp(e.time_s), csv_cell(e.kind), csv_cell(e.job),
                       csv_cell(e.step), e.count, csv_cell(e.node), e.until_s ? utc_timestamp(*e.until_s) : "",
                       csv_cell(e.text));
  return csv;
}

}  // namespace molen::collect
