#include "collect/database.h"

#include "base/error.h"
#include "collect/postgres/postgres.h"
#include "collect/sqlite/sqlite.h"

namespace molen::collect {

std::unique_ptr<Database> open_database(const std::string& words) {
  if (words.starts_with("postgresql://") || words.starts_with("postgres://")) return open_postgres(words);
  constexpr std::string_view kSqlite = "sqlite:";
  if (words.starts_with(kSqlite) && words.size() > kSqlite.size()) return open_sqlite(words.substr(kSqlite.size()));
  // The words may hold a password, so that the message does not repeat them.
  throw UsageError(
      "--database: must be sqlite:FILE or postgresql://..., such as postgresql:///energy?host=/run/postgresql");
}

}  // namespace molen::collect
