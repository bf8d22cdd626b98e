// Where the records of a site are kept: SQLite or PostgreSQL, behind one interface so that tests can let it fail.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "collect/limits.h"
#include "collect/record.h"

namespace molen::collect {

struct Stored {
  std::int64_t batches = 0;
  std::int64_t duplicates = 0;  // batches that were stored before
  std::int64_t periods = 0, events = 0;

  Stored& operator+=(const Stored& other) {
    batches += other.batches, duplicates += other.duplicates;
    periods += other.periods, events += other.events;
    return *this;
  }
  bool operator==(const Stored&) const = default;
};

// A node says what it can limit, and asks for its limits.
struct Question {
  std::string node;
  Limitable limits;
};

// The limits of a node until a time, as a manager orders them.
struct NodeOrder {
  std::string node;
  std::vector<Limit> limits;
  double until_s = 0;  // seconds since 1970
};

// Used by one thread at a time.
class Database {
 public:
  virtual ~Database() = default;

  // Stores batches in one transaction and returns once they are durable. A batch whose number is not above the greatest
  // stored one of its session was stored before and is left out. A failure says why the database cannot do it now; then
  // it has stored either all of them or none, and the same call may be repeated, because it leaves out duplicates. The
  // next call connects anew if necessary.
  virtual Result<Stored> store(std::span<const Batch> batches) = 0;

  // Enters what the nodes can limit, and returns the limits that each of them has at `now_s` (seconds since 1970), for
  // as long as they hold, in the order of the questions. Fails as `store` does.
  virtual Result<std::vector<LimitOrder>> answer(std::span<const Question> questions, double now_s) = 0;

  // Replaces the limits of these nodes, in one transaction. Fails as `store` does.
  virtual Result<Stored> order(std::span<const NodeOrder> orders) = 0;

  // Returns what a message may say of the database: never a password.
  virtual std::string name() const = 0;
};

// Opens "sqlite:FILE" or "postgresql://..." (a URI of libpq) and creates the tables where there are none. Throws
// UsageError for other words or a database that cannot be used, VersionError for tables of another version of molen,
// and Error if the database does not answer.
std::unique_ptr<Database> open_database(const std::string& words);

// Returns whether the words are a URI of PostgreSQL.
bool is_postgres_uri(const std::string& words);
// Returns the file of "sqlite:FILE". Throws UsageError for words that name neither kind of database.
std::string sqlite_file(const std::string& words);

// Rows of an answer to a query: columns as text, nothing for null.
using DatabaseRows = std::vector<std::vector<std::optional<std::string>>>;
// Runs a query on the tables of a database ("sqlite:FILE", "postgresql://...") and changes nothing. Throws as
// open_database does, and UsageError if the database has no such tables.
DatabaseRows database_rows(const std::string& words, const std::string& sql);

}  // namespace molen::collect
