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
  fs::path dir_ = fs::temp_directory_path() / fmt::format("molen_energy_events_{}", ::getpid()) / "mill";
};

TEST_F(EnergyEvents, AreThoseOfAllFiles) {
  lines("events.jsonl",
        {R"({"event":"start","attempt":1,"wall_time_s":1.7e9,"slurm_job":"7","slurm_step":"0"})",
         R"({"event":"meters","attempt":1,"wall_time_s":1.7e9,"available":{},"unavailable":{"rapl dram":"no rights"}})",
         R"({"event":"budget","attempt":1,"step":20,"wall_time_s":1.7e9,"text":"too little"})",
         R"({"event":"policy","attempt":1,"step":30,"chosen":1.2e9,"text":"saved 3 %"})", R"({"event":"note"})"});
  lines("events.jsonl.abandoned-2", {R"({"event":"budget","attempt":9,"text":"left behind"})"});
  lines("energy.jsonl",
        {R"({"event":"unread","attempt":1,"step":3,"reasons":{"dram0":"stands still","total":"no dram0"}})",
         R"({"event":"phases","attempt":1,"step":5,"scopes":{"gpu0":{"gaps":[{"host":"n1","start_s":1.5,"end_s":2,)"
         R"("joules":70.5,"reason":"late"}]}}})",
         R"({"event":"unread","attempt":1,"step":6,"reasons":{}})", R"({"event":"unread","attempt":1,"step":)"});
  std::string metrics;
  for (const auto& [step, setting] : std::vector<std::pair<int, double>>{{1, 1e9}, {2, 1e9}, {3, 2e9}, {4, 1e9}}) {
    store::StepMetrics m;
    m.step = step, m.attempt = 1, m.policy_setting = setting;
    metrics += store::to_line(m) + "\n";
  }
  std::ofstream(dir_ / "metrics.jsonl") << metrics;
  std::vector<std::string> said;
  const auto events = energy_events_of(dir_);
  for (const RunEvent& e : events)
    said.push_back(fmt::format("{} {} {} {} {} {}", e.attempt, e.step, e.kind, e.value.value_or(-1), e.job, e.text));
  EXPECT_EQ(said, (std::vector<std::string>{
                      "1 0 unavailable -1 7 rapl dram: no rights", "1 20 budget -1 7 too little",
                      "1 30 policy 1200000000 7 saved 3 %", "9 0 budget -1  left behind",
                      "1 3 unread -1 7 dram0: stands still; total: no dram0",
                      "1 5 gap 70.5 7 gpu0: from 1.500 s to 2.000 s after the opening of the meters: late",
                      "1 6 unread -1 7 all scopes are read again", "1 1 setting 1000000000 7 1e+09",
                      "1 3 setting 2000000000 7 2e+09, before 1e+09", "1 4 setting 1000000000 7 1e+09, before 2e+09"}));
  EXPECT_EQ(events[5].host, "n1");
  EXPECT_EQ(to_json(events[3])["time"], Json()) << "not recorded";
  EXPECT_EQ(to_json(events[0])["time"], "2023-11-14T22:13:20Z");
  EXPECT_EQ(events_csv({events[5], events[0]}),
            "timestamp,event_type,job_id,step_id,value,node_id,app_id,step,text\n"
            ",gap,7,0,70.5,n1,mill/1,5,gpu0: from 1.500 s to 2.000 s after the opening of the meters: late\n"
            "2023-11-14T22:13:20Z,unavailable,7,0,,,mill/1,0,rapl dram: no rights\n");
}

TEST_F(EnergyEvents, DamagedRecordsAreLeftOut) {
  for (const char* damage :
       {"", "7", R"({"event":"phases","scopes":{"a":7,"b":{"gaps":[7]}}})", R"({"event":"unread","reasons":[1]})"}) {
    lines("energy.jsonl", {damage});
    lines("events.jsonl", {R"({"event":"meters","unavailable":7})", damage});
    EXPECT_TRUE(energy_events_of(dir_).empty()) << damage;
  }
  EXPECT_THROW(energy_events_of(dir_ / "none"), UsageError);
}

}  // namespace
}  // namespace molen::serve
