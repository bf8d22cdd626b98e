#include <gtest/gtest.h>
#include <libpq-fe.h>
#include <sqlite3.h>

#include "base/error.h"
#include "collect/test_query.h"

namespace molen::collect {

QueryRows query_sqlite(const std::string& file, const std::string& sql) {
  sqlite3* db = nullptr;
  QueryRows rows;
  char* why = nullptr;
  if (sqlite3_open(file.c_str(), &db) != SQLITE_OK) throw Error("{}", sqlite3_errmsg(db));
  sqlite3_busy_timeout(db, 20'000);
  const auto add = [](void* to, int columns, char** values, char**) {
    auto& row = static_cast<QueryRows*>(to)->emplace_back();
    for (int i = 0; i < columns; ++i) row.emplace_back(values[i] != nullptr ? values[i] : "null");
    return 0;
  };
  const int code = sqlite3_exec(db, sql.c_str(), add, &rows, &why);
  const std::string text = why != nullptr ? why : "";
  sqlite3_free(why);
  sqlite3_close(db);
  if (code != SQLITE_OK) throw Error("{}: {}", sql, text);
  return rows;
}

QueryRows query_postgres(const std::string& uri, const std::string& sql) {
  PGconn* const db = PQconnectdb(uri.c_str());
  PGresult* const result = PQexec(db, sql.c_str());
  const auto status = PQresultStatus(result);
  const std::string why = PQerrorMessage(db);
  QueryRows rows;
  for (int i = 0; i < PQntuples(result); ++i) {
    auto& row = rows.emplace_back();
    for (int j = 0; j < PQnfields(result); ++j)
      row.emplace_back(PQgetisnull(result, i, j) != 0 ? "null" : PQgetvalue(result, i, j));
  }
  PQclear(result);
  PQfinish(db);
  if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK) throw Error("{}: {}", sql, why);
  return rows;
}

TEST(Query, TellsNullFromEmpty) {
  EXPECT_EQ(query_sqlite(":memory:", "SELECT NULL, '', 1"), (QueryRows{{"null", "", "1"}}));
  EXPECT_THROW(query_sqlite(":memory:", "SELECT x"), Error);
}

}  // namespace molen::collect
