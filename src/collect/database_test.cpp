#include "collect/database.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "collect/schema.h"
#include "collect/sqlite/sqlite.h"
#include "collect/test_any_database.h"
#include "collect/test_records.h"

namespace molen::collect {
namespace {

using Database_ = AnyDatabase;

std::string opening_refused(const std::string& words) {
  try {
    open_database(words);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_P(Database_, KeepsEachRecordAsItIs) {
  Batch batch{"node'1\"\\", "s,{}\\N", 7, {}, {}};
  batch.periods.push_back({"gpu0", 1.7e9 + 1.0 / 3, 1.7e9 + 60.1, 1234.5678901234567, "", "nvml",
                           energy::Source::kPower, true, "77_1", "0", "o'neil"});
  batch.periods.push_back({"cpu\\t", 0, 1e-3, std::nullopt, "no \u20ac \\N 'x' \"y\" {z}", "null",
                           energy::Source::kNone, false, "", "", ""});
  batch.events.push_back({1.7e9 + 0.1, "dropped", "\\.", kMostCount});
  batch.events.push_back({2, "start", "", 0});
  const auto database = open_database(words());
  const auto stored = database->store({&batch, 1});
  ASSERT_TRUE(stored) << stored.reason();
  EXPECT_EQ(stored.value(), (Stored{1, 0, 2, 2}));
  const QueryRows periods = query(
      "SELECT seq, node, scope, start_s, end_s, joules, reason, meter, source, counted, job, step, user_name FROM "
      "energy_periods ORDER BY scope DESC");
  ASSERT_EQ(periods.size(), 2u);
  // The same bits, compared by the database: the text of a query has fewer digits.
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_periods WHERE joules = 1234.5678901234567 AND start_s = "
                  "1700000000.3333333 AND end_s = 1700000060.1"),
            "1");
  EXPECT_EQ(1.7e9 + 1.0 / 3, 1700000000.3333333);
  const auto words_of = [&](std::size_t row) {
    auto words = periods[row];
    words.erase(words.begin() + 3, words.begin() + 6);
    return words;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words_of(0), (Words{"7", batch.node, "gpu0", "null", "nvml", "power", "1", "77_1", "0", "o'neil"}));
  EXPECT_EQ(words_of(1),
            (Words{"7", batch.node, "cpu\\t", batch.periods[1].reason, "null", "none", "0", "null", "null", "null"}));
  EXPECT_EQ(periods[1][5], "null") << "no reading is null and not 0";
  EXPECT_EQ(query("SELECT node, kind, text, count FROM energy_events ORDER BY time_s"),
            (QueryRows{{batch.node, "start", "", "0"}, {batch.node, "dropped", "\\.", std::to_string(kMostCount)}}));
  EXPECT_EQ(query("SELECT node, session, last_seq FROM energy_sessions"),
            (QueryRows{{batch.node, batch.session, "7"}}));
}

TEST_P(Database_, ABatchCountsOnce) {
  auto database = open_database(words());
  EXPECT_EQ(database->store(test_batches("a", 1, 5)).value(), (Stored{5, 0, 10, 0}));
  EXPECT_EQ(database->store(test_batches("a", 1, 5)).value(), (Stored{0, 5, 0, 0}));
  EXPECT_EQ(database->store(test_batches("a", 4, 8)).value(), (Stored{3, 2, 6, 0}));
  auto twice = test_batches("b", 1, 2);
  twice.push_back(twice[0]);
  twice.push_back(test_batch("b", "t", 1));  // another session of the node
  EXPECT_EQ(database->store(twice).value(), (Stored{3, 1, 6, 0})) << "twice in one transaction";
  database = open_database(words());
  EXPECT_EQ(database->store(test_batches("a", 7, 9)).value(), (Stored{1, 2, 2, 0})) << "opened anew";
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_periods"), std::to_string(2 * (9 + 3)));
  EXPECT_EQ(std::stod(value("SELECT SUM(joules) FROM energy_periods WHERE counted = 1")), 100.0 * (9 + 3));
}

TEST_P(Database_, ViewsSumWhatCounts) {
  std::vector<Batch> batches = test_batches("a", 1, 36);
  for (const Batch& b : test_batches("b", 1, 18)) batches.push_back(b);
  batches.back().periods[0].job = "78";
  batches.back().periods[1].job = batches.back().periods[0].user = "";
  Batch blind{
      "c", "s", 1, {{"cpu", 1.7e9, 1.7e9 + 60, {}, "no rights", "null", energy::Source::kNone, false, "", "", ""}}, {}};
  batches.push_back(blind);
  ASSERT_TRUE(open_database(words())->store(batches));
  const auto kwh = [&](const std::string& view, const std::string& where) {
    const std::string text = value("SELECT kwh FROM " + view + " WHERE " + where);
    return text == "null" ? -1.0 : std::stod(text) * 3.6e6;
  };
  EXPECT_NEAR(kwh("energy_by_node", "node = 'a'"), 3600, 1e-9);
  EXPECT_NEAR(kwh("energy_by_node", "node = 'b'"), 1800, 1e-9);
  EXPECT_EQ(kwh("energy_by_node", "node = 'c'"), -1) << "not measured is not 0";
  EXPECT_EQ(value("SELECT periods_without_reading FROM energy_by_node WHERE node = 'c'"), "1");
  EXPECT_EQ(value("SELECT periods_without_reading FROM energy_by_node WHERE node = 'a'"), "0");
  EXPECT_NEAR(kwh("energy_by_job", "job = '77'"), 5300, 1e-9);
  EXPECT_NEAR(kwh("energy_by_job", "job = '78'"), 100, 1e-9);
  EXPECT_EQ(value("SELECT nodes FROM energy_by_job WHERE job = '77'"), "2");
  EXPECT_NEAR(kwh("energy_by_user", "user_name = 'ann'"), 5300, 1e-9);
  EXPECT_NEAR(kwh("energy_by_user", "user_name IS NULL"), 100, 1e-9);
  // 1.7e9 s are 2023-11-14 22:13:20, so 106 minutes and more are on the next day.
  ASSERT_TRUE(open_database(words())->store(test_batches("d", 100, 110)));
  EXPECT_NEAR(kwh("energy_by_day", "day = '2023-11-15'"), 400, 1e-9);
  EXPECT_NEAR(kwh("energy_by_day", "day = '2023-11-14'"), 5400 + 700, 1e-9);
}

TEST_P(Database_, TablesOfAnotherVersionAreRefused) {
  open_database(words());
  query("UPDATE energy_version SET version = 7");
  EXPECT_THROW(open_database(words()), VersionError);
  const std::string why = opening_refused(words());
  EXPECT_NE(why.find("its tables have version 7, and this molen writes version 1"), std::string::npos) << why;
  query("DELETE FROM energy_version");
  EXPECT_THROW(open_database(words()), VersionError);
  query("INSERT INTO energy_version VALUES (1)");
  EXPECT_EQ(opening_refused(words()), "accepted");
}

TEST_P(Database_, TwoCollectorsShareIt) {
  // Both create the tables, and both get the same batches.
  std::vector<std::thread> collectors;
  std::atomic<std::int64_t> stored{0}, duplicates{0};
  for (int c = 0; c < 2; ++c)
    collectors.emplace_back([&, c] {
      const auto database = open_database(words());
      for (std::int64_t seq = 1; seq <= 30; ++seq) {
        std::vector<Batch> group{test_batch("a", "s", seq), test_batch("b", "s", seq)};
        if (c == 1) std::swap(group[0], group[1]);
        for (;;) {
          const auto done = database->store(group);
          if (!done) continue;
          stored += done.value().batches;
          duplicates += done.value().duplicates;
          break;
        }
      }
    });
  for (auto& c : collectors) c.join();
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_periods"), std::to_string(2 * stored));
  EXPECT_EQ(stored + duplicates, 120);
  EXPECT_EQ(value("SELECT COUNT(*) FROM (SELECT DISTINCT node, seq, scope FROM energy_periods) AS d"),
            value("SELECT COUNT(*) FROM energy_periods"));
  EXPECT_EQ(stored, 60);
}

TEST_P(Database_, LimitsHoldUntilTheirTime) {
  const auto database = open_database(words());
  const Limitable can{{{"nvml-power:A", "gpu0", 200, 700, 650}}, "it's \"so\""};
  const std::vector<Question> both{{"a'b", can}, {"n2", {}}};
  auto orders = database->answer(both, 1000.5);
  ASSERT_TRUE(orders.ok()) << orders.reason();
  EXPECT_EQ(orders.value(), std::vector<LimitOrder>(2));
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_limitable WHERE time_s = 1000.5"), "2");
  const std::string stored = value("SELECT limitable FROM energy_limitable WHERE node LIKE 'a%'");
  EXPECT_EQ(limitable_of(parse_json(stored, "stored"), "stored"), can);
  const std::vector<NodeOrder> given{{"a'b", {{"nvml-power:A", 333.5}}, 1100}, {"n2", {}, 1100}};
  ASSERT_TRUE(database->order(given).ok());
  orders = database->answer(both, 1040);
  EXPECT_EQ(orders.value().at(0), (LimitOrder{{{"nvml-power:A", 333.5}}, 60}));
  EXPECT_TRUE(orders.value().at(1).limits.empty());
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_limitable"), "2") << "the last question of each node";
  EXPECT_EQ(database->answer(both, 1100).value().at(0), LimitOrder{}) << "the time is over";
  const std::vector<NodeOrder> next{{"a'b", {{"nvml-power:A", 400}}, 99999}};
  ASSERT_TRUE(database->order(next).ok());
  EXPECT_EQ(database->answer(both, 1100).value().at(0), (LimitOrder{{{"nvml-power:A", 400}}, kLongestLimitS}));
  // A damaged row is one node's problem.
  query("UPDATE energy_limits SET limits = '[3]' WHERE node = 'n2'");
  query("UPDATE energy_limits SET until_s = 2000 WHERE node = 'n2'");
  orders = database->answer(both, 1100);
  ASSERT_TRUE(orders.ok()) << orders.reason();
  EXPECT_EQ(orders.value().at(0).limits.size(), 1u);
  EXPECT_TRUE(orders.value().at(1).limits.empty());
  EXPECT_NE(orders.value().at(1).problem.find("energy_limits of n2"), std::string::npos) << orders.value()[1].problem;
  EXPECT_EQ(database_rows(words(), "SELECT node FROM energy_limits ORDER BY node").size(), 2u);
}

// Databases of before the limits get their tables; those of another version are refused.
TEST_P(Database_, TablesOfLimitsAreAddedAndHaveAVersion) {
  (void)open_database(words());
  for (const char* table : {"energy_limits_version", "energy_limits", "energy_limitable"})
    query(std::string("DROP TABLE ") + table);
  query("DROP INDEX energy_events_by_node");
  const std::vector<Question> question{{"n", {}}};
  EXPECT_TRUE(open_database(words())->answer(question, 1).ok());
  query("UPDATE energy_limits_version SET version = 2");
  EXPECT_NE(opening_refused(words()).find("limits: its tables have version 2, and this molen writes version 1"),
            std::string::npos)
      << opening_refused(words());
}

INSTANTIATE_TEST_SUITE_P(Kinds, Database_, testing::Values("sqlite", "postgres"),
                         [](const auto& info) { return info.param; });

TEST(Words, AreRefusedWithoutTheirPassword) {
  for (const char* words : {"", "sqlite:", "mysql://u:secret@h/d", "postgres"})
    EXPECT_THROW(open_database(words), UsageError) << words;
  EXPECT_EQ(opening_refused("mysql://u:secret@h/d").find("secret"), std::string::npos);
  const std::string bad = opening_refused("postgresql://u:secret@h:port:x/d?shape=1");
  EXPECT_NE(bad.find("no URI of PostgreSQL"), std::string::npos) << bad;
  EXPECT_EQ(bad.find("secret"), std::string::npos) << bad;
  EXPECT_EQ(opening_refused("postgresql://u:sec%ret@h/d").find("sec%ret"), std::string::npos);
  const std::string none = opening_refused("postgresql://u:secret@/d?host=/nonexistent");
  EXPECT_NE(none.find("/nonexistent"), std::string::npos) << none;
  EXPECT_EQ(none.find("secret"), std::string::npos) << none;
}

class SqliteFile : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("molen_sqlite_{}", ::getpid());
  const std::string file_ = (folder_ / "e.db").string();
};

TEST_F(SqliteFile, RefusesWhatIsNoDatabase) {
  EXPECT_THROW(open_sqlite(folder_ / "none/e.db"), UsageError);
  EXPECT_THROW(open_sqlite(folder_), UsageError);
  std::ofstream(file_) << std::string(4096, 'x');
  EXPECT_THROW(open_sqlite(file_), UsageError);
  EXPECT_NE(opening_refused("sqlite:" + file_).find("not a database"), std::string::npos);
}

TEST_F(SqliteFile, RefusesADatabaseThatIsNotDurable) {
  for (const char* words : {"sqlite::memory:", "sqlite:file:x?mode=memory", "sqlite:file::memory:"}) {
    EXPECT_THROW(open_database(words), UsageError) << words;
    fs::remove(std::string(words).substr(7));
  }
}

TEST_F(SqliteFile, WaitsForAnotherWriter) {
  const auto database = open_sqlite(file_, 0.05);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const auto failed = database->store(test_batches("a", 1, 3));
  EXPECT_NE(failed.reason().find("locked"), std::string::npos) << failed.reason();
  ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_EQ(database->store(test_batches("a", 1, 3)).value(), (Stored{3, 0, 6, 0}));
}

TEST_F(SqliteFile, StoresNothingIntoARemovedFile) {
  const auto database = open_sqlite(file_);
  ASSERT_TRUE(database->store(test_batches("a", 1, 3)));
  fs::rename(file_, file_ + ".away");
  EXPECT_NE(database->store(test_batches("a", 4, 4)).reason().find("the file is gone"), std::string::npos);
  EXPECT_FALSE(fs::exists(file_));
  fs::rename(file_ + ".away", file_);
  EXPECT_EQ(database->store(test_batches("a", 1, 4)).value(), (Stored{1, 3, 2, 0}));
  EXPECT_EQ(query_sqlite(file_, "SELECT COUNT(*) FROM energy_periods"), (QueryRows{{"8"}}));
}

TEST_F(SqliteFile, AFailedTransactionLeavesNothing) {
  const auto database = open_sqlite(file_);
  query_sqlite(file_, "CREATE TRIGGER stop BEFORE INSERT ON energy_events BEGIN SELECT RAISE(ABORT, 'no events'); END");
  auto batches = test_batches("a", 1, 3);
  batches.back().events.push_back({1, "start", "", 0});
  EXPECT_NE(database->store(batches).reason().find("no events"), std::string::npos);
  EXPECT_EQ(query_sqlite(file_, "SELECT COUNT(*) FROM energy_periods"), (QueryRows{{"0"}}));
  EXPECT_EQ(query_sqlite(file_, "SELECT COUNT(*) FROM energy_sessions"), (QueryRows{{"0"}}));
  query_sqlite(file_, "DROP TRIGGER stop");
  EXPECT_EQ(database->store(batches).value(), (Stored{3, 0, 6, 1}));
}

TEST(Postgres, RefusesAnotherEncoding) {
  PrivatePostgres& server = PrivatePostgres::shared();
  query_postgres(server.uri(), "CREATE DATABASE ascii TEMPLATE template0 ENCODING 'SQL_ASCII'");
  EXPECT_NE(opening_refused(server.uri("ascii")).find("create the database with encoding UTF8"), std::string::npos);
  EXPECT_NE(opening_refused(server.uri("absent")).find("\"absent\" does not exist"), std::string::npos);
}

// The server reads the rows of a COPY after it took the command, so only the end of the COPY says why a row fails.
TEST(Postgres, SaysWhichConstraintARowBreaks) {
  PrivatePostgres& server = PrivatePostgres::shared();
  query_postgres(server.uri(), "CREATE DATABASE strict");
  const auto database = open_database(server.uri("strict"));
  query_postgres(server.uri("strict"), "ALTER TABLE energy_periods ADD CONSTRAINT no_third CHECK (seq <> 3)");
  const std::string refused = database->store(test_batches("a", 1, 3)).reason();
  EXPECT_NE(refused.find("\"no_third\""), std::string::npos) << refused;
  EXPECT_EQ(query_postgres(server.uri("strict"), "SELECT COUNT(*) FROM energy_sessions"), (QueryRows{{"0"}}));
}

TEST(Postgres, CommitsAreDurableWhateverTheServerIsSetTo) {
  PrivatePostgres& server = PrivatePostgres::shared();
  query_postgres(server.uri(), "CREATE DATABASE loose");
  query_postgres(server.uri(), "ALTER DATABASE loose SET synchronous_commit = off");
  const auto database = open_database(server.uri("loose"));
  query_postgres(
      server.uri("loose"),
      "CREATE TABLE seen (setting TEXT); CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
      "INSERT INTO seen VALUES (current_setting(''synchronous_commit'')); RETURN NEW; END'; CREATE TRIGGER see "
      "AFTER INSERT ON energy_sessions FOR EACH ROW EXECUTE FUNCTION see()");
  ASSERT_TRUE(database->store(test_batches("a", 1, 1)));
  EXPECT_EQ(query_postgres(server.uri("loose"), "SELECT setting FROM seen"), (QueryRows{{"on"}}));
}

TEST(Postgres, AServerThatDoesNotWriteToTheDiskIsRefused) {
  PrivatePostgres& server = PrivatePostgres::shared();
  query_postgres(server.uri(), "CREATE DATABASE careless");
  const auto database = open_database(server.uri("careless"));
  server.stop("fast");
  server.start("-c fsync=off");
  const std::string refused = opening_refused(server.uri("careless"));
  const auto stored = database->store(test_batches("a", 1, 1));
  const auto again = database->store(test_batches("a", 1, 1));
  server.stop("fast");
  server.start();
  EXPECT_NE(refused.find("fsync = off"), std::string::npos) << refused;
  EXPECT_FALSE(stored) << "the connection was cut";
  ASSERT_FALSE(again);
  EXPECT_NE(again.reason().find("fsync = off"), std::string::npos) << again.reason();
  EXPECT_EQ(database->store(test_batches("a", 1, 1)).value(), (Stored{1, 0, 2, 0}));
}

TEST(Postgres, ComesBackAfterACrash) {
  PrivatePostgres& server = PrivatePostgres::shared();
  query_postgres(server.uri(), "CREATE DATABASE crash");
  const auto database = open_database(server.uri("crash"));
  ASSERT_TRUE(database->store(test_batches("a", 1, 3)));
  server.stop("immediate");
  EXPECT_FALSE(database->store(test_batches("a", 4, 6)));
  EXPECT_FALSE(database->store(test_batches("a", 4, 6)));
  server.start();
  EXPECT_EQ(database->store(test_batches("a", 1, 6)).value(), (Stored{3, 3, 6, 0}));
  EXPECT_EQ(query_postgres(server.uri("crash"), "SELECT COUNT(*) FROM energy_periods"), (QueryRows{{"12"}}));
}

}  // namespace
}  // namespace molen::collect
