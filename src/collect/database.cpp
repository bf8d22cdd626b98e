#include "collect/database.h"

#include "base/error.h"
#include "collect/postgres/postgres.h"
#include "collect/sqlite/sqlite.h"

namespace molen::collect {

bool is_postgres_uri(const std::string& words) {
  return words.starts_with("postgresql://") || words.starts_with("postgres://");
}

std::string sqlite_file(const std::string& words) {
  constexpr std::string_view kSqlite = "sqlite:";
  if (words.starts_with(kSqlite) && words.size() > kSqlite.size()) return words.substr(kSqlite.size());
  // The words may hold a password, so that the message does not repeat them.
  throw UsageError(
      "--database: must be sqlite:FILE or postgresql://..., such as postgresql:///energy?host=/run/postgresql");
}

std::unique_ptr<Database> open_database(const std::string& words) {
  if (is_postgres_uri(words)) return open_postgres(words);
  return open_sqlite(sqlite_file(words));
}

DatabaseRows database_rows(const std::string& words, const std::string& sql) {
  return is_postgres_uri(words) ? postgres_rows(words, sql) : sqlite_rows(sqlite_file(words), sql);
}

}  // namespace molen::collect
