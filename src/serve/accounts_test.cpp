#include "serve/accounts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/csv.h"
#include "base/error.h"

namespace molen::serve {
namespace {

// Attempt 1 used 300 J until its checkpoint and was killed at 450 J. Attempt 2 went on from the checkpoint, with a
// site, and used 550 J. Attempt 3 had no meter.
class Accounts : public ::testing::Test {
 protected:
  void SetUp() override {
    lines(
        "events.jsonl",
        {R"({"event":"start","attempt":1,"wall_time_s":1.79e9,"user":"ada","group":"g","slurm_account":"p1","slurm_job":"7","slurm_step":"0","host":"n1"})",
         R"({"event":"resume","attempt":2,"wall_time_s":1.793e9,"user":"bob","group":"g","slurm_account":"p1","slurm_job":"8","slurm_step":"0","host":"n2"})",
         R"({"event":"resume","attempt":3,"wall_time_s":1.794e9,"user":"ada","host":"n1"})"});
    lines(
        "energy.jsonl",
        {R"({"event":"totals","attempt":1,"total_j":300,"seconds":30,"energy_j":{"cpu-package0":300},"spent_j":{"cpu-package0":300},"spent_total_j":300,"spent_s":30,"hosts":2,"partial":"cpu only","kg_co2e":null})",
         R"({"event":"phases","attempt":1,"scopes":{}})",
         R"({"event":"last_reading","attempt":2,"of_attempt":1,"energy_j":{"cpu-package0":450},"total_j":450,"undone_j":150})",
         R"({"event":"site","attempt":2,"name":"s","pue":{"value":2},"intensity_g_per_kwh":{"value":360}})",
         R"({"event":"totals","attempt":2,"total_j":600,"seconds":60,"spent_j":{"cpu-package0":750},"spent_total_j":750,"spent_s":80,"hosts":2,"kg_co2e":null})",
         R"({"event":"totals","attempt":2,"total_j":850,"seconds":100,"spent_j":{"cpu-package0":1000},"spent_total_j":1000,"spent_s":140,"hosts":2,"kg_co2e":null})",
         R"({"event":"totals","attempt":3,"total_j":850,"seconds":120,"spent_j":{"cpu-package0":1000},"spent_total_j":1000,"spent_s":160,"hosts":0})",
         R"({"event":"totals","att)"});
    std::ofstream(dir_ / "environment.json") << R"({"tags":["night","fi,nal"]})";
  }
  void TearDown() override { fs::remove_all(dir_.parent_path()); }
  void lines(const char* name, const std::vector<std::string>& all) {
    fs::create_directories(dir_);
    std::ofstream out(dir_ / name);
    for (const std::string& line : all) out << line << "\n";
  }
  fs::path dir_ = fs::temp_directory_path() / fmt::format("molen_accounts_{}", ::getpid()) / "mill";
};

TEST_F(Accounts, AttemptsAddUpToTheRun) {
  const auto attempts = attempts_of(dir_);
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(attempts[0].joules, 450.0) << "what the next attempt read, beyond the checkpoint";
  EXPECT_EQ(attempts[0].by_scope.at("cpu-package0"), 450.0);
  EXPECT_EQ(attempts[0].seconds, 30.0);
  EXPECT_EQ(attempts[0].hosts, 2);
  EXPECT_FALSE(attempts[0].site_j || attempts[0].kg_co2e);
  EXPECT_EQ(attempts[1].joules, 550.0);
  EXPECT_EQ(attempts[1].seconds, 110.0);
  EXPECT_EQ(attempts[1].site_j, 1100.0);
  EXPECT_DOUBLE_EQ(attempts[1].kg_co2e.value(), 1100.0 / 3.6e6 * 0.36);
  EXPECT_FALSE(attempts[2].joules);
  EXPECT_EQ(attempts[2].seconds, 20.0);
  EXPECT_EQ(attempts[1].tags, (std::vector<std::string>{"night", "fi,nal"}));
}

TEST_F(Accounts, EmissionsFollowTheTotalsWhereTheyTell) {
  lines("energy.jsonl",
        {R"({"event":"site","attempt":1,"pue":{"value":2},"intensity_g_per_kwh":{"value":360}})",
         R"({"event":"totals","attempt":1,"total_j":300,"spent_total_j":300,"seconds":30,"kg_co2e":6})",
         R"({"event":"last_reading","of_attempt":1,"total_j":450})",
         R"({"event":"site","attempt":2,"pue":{"value":2},"intensity_g_per_kwh":{"value":360}})",
         R"({"event":"totals","attempt":2,"total_j":500,"spent_total_j":650,"seconds":50,"kg_co2e":16})"});
  const auto attempts = attempts_of(dir_);
  EXPECT_DOUBLE_EQ(attempts[0].kg_co2e.value(), 450.0 * 6.0 / 300.0) << "the lost joules emitted as much as the others";
  EXPECT_DOUBLE_EQ(attempts[1].kg_co2e.value(), 10.0);
}

// The seconds of a killed attempt end at the reading at which its joules end. Attempt 1 was killed before its first
// checkpoint, and attempt 2 after one.
TEST_F(Accounts, AKilledAttemptHasTheSecondsOfItsLastReading) {
  lines(
      "energy.jsonl",
      {R"({"event":"last_reading","attempt":2,"of_attempt":1,"energy_j":{"cpu-package0":450},"total_j":450,"seconds":45})",
       R"({"event":"totals","attempt":2,"total_j":200,"seconds":20,"spent_j":{"cpu-package0":650},"spent_total_j":650,"spent_s":65})",
       R"({"event":"last_reading","attempt":3,"of_attempt":2,"energy_j":{"cpu-package0":360},"total_j":360,"seconds":40})",
       R"({"event":"totals","attempt":3,"total_j":300,"seconds":30,"spent_j":{"cpu-package0":910},"spent_total_j":910,"spent_s":95})"});
  const auto attempts = attempts_of(dir_);
  EXPECT_EQ(attempts[0].seconds, 45.0) << "and not 0";
  EXPECT_EQ(attempts[0].joules, 450.0);
  EXPECT_EQ(attempts[1].seconds, 40.0) << "and not 20, as at its checkpoint";
  EXPECT_EQ(attempts[1].joules, 360.0);
  EXPECT_EQ(attempts[2].seconds, 10.0) << "what the killed attempts took is not of the last one";
  EXPECT_EQ(attempts[2].joules, 100.0);
  const auto rows = account({attempts[0], attempts[1]}, "run");
  EXPECT_EQ(watts_of(rows[0]), 810.0 / 85.0);
  EXPECT_EQ(rows[0].edp, 450.0 * 45 + 360.0 * 40);
  // A reading that was lost with its host is older than the checkpoint.
  lines("energy.jsonl",
        {R"({"event":"totals","attempt":1,"total_j":300,"seconds":30,"spent_total_j":300,"spent_s":30})",
         R"({"event":"last_reading","attempt":2,"of_attempt":1,"total_j":250,"seconds":25})"});
  EXPECT_EQ(attempts_of(dir_)[0].seconds, 30.0);
  EXPECT_EQ(attempts_of(dir_)[0].joules, 300.0);
}

// A Grace module counts its processor as `grace0`.
TEST_F(Accounts, CsvHasThePowerOfAGraceProcessor) {
  lines(
      "energy.jsonl",
      {R"({"event":"totals","attempt":1,"total_j":300,"seconds":30,"spent_j":{"grace0":300},"spent_total_j":300,"spent_s":30})"});
  const std::string csv = attempts_csv(attempts_of(dir_));
  CsvReader reader(csv, "a.csv", 64);
  std::vector<std::string> names, cells;
  ASSERT_TRUE(reader.next(names) && reader.next(cells));
  EXPECT_EQ(cells.at(static_cast<std::size_t>(std::ranges::find(names, "PCK_power") - names.begin())), "10");
}

// Attempt 2 began anew, and attempt 3 went on from step 4 of attempt 2, which had gone on to step 9.
TEST_F(Accounts, HistoriesThatWereLeftBehindAreCounted) {
  lines("events.jsonl", {R"({"event":"history","attempt":2,"history":2,"from_step":null})",
                         R"({"event":"start","attempt":2,"user":"ada"})",
                         R"({"event":"history","attempt":3,"history":3,"from_step":4})",
                         R"({"event":"resume","attempt":3,"step":4,"user":"ada"})"});
  lines("events.jsonl.abandoned-2", {R"({"event":"start","attempt":1,"user":"bob"})"});
  lines("energy.jsonl",
        {R"({"event":"totals","attempt":2,"step":4,"wall_time_s":20,"total_j":200,"spent_total_j":200,"seconds":10})",
         R"({"event":"totals","attempt":3,"step":9,"wall_time_s":30,"total_j":250,"spent_total_j":250,"seconds":15})"});
  lines("energy.jsonl.abandoned-2",
        {R"({"event":"totals","attempt":1,"step":4,"wall_time_s":5,"total_j":40,"spent_total_j":40,"seconds":4})"});
  lines("energy.jsonl.abandoned-3",
        {R"({"event":"totals","attempt":2,"step":9,"wall_time_s":25,"total_j":500,"spent_total_j":500,"seconds":25})"});
  const auto attempts = attempts_of(dir_);
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(attempts[0].joules, 40.0);
  EXPECT_EQ(attempts[0].user, "bob");
  EXPECT_EQ(attempts[1].joules, 500.0);
  EXPECT_EQ(attempts[1].seconds, 25.0);
  EXPECT_EQ(attempts[2].joules, 50.0);
  EXPECT_EQ(attempts[2].seconds, 5.0);
}

TEST_F(Accounts, SumsByEachKey) {
  const auto attempts = attempts_of(dir_);
  const auto by_user = account(attempts, "user");
  ASSERT_EQ(by_user.size(), 2u);
  EXPECT_EQ(by_user[0].key, "bob") << "the most joules first";
  EXPECT_EQ(by_user[1].key, "ada");
  EXPECT_EQ(by_user[1].attempts, 2);
  EXPECT_EQ(by_user[1].unmeasured, 1);
  EXPECT_EQ(by_user[1].runs, 1);
  EXPECT_EQ(by_user[1].joules, 450.0);
  EXPECT_EQ(by_user[1].edp, 450.0 * 30.0);
  EXPECT_EQ(by_user[1].node_seconds, 2 * 30.0 + 20.0);
  EXPECT_EQ(watts_of(by_user[1]), 450.0 / 30.0) << "not over the seconds of attempt 3, which no meter measured";
  EXPECT_EQ(to_json(by_user[1])["mean_w"], 15.0);
  EXPECT_EQ(by_user[0].site_j, 1100.0);
  const auto keys = [&](const std::string& by) {
    std::map<std::string, double> joules;
    for (const auto& row : account(attempts, by)) joules[row.key] = row.joules;
    return joules;
  };
  using Sums = std::map<std::string, double>;
  EXPECT_EQ(keys("run"), (Sums{{"mill", 1000.0}}));
  EXPECT_EQ(keys("group"), (Sums{{"g", 1000.0}, {"-", 0.0}}));
  EXPECT_EQ(keys("account"), (Sums{{"p1", 1000.0}, {"-", 0.0}}));
  EXPECT_EQ(keys("job"), (Sums{{"7", 450.0}, {"8", 550.0}, {"-", 0.0}}));
  EXPECT_EQ(keys("step"), (Sums{{"7.0", 450.0}, {"8.0", 550.0}, {"-", 0.0}}));
  EXPECT_EQ(keys("host"), (Sums{{"n1", 450.0}, {"n2", 550.0}}));
  EXPECT_EQ(keys("tag"), (Sums{{"night", 1000.0}, {"fi,nal", 1000.0}}));
  EXPECT_EQ(keys("month"), (Sums{{"2026-09", 450.0}, {"2026-10", 550.0}, {"2026-11", 0.0}}));
  const auto run = account(attempts, "run");
  EXPECT_FALSE(run[0].site_j || run[0].kg_co2e) << "attempt 1 named no site, so the sum would be too small";
  EXPECT_EQ(to_json(run[0])["site_j"], Json());
  EXPECT_EQ(to_json(account({attempts[2]}, "user")[0])["energy_j"], Json()) << "not measured is not 0";
}

TEST_F(Accounts, CsvHasALineForEachAttempt) {
  const std::string csv = attempts_csv(attempts_of(dir_));
  CsvReader reader(csv, "a.csv", 64);
  std::vector<std::string> names, cells;
  ASSERT_TRUE(reader.next(names));
  std::vector<std::map<std::string, std::string>> rows;
  while (reader.next(cells)) {
    ASSERT_EQ(cells.size(), names.size());
    rows.emplace_back();
    for (std::size_t i = 0; i < names.size(); ++i) rows.back()[names[i]] = cells[i];
  }
  ASSERT_EQ(rows.size(), 3u);
  const std::map<std::string, std::string> want{{"job_id", "7"},
                                                {"app_id", "mill/1"},
                                                {"user_id", "ada"},
                                                {"user_acc", "p1"},
                                                {"e_tag", "night fi,nal"},
                                                {"nodes", "2"},
                                                {"time", "30"},
                                                {"energy_J", "450"},
                                                {"PCK_power", "15"},
                                                {"DC_power", ""},
                                                {"EDP", "13500"},
                                                {"site_J", ""},
                                                {"start_time", "2026-09-21T14:13:20Z"}};
  for (const auto& [name, value] : want) EXPECT_EQ(rows[0].at(name), value) << name;
  EXPECT_EQ(rows[2].at("energy_J"), "");
}

TEST_F(Accounts, CsvOfSumsHasALineForEach) {
  const auto attempts = attempts_of(dir_);
  EXPECT_EQ(rows_csv("user", account(attempts, "user")),
            "user_id,runs,attempts,unmeasured_attempts,time,node_seconds,energy_J,power_W,EDP,site_J,kg_co2e\n"
            "bob,1,1,0,110,220,550,5,60500,1100,0.00011\n"
            "ada,1,2,1,50,80,450,15,13500,,\n");
  EXPECT_EQ(rows_csv("step", account(attempts, "step")),
            "job_id,step_id,runs,attempts,unmeasured_attempts,time,node_seconds,energy_J,power_W,EDP,site_J,kg_co2e\n"
            "8,0,1,1,0,110,220,550,5,60500,1100,0.00011\n"
            "7,0,1,1,0,30,60,450,15,13500,,\n"
            ",,1,1,1,20,20,,,,,\n");
  EXPECT_TRUE(rows_csv("month", account(attempts, "month")).starts_with("month,runs,"));
}

TEST_F(Accounts, DamagedRecordsAreLeftOut) {
  for (const char* damage :
       {"", "7\n[]\n", "{\"event\":\"totals\",\"attempt\":1,\"total_j\":[],\"spent_j\":7}\n",
        "{\"event\":\"totals\",\"attempt\":1e300,\"total_j\":1}\n{\"event\":\"site\",\"attempt\":1,\"pue\":7}\n"}) {
    lines("energy.jsonl", {damage});
    const auto attempts = attempts_of(dir_);
    EXPECT_EQ(attempts.size(), 3u) << damage;
    EXPECT_NO_THROW(account(attempts, "user"));
    EXPECT_NO_THROW(attempts_csv(attempts));
  }
  EXPECT_THROW(attempts_of(dir_ / "none"), UsageError);
}

}  // namespace
}  // namespace molen::serve
