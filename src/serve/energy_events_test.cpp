#include "serve/energy_events.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "store/metrics.h"

namespace molen::serve {
namespace {

class EnergyEvents : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  void TearDown() override { fs::remove_all(dir_.parent_path()); }
  void lines(const char* name, const std::vector<std::string>& all) {
    std::ofstream out(dir_ / name);
    for (const std::string& line : all) out << line << "\n";
  }
  // Writes a line of metrics for each step and the setting that it had.
  void settings(const char* name, std::int64_t attempt, const std::vector<std::pair<int, double>>& of_steps) {
    std::ofstream out(dir_ / name, std::ios::app);
    for (const auto& [step, setting] : of_steps) {
      store::StepMetrics m;
      m.step = step, m.attempt = attempt, m.policy_setting = setting;
      out << store::to_line(m) << "\n";
    }
  }
  // "STEP TEXT" of the events of a kind, with its attempt before it.
  std::vector<std::string> said(const std::string& kind) {
    std::vector<std::string> all;
    for (const RunEvent& e : energy_events_of(dir_))
      if (e.kind == kind) all.push_back(fmt::format("{} {} {}", e.attempt, e.step.value_or(-1), e.text));
    return all;
  }
  using Said = std::vector<std::string>;
  fs::path dir_ = fs::temp_directory_path() / fmt::format("molen_energy_events_{}", ::getpid()) / "mill";
};

TEST_F(EnergyEvents, AreThoseOfAllFiles) {
  lines("events.jsonl",
        {R"({"event":"start","attempt":1,"wall_time_s":1.7e9,"slurm_job":"7","slurm_step":"0"})",
         R"({"event":"meters","attempt":1,"wall_time_s":1.7e9,"available":{},"unavailable":{"rapl dram":"no rights"}})",
         R"({"event":"budget","attempt":1,"step":20,"wall_time_s":1.7e9,"text":"too little"})",
         R"({"event":"policy","attempt":1,"step":30,"chosen":1.2e9,"unit":"Hz","text":"saved 3 %"})",
         R"({"event":"note","unavailable":{"rapl dram":"of another kind of event"}})"});
  lines("events.jsonl.abandoned-2", {R"({"event":"budget","attempt":9,"text":"left behind"})"});
  lines("energy.jsonl",
        {R"({"event":"unread","attempt":1,"step":3,"reasons":{"dram0":"stands still","total":"no dram0"}})",
         R"({"event":"phases","attempt":1,"step":5,"scopes":{"gpu0":{"gaps":[{"host":"n1","start_s":1.5,"end_s":2,)"
         R"("joules":70.5,"reason":"late"}]}}})",
         R"({"event":"doubtful","attempt":1,"step":5,"reasons":{"gpu0":"two figures"}})",
         R"({"event":"unread","attempt":1,"step":6,"reasons":{}})", R"({"event":"unread","attempt":1,"step":)"});
  settings("metrics.jsonl", 1, {{1, 1e9}, {2, 1e9}, {3, 2e9}, {4, 1e9}});
  std::vector<std::string> said;
  const auto events = energy_events_of(dir_);
  for (const RunEvent& e : events)
    said.push_back(
        fmt::format("{} {} {} {} {} {}", e.attempt, e.step.value_or(-1), e.kind, e.value.value_or(-1), e.job, e.text));
  EXPECT_EQ(said, (std::vector<std::string>{
                      "1 -1 unavailable -1 7 rapl dram: no rights", "1 20 budget -1 7 too little",
                      "1 30 policy 1200000000 7 saved 3 %", "9 -1 budget -1  left behind",
                      "1 3 unread -1 7 dram0: stands still; total: no dram0",
                      "1 5 gap 70.5 7 gpu0: from 1.500 s to 2.000 s after the opening of the meters: late",
                      "1 5 doubtful -1 7 gpu0: two figures", "1 6 unread -1 7 all scopes are read again",
                      "1 1 setting 1000000000 7 1 GHz", "1 3 setting 2000000000 7 2 GHz, before 1 GHz",
                      "1 4 setting 1000000000 7 1 GHz, before 2 GHz"}));
  EXPECT_EQ(events[5].host, "n1");
  EXPECT_EQ(to_json(events[3])["time"], Json()) << "not recorded";
  EXPECT_EQ(to_json(events[0])["time"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(events_csv({events[5], events[0]}),
            "timestamp,event_type,job_id,step_id,value,node_id,app_id,step,text\n"
            ",gap,7,0,70.5,n1,mill/1,5,gpu0: from 1.500 s to 2.000 s after the opening of the meters: late\n"
            "2023-11-14T22:13:20Z,unavailable,7,0,,,mill/1,,rapl dram: no rights\n");
  EXPECT_EQ(to_json(events[0])["step"], Json()) << "the record of the meters names no step";
  EXPECT_EQ(to_json(events[1])["step"], 20);
  EXPECT_EQ(to_json(events[2])["unit"], "Hz");
  EXPECT_EQ(to_json(events[5])["unit"], "J");
  EXPECT_EQ(to_json(events[0])["unit"], Json());
}

// A policy begins anew with each attempt; history 2 went on from step 2 of attempt 1, and moved that attempt's end.
TEST_F(EnergyEvents, SettingsAreThoseOfAllAttempts) {
  lines("events.jsonl", {R"({"event":"policy","attempt":1,"step":4,"unit":"Hz"})"});
  settings("metrics.jsonl", 1, {{1, 1e9}, {2, 1e9}});
  settings("metrics.jsonl", 2, {{3, 1e9}});
  settings("metrics.jsonl", 3, {{4, 250}, {5, 187.5}});
  settings("metrics.jsonl.abandoned-2", 1, {{3, 1e9}, {4, 1.5e9}});
  EXPECT_EQ(said("setting"),
            (Said{"1 1 1 GHz", "1 4 1.5 GHz, before 1 GHz", "2 3 1 GHz", "3 4 250 W", "3 5 187.5 W, before 250 W"}))
      << "attempts 2 and 3 were killed, so no event names their units";
  // A limit of 2 MW, and a clock of 900 kHz: the size of a value alone would name the other unit.
  lines("events.jsonl", {R"({"event":"policy_settings","attempt":2,"step":2,"unit":"W"})",
                         R"({"event":"policy_settings","attempt":3,"step":3,"unit":"Hz"})"});
  settings("metrics.jsonl", 2, {{3, 2e6}});
  settings("metrics.jsonl", 3, {{4, 9e5}});
  const auto named = said("setting");
  EXPECT_NE(std::ranges::find(named, "2 3 2e+06 W"), named.end()) << ::testing::PrintToString(named);
  EXPECT_NE(std::ranges::find(named, "3 4 0.0009 GHz"), named.end()) << ::testing::PrintToString(named);
}

TEST_F(EnergyEvents, ADamagedLineOfMetricsLeavesTheOtherEvents) {
  lines("events.jsonl", {R"({"event":"budget","attempt":1,"step":20,"text":"too little"})"});
  for (const char* damage :
       {"7", R"({"step":1})", R"({"step":[],"policy_setting":2e9})", R"({"step":3,"attempt":1,)"}) {
    lines("metrics.jsonl", {damage});
    settings("metrics.jsonl", 1, {{2, 1e9}});
    EXPECT_EQ(said("setting"), (Said{"1 2 1 GHz"})) << damage;
    EXPECT_EQ(said("budget"), (Said{"1 20 too little"})) << damage;
  }
}

TEST_F(EnergyEvents, GapsBeyondThoseThatAreListedAreCounted) {
  const auto line = [&](const char* count) {
    lines("energy.jsonl", {fmt::format(R"({{"event":"phases","attempt":1,"step":5,"wall_time_s":1.7e9,"seconds":100,)"
                                       R"("scopes":{{"gpu0":{{"gaps_count":{},"gaps":[{{"host":"n1","start_s":40,)"
                                       R"("end_s":41,"reason":"late"}}]}}}}}})",
                                       count)});
  };
  line("13");
  EXPECT_EQ(said("gap"), (Said{"1 5 gpu0: from 40.000 s to 41.000 s after the opening of the meters: late",
                               "1 5 gpu0: 12 more gaps are not recorded one by one"}));
  const auto events = energy_events_of(dir_);
  EXPECT_EQ(events.at(0).time_s, 1.7e9 - 100 + 40) << "the meters were opened 100 s before the line";
  EXPECT_EQ(events.at(1).time_s, 1.7e9);
  line("2");
  EXPECT_EQ(said("gap").at(1), "1 5 gpu0: 1 more gap is not recorded one by one");
  for (const char* all : {"1", "0", "-3", "[]", "1e300"}) {
    line(all);
    EXPECT_EQ(said("gap").size(), 1u) << all;
  }
}

TEST_F(EnergyEvents, DamagedRecordsAreLeftOut) {
  for (const char* damage :
       {"", "7", R"({"event":"phases","scopes":{"a":7,"b":{"gaps":[7]}}})", R"({"event":"unread","reasons":[1]})"}) {
    lines("energy.jsonl", {damage});
    lines("events.jsonl", {R"({"event":"meters","unavailable":7})", R"({"event":"meters"})", damage});
    EXPECT_TRUE(energy_events_of(dir_).empty()) << damage;
  }
  EXPECT_THROW(energy_events_of(dir_ / "none"), UsageError);
}

}  // namespace
}  // namespace molen::serve
