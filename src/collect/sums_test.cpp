// Tests the sums and the events of a database.
#include "collect/sums.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "collect/database.h"
#include "collect/site_events.h"
#include "collect/test_any_database.h"
#include "collect/test_records.h"

namespace molen::collect {
namespace {

using Sums = AnyDatabase;

TEST_P(Sums, SumsAreThoseOfTheTimesAsked) {
  if (is_postgres())
    EXPECT_THROW(energy_sums(words(), {}), UsageError) << "reading makes no tables";
  else
    EXPECT_THROW(energy_sums(words(), {}), MissingFileError);
  std::vector<Batch> batches = test_batches("a", 1, 40);
  for (const Batch& b : test_batches("b", 1, 20)) batches.push_back(b);
  batches[0].periods[0].joules = 33.25;
  for (Period& p : batches[1].periods) p.job = p.step = p.user = "";
  for (Period& p : batches[2].periods) p.step = "3";
  batches.push_back({"c",
                     "s",
                     1,
                     {{"cpu", 1.7e9, 1.7e9 + 60, {}, "no rights", "null", energy::Source::kNone, false, "", "", ""}},
                     {}});
  ASSERT_TRUE(open_database(words())->store(batches));
  using Rows = std::vector<EnergySum>;
  // Of node a, step 77.0 has 33.25 J and 37 times 100 J in 38 minutes, and step 77.3 has 100 J in one.
  const double edp_a = 3733.25 * 2280 + 100.0 * 60;
  const Rows nodes{{"a",
                    3933.25,
                    1,
                    0,
                    1.7e9 + 60,
                    1.7e9 + 2460,
                    2400,
                    2400,
                    edp_a,
                    {PartEnergy{3933.25, 2400}, {}, {}, PartEnergy{1600, 2400}},
                    "a",
                    "",
                    "",
                    "",
                    0,
                    0,
                    "node"},
                   {"b",
                    2000,
                    1,
                    0,
                    1.7e9 + 60,
                    1.7e9 + 1260,
                    1200,
                    1200,
                    2000.0 * 1200,
                    {PartEnergy{2000, 1200}, {}, {}, PartEnergy{800, 1200}},
                    "b",
                    "77",
                    "0",
                    "ann",
                    0,
                    0,
                    "node"},
                   {"c", {}, 1, 1, 1.7e9, 1.7e9 + 60, 0, 0, {}, {}, "c"}};
  EXPECT_EQ(energy_sums(words(), {}), nodes);
  const Rows day = energy_sums(words(), {"day", 0, 1.8e9});
  ASSERT_EQ(day.size(), 1u);
  EXPECT_EQ(day[0].key, "2023-11-14");
  EXPECT_EQ(day[0].nodes, 3);
  auto by_key = [&](const std::string& by) {
    std::map<std::string, double> found;
    for (const EnergySum& sum : energy_sums(words(), {by, 1.7e9 + 120, 1.7e9 + 240}))
      found[sum.key] = sum.joules.value_or(-1);
    return found;
  };
  EXPECT_EQ(by_key("node"), (std::map<std::string, double>{{"a", 200}, {"b", 200}}));
  EXPECT_EQ(by_key("job"), (std::map<std::string, double>{{"", 100}, {"77", 300}}));
  EXPECT_EQ(by_key("step"), (std::map<std::string, double>{{"", 100}, {"77.0", 200}, {"77.3", 100}}));
  EXPECT_EQ(by_key("user"), (std::map<std::string, double>{{"", 100}, {"ann", 300}}));
  query("UPDATE energy_version SET version = 7");
  EXPECT_THROW(energy_sums(words(), {}), VersionError);
}

using Left = std::vector<std::pair<std::string, std::string>>;  // nodes that are not compared, and why

// A period of a node without a part: `joules` from `start_s` to `end_s` after the epoch of these tests.
Period period(const std::string& scope, double start_s, double end_s, double joules, const std::string& job,
              const std::string& step = "") {
  return {scope, 1.7e9 + start_s, 1.7e9 + end_s, joules, "", "rapl", energy::Source::kCounter, true, job, step, ""};
}

TEST_P(Sums, MomentsThatSeveralPeriodsHaveCountOnce) {
  // Job 7 runs on a from 0 s to 120 s and on b from 30 s to 150 s; b has no job until then. Job 8 has two steps.
  const std::vector<Batch> batches{
      {"a", "s", 1, {period("cpu-package0", 0, 60, 600, "7"), period("dram0", 0, 60, 60, "7")}, {}},
      {"a", "s", 2, {period("cpu-package0", 60, 120, 600, "7"), period("dram0", 60, 120, 60, "7")}, {}},
      {"b", "s", 1, {period("gpu0", 0, 30, 90, "")}, {}},
      {"b", "s", 2, {period("gpu0", 30, 150, 1200, "7")}, {}},
      {"b", "s", 3, {period("gpu0", 200, 210, 50, "8", "0"), period("gpu0", 210, 230, 100, "8", "1")}, {}}};
  ASSERT_TRUE(open_database(words())->store(batches));
  const auto by_job = energy_sums(words(), {"job"});
  ASSERT_EQ(by_job.size(), 3u);
  EXPECT_EQ(by_job[0].seconds, 30);
  EXPECT_EQ(by_job[0].edp, std::nullopt) << "what has no job has no delay";
  EXPECT_EQ(by_job[1].seconds, 150) << "from 0 s to 150 s";
  EXPECT_EQ(by_job[1].node_seconds, 240);
  EXPECT_EQ(by_job[1].joules, 2520);
  EXPECT_EQ(by_job[1].watts(), 2520.0 / 150);
  EXPECT_EQ(by_job[1].edp, 2520.0 * 150);
  EXPECT_EQ(by_job[1].parts, (NodeParts{{}, PartEnergy{1200, 120}, PartEnergy{120, 120}, PartEnergy{1200, 120}}));
  EXPECT_EQ(by_job[2].edp, 50.0 * 10 + 100.0 * 20) << "each step has a delay of its own";
  const auto by_node = energy_sums(words(), {"node", 0, 2e9, "7"});
  ASSERT_EQ(by_node.size(), 2u) << "of job 7 alone";
  EXPECT_EQ(by_node[0].edp, 1320.0 * 120);
  EXPECT_EQ(by_node[1].edp, 1200.0 * 120);
  EXPECT_EQ(compare_nodes(by_node).left_out, (Left{{"b", "other scopes: gpu0"}}))
      << "a counts its processor and its memory";
  const auto by_day = energy_sums(words(), {"day"});
  ASSERT_EQ(by_day.size(), 1u);
  EXPECT_EQ(by_day[0].seconds, 150 + 30) << "nothing is measured between 150 s and 200 s";
  EXPECT_EQ(by_day[0].edp, 2520.0 * 150 + 50.0 * 10 + 100.0 * 20);
  EXPECT_TRUE(energy_sums(words(), {"node", 0, 2e9, "7' OR '1'='1"}).empty());
}

// Nodes of one job have meters of different kinds. Node b has two kinds for its processors, of which one counts.
TEST_P(Sums, EachNodeHasItsOwnKindOfScopesForAPart) {
  const std::vector<Batch> batches{
      {"a", "s", 1, {period("cpu-package0", 0, 60, 600, "7"), period("cpu-package1", 0, 60, 300, "7")}, {}},
      {"b", "s", 1, {period("cpu", 0, 60, 1200, "7"), period("cpu-package0", 0, 60, 1000, "7")}, {}},
      {"c",
       "s",
       1,
       {period("cpu", 0, 60, 60, "7"), period("dram", 0, 60, 6, "7"), period("accel0", 0, 60, 600, "7")},
       {}},
      {"d",
       "s",
       1,
       {period("grace0", 0, 60, 120, "7"), period("dram0", 0, 60, 12, "7"), period("gpu0", 0, 60, 6, "7")},
       {}}};
  ASSERT_TRUE(open_database(words())->store(batches));
  const auto job = energy_sums(words(), {"job"});
  ASSERT_EQ(job.size(), 1u);
  EXPECT_EQ(
      job[0].parts,
      (NodeParts{{}, PartEnergy{600 + 300 + 1000 + 60 + 120, 60}, PartEnergy{6 + 12, 60}, PartEnergy{600 + 6, 60}}));
}

// The GPU was read for the second half of the time, and drew 20 W.
TEST_P(Sums, ThePowerOfAPartIsThatOfTheTimeInWhichItWasRead) {
  Period blind = period("gpu0", 0, 60, 0, "7");
  blind.joules.reset(), blind.reason = "gone", blind.source = energy::Source::kNone;
  const Batch batch{
      "a",
      "s",
      1,
      {period("cpu", 0, 60, 600, "7"), blind, period("cpu", 60, 120, 600, "7"), period("gpu0", 60, 120, 1200, "7")},
      {}};
  ASSERT_TRUE(open_database(words())->store({&batch, 1}));
  const auto sums = energy_sums(words(), {"job"});
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums[0].seconds, 120);
  EXPECT_EQ(sums[0].parts.gpu, (PartEnergy{1200, 60}));
  const std::string csv = sums_csv("job", sums);
  EXPECT_NE(csv.find(",120,2400,20,,10,,20,"), std::string::npos) << csv;
}

// Four nodes of 10 W. Node e lacks its GPU's readings for half of the time, f has no meter for its GPU, and g has had
// one period that was too short for a reading.
TEST_P(Sums, NodesThatLackReadingsAreNotCompared) {
  std::vector<Batch> batches;
  const auto unread = [](double start_s, double end_s) {
    Period p = period("gpu0", start_s, end_s, 0, "");
    p.joules.reset(), p.reason = "gone", p.source = energy::Source::kNone;
    return p;
  };
  for (const char* node : {"a", "b", "c", "d", "e", "f", "g"})
    batches.push_back({node, "s", 1, {period("cpu", 0, 60, 240, ""), period("cpu", 60, 120, 240, "")}, {}});
  for (Batch& b : batches)
    if (b.node != "f") b.periods.push_back(period("gpu0", 0, 60, 360, ""));
  for (Batch& b : batches)
    if (b.node != "f" && b.node != "e") b.periods.push_back(period("gpu0", 60, 120, 360, ""));
  batches[4].periods.push_back(unread(60, 120));
  batches[6].periods.push_back(unread(120, 120.5));
  // A scope that does not count may lack readings.
  batches[0].periods.push_back(unread(0, 120));
  batches[0].periods.back().scope = "psys", batches[0].periods.back().counted = false;
  ASSERT_TRUE(open_database(words())->store(batches));
  const auto sums = energy_sums(words(), {});
  EXPECT_EQ(sums.at(0).counted, "cpu gpu0");
  EXPECT_EQ(sums.at(0).unread, 0);
  EXPECT_EQ(sums.at(4).unread_s, 60);
  const Comparison nodes = compare_nodes(sums);
  EXPECT_EQ(nodes.names, (std::vector<std::string>{"a", "b", "c", "d", "g"}));
  EXPECT_EQ(nodes.spread.outliers, std::vector<std::size_t>{}) << "e and f have 7 W and 4 W";
  EXPECT_EQ(nodes.left_out, (Left{{"e", "1 period without a reading"}, {"f", "other scopes: cpu"}}));
}

TEST_P(Sums, TheDocumentsOfSumsHaveTheirFigures) {
  ASSERT_TRUE(open_database(words())->store(test_batches("a", 1, 2)));
  const auto sums = energy_sums(words(), {"step"});
  EXPECT_EQ(to_json(sums.at(0)),
            parse_json(R"({"key":"77.0","energy_j":200.0,"nodes":1,"seconds":120.0,"node_seconds":120.0,
                          "mean_w":1.6666666666666667,"edp_js":24000.0,"periods_without_reading":0,
                          "from":"2023-11-14T22:14:20Z","until":"2023-11-14T22:16:20Z"})",
                       "test"));
  EXPECT_EQ(sums_csv("step", sums),
            "job_id,step_id,user_id,node_id,day,nodes,start_time,end_time,time,energy_J,power_W,DC_"
            "power,PCK_power,"
            "DRAM_power,GPU_power,EDP,node_seconds,periods_without_reading,user_group,user_acc,e_tag\n"
            "77,0,ann,a,,1,2023-11-14T22:14:20Z,2023-11-14T22:16:20Z,120,200,1.66666667,1.66666667,,,0.666666667,24000,"
            "120,0,,,\n");
  EXPECT_EQ(to_json(EnergySum{})["mean_w"], Json()) << "not measured is not 0";
}

TEST_P(Sums, EventsOfASiteHaveTheGapsOfMeters) {
  Batch batch = test_batch("a", "s", 1);  // from 60 s on
  batch.events = {{1.7e9 + 60, "start", "node cray", 2},
                  {1.7e9 + 60, "job_start", "job=77 step=0 user=ann", 0},
                  {1.7e9 + 60, "job_start", "job=771", 0}};
  const auto gap = [](double start_s, const std::string& why, const std::string& job) {
    Period p = period("gpu0", start_s, start_s + 60, 0, job, job.empty() ? "" : "0");
    p.joules.reset(), p.reason = why, p.source = energy::Source::kNone;
    return p;
  };
  // Two gaps of one reason, because the meter was read from 240 s to 300 s, and one of another reason.
  Batch gaps{"a", "s", 2, {}, {}};
  for (const double start_s : {120.0, 180.0, 300.0}) gaps.periods.push_back(gap(start_s, "it stands still", "77"));
  gaps.periods.push_back(gap(360, "gone", ""));
  Batch cap{"cap:all", "m", 1, {}, {{1.7e9 + 90, "limiting", "over 3 kW", 0}}};
  ASSERT_TRUE(open_database(words())->store(std::vector<Batch>{batch, gaps, cap}));
  using Events = std::vector<SiteEvent>;
  const Events all = site_events(words(), {});
  const SiteEvent first_gap{1.7e9 + 120, 1.7e9 + 240, "a", "no_reading", "gpu0: it stands still", 2, "77", "0"};
  EXPECT_EQ(all, (Events{{1.7e9 + 60, {}, "a", "job_start", "job=77 step=0 user=ann", 0},
                         {1.7e9 + 60, {}, "a", "job_start", "job=771", 0},
                         {1.7e9 + 60, {}, "a", "start", "node cray", 2},
                         {1.7e9 + 90, {}, "cap:all", "limiting", "over 3 kW", 0},
                         first_gap,
                         {1.7e9 + 300, 1.7e9 + 360, "a", "no_reading", "gpu0: it stands still", 1, "77", "0"},
                         {1.7e9 + 360, 1.7e9 + 420, "a", "no_reading", "gpu0: gone", 1}}));
  const Events of_job = site_events(words(), {"node", 0, 2e9, "77"});
  ASSERT_EQ(of_job.size(), 3u) << "job 771 is another";
  EXPECT_EQ(of_job[1], first_gap);
  EXPECT_EQ(site_events(words(), {"node", 1.7e9 + 90, 1.7e9 + 120}), (Events{all[3]}));
  EXPECT_EQ(site_events_csv({first_gap}),
            "timestamp,event_type,job_id,step_id,value,node_id,until,text\n"
            "2023-11-14T22:15:20Z,no_reading,77,0,2,a,2023-11-14T22:17:20Z,gpu0: it stands still\n");
  EXPECT_EQ(to_json(all[3])["until"], Json());
  EXPECT_EQ(to_json(first_gap)["until"], "2023-11-14T22:17:20Z");
}

// The server takes a second for these sums. With a search of all rows for each key it would take minutes.
TEST(Postgres, SumsByManyKeysTakeTheTimeOfTheirRows) {
  PrivatePostgres& server = PrivatePostgres::shared();
  query_postgres(server.uri(), "CREATE DATABASE many");
  const Batch batch = test_batch("a", "s", 1);
  ASSERT_TRUE(open_database(server.uri("many"))->store({&batch, 1}));
  query_postgres(server.uri("many"),
                 "INSERT INTO energy_periods SELECT 1, i + 1, 'a', 'node', 60 * i, 60 * i + 60, 100, NULL, 'cray', "
                 "'counter', 1, 'job' || i, NULL, NULL FROM generate_series(1, 40000) AS i");
  query_postgres(server.uri("many"), "ALTER DATABASE many SET statement_timeout = '30s'");
  const auto sums = energy_sums(server.uri("many"), {"job"});
  ASSERT_EQ(sums.size(), 40001u);
  for (const EnergySum& sum : sums) ASSERT_EQ(sum.node_seconds, 60) << sum.key;
  EXPECT_EQ(sums.back().edp, 100 * 60);
}

// A database may be set to take a backslash in quotes for an escape.
TEST(Postgres, ABackslashInANameIsOneWhateverTheServerIsSetTo) {
  PrivatePostgres& server = PrivatePostgres::shared();
  query_postgres(server.uri(), "CREATE DATABASE escaping");
  query_postgres(server.uri(), "ALTER DATABASE escaping SET standard_conforming_strings = off");
  const std::string job = "7\\' OR 1=1 --";
  const Batch batch{"a", "s", 1, {period("cpu", 0, 60, 600, "7\\"), period("cpu", 60, 120, 600, "8")}, {}};
  ASSERT_TRUE(open_database(server.uri("escaping"))->store({&batch, 1}));
  const auto sums = energy_sums(server.uri("escaping"), {"node", 0, 2e9, "7\\"});
  ASSERT_EQ(sums.size(), 1u);
  EXPECT_EQ(sums[0].joules, 600);
  EXPECT_TRUE(energy_sums(server.uri("escaping"), {"node", 0, 2e9, job}).empty()) << "no other job is in it";
}

INSTANTIATE_TEST_SUITE_P(Kinds, Sums, testing::Values("sqlite", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace molen::collect
