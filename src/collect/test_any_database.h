// A fresh database of either kind for each test.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "collect/test_postgres.h"
#include "collect/test_query.h"

namespace molen::collect {

class AnyDatabase : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    static int number = 0;
    const std::string name = fmt::format("t{}_{}", ::getpid(), number++);
    file_ = (fs::temp_directory_path() / ("molen_" + name + ".db")).string();
    if (is_postgres()) {
      PrivatePostgres& server = PrivatePostgres::shared();
      query_postgres(server.uri(), "CREATE DATABASE " + name);
      uri_ = server.uri(name);
    }
  }
  void TearDown() override {
    for (const char* end : {"", "-wal", "-shm"}) fs::remove(file_ + end);
  }
  static bool is_postgres() { return GetParam() == "postgres"; }
  std::string words() const { return is_postgres() ? uri_ : "sqlite:" + file_; }
  QueryRows query(const std::string& sql) const {
    return is_postgres() ? query_postgres(uri_, sql) : query_sqlite(file_, sql);
  }
  // The first column of the first row.
  std::string value(const std::string& sql) const { return query(sql).at(0).at(0); }

  std::string file_, uri_;
};

}  // namespace molen::collect
