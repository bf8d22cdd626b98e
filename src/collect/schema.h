// The tables of both kinds of database, and which batches are new to them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collect/limits.h"
#include "collect/record.h"

namespace molen::collect {

inline constexpr std::int64_t kSchemaVersion = 1;

enum class Dialect { kSqlite, kPostgres };

// Returns the statements that create tables, indices and views, and enter the version.
std::vector<std::string> schema_statements(Dialect dialect);

// Tables that came later than the others, so that databases without them are in use.
struct LaterTables {
  std::string what;           // of what they are, for messages: "limits"
  std::string version_table;  // "energy_limits_version"
  std::int64_t version = 1;
  std::vector<std::string> statements;  // create the tables, the one of the version included
  // True: the new tables also get the labels in the events that an older collector stored (labels_told).
  bool from_events = false;
};
// Returns those of the limits and those of the jobs' labels.
const std::vector<LaterTables>& later_tables();

// Returns SQL that selects the session and the text of the events with labels, in the order in which they were told.
std::string labels_told();

// Returns SQL for the day (UTC) in which a period began, as text.
std::string day_of_start(Dialect dialect);

// Returns a name as a literal of SQL: in quotes. Of printable ASCII, SQL gives a meaning to the quote alone. PostgreSQL
// also gives one to the backslash where standard_conforming_strings is off; each session of this module switches it on.
std::string sql_text(const std::string& text);

// The refusal of a database without tables of molen, by who reads it.
UsageError no_tables(const std::string& database);

// Throws VersionError unless `found`, the version in the tables of `database`, is the one that this molen writes.
void require_version(std::int64_t found, const std::string& database);
void require_version(std::int64_t found, const LaterTables& tables, const std::string& database);

// Returns the limits of a node from their row, as far as they hold at `now_s`. A damaged row is a problem and no
// limits, so that it holds up no other node.
LimitOrder order_from_row(const std::string& limits, double until_s, double now_s, const std::string& node);

// The greatest stored number of each session, by node and session. A session that is not stored yet has 0.
using LastNumbers = std::map<std::pair<std::string, std::string>, std::int64_t>;

// Returns the sessions of the batches, each with the number 0.
LastNumbers sessions_of(std::span<const Batch> batches);

// Returns the indices of the batches that are new, in order, and raises the numbers in `last` to theirs.
std::vector<std::size_t> new_batches(std::span<const Batch> batches, LastNumbers& last);

}  // namespace molen::collect
