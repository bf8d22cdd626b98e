#include "collect/job_labels.h"

#include <gtest/gtest.h>

#include "collect/database.h"
#include "collect/sums.h"
#include "collect/test_any_database.h"
#include "collect/test_records.h"

namespace molen::collect {
namespace {

TEST(JobLabelsEvent, HasWhatIsKnown) {
  const JobLabels all{"77", "physics", "a1", "x=y"};
  const Event event = job_labels_event(5.0, all);
  EXPECT_EQ(event, (Event{5.0, "job_labels", "job=77 group=physics account=a1 tag=x=y", 0}));
  EXPECT_EQ(wrong_with(event), "");
  EXPECT_EQ(job_labels_of(event), all);
  EXPECT_EQ(job_labels_of(job_labels_event(5.0, {"77", "", "a1", ""})), (JobLabels{"77", "", "a1", ""}));
  const std::string longest(kMostJobLabelBytes, 'x');
  EXPECT_EQ(wrong_with(job_labels_event(5.0, {std::string(kMostNameBytes, '7'), longest, longest, longest})), "");
}

TEST(JobLabelsEvent, OtherEventsHaveNone) {
  for (const Event& other : {Event{1, "job_start", "job=77 group=g", 0}, Event{1, "job_labels", "group=g", 0},
                             Event{1, "job_labels", "job=77", 0}, Event{1, "job_labels", "", 0},
                             Event{1, "job_labels", "job=77 group=\xc3\xa9", 0},
                             Event{1, "job_labels", "job=77 tag=" + std::string(kMostNameBytes + 1, 'x'), 0}})
    EXPECT_FALSE(job_labels_of(other)) << other.text;
}

using JobTable = AnyDatabase;

Batch labelled(const std::string& node, std::int64_t seq, const JobLabels& labels) {
  Batch batch = test_batch(node, "s", seq);
  for (Period& p : batch.periods) p.job = labels.job;
  if (!labels.empty()) batch.events = {job_labels_event(1.7e9, labels)};
  return batch;
}

// Of three jobs with 100 J a batch: two have the group g, one of them has two nodes, and the third has no label.
TEST_P(JobTable, SumsAreByTheLabelsOfJobs) {
  const auto database = open_database(words());
  ASSERT_TRUE(database->store(
      std::vector<Batch>{labelled("a", 1, {"1", "g", "acc", ""}), labelled("b", 1, {"1", "g", "acc", ""}),
                         labelled("c", 1, {"2", "g", "", "t"}), labelled("d", 1, {"3", "", "", ""})}));
  const auto by = [&](const std::string& key) {
    std::map<std::string, double> joules;
    for (const EnergySum& sum : energy_sums(words(), {key})) joules[sum.key] = sum.joules.value();
    return joules;
  };
  using Joules = std::map<std::string, double>;
  EXPECT_EQ(by("group"), (Joules{{"", 100}, {"g", 300}}));
  EXPECT_EQ(by("account"), (Joules{{"", 200}, {"acc", 200}}));
  EXPECT_EQ(by("tag"), (Joules{{"", 300}, {"t", 100}}));
  const std::string csv = sums_csv("account", energy_sums(words(), {"account"}));
  EXPECT_NE(csv.find("\n1,0,ann,,acc,,,,2,"), std::string::npos) << csv;
  // A later step tells more of the job, and one label anew. What it does not tell stays.
  ASSERT_TRUE(database->store(std::vector<Batch>{labelled("a", 2, {"1", "", "other", "t"})}));
  EXPECT_EQ(by("group"), (Joules{{"", 100}, {"g", 400}}));
  EXPECT_EQ(by("account"), (Joules{{"", 200}, {"other", 300}}));
  EXPECT_EQ(by("tag"), (Joules{{"", 100}, {"t", 400}}));
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_jobs"), "2");
}

// Of one call, the last labels of a job count, and a batch that was stored before changes nothing.
TEST_P(JobTable, TheLastLabelsCountOnce) {
  const auto database = open_database(words());
  const std::vector<Batch> batches{labelled("a", 1, {"1", "x", "", ""}), labelled("a", 2, {"1", "y", "", ""})};
  ASSERT_TRUE(database->store(batches));
  EXPECT_EQ(value("SELECT group_name FROM energy_jobs"), "y");
  ASSERT_TRUE(database->store(std::span(batches).first(1)));
  EXPECT_EQ(value("SELECT group_name FROM energy_jobs"), "y");
}

// Databases of before the labels get their table when a collector opens them. Reading makes none.
TEST_P(JobTable, OlderDatabasesHaveNoLabels) {
  ASSERT_TRUE(open_database(words())->store(std::vector<Batch>{labelled("a", 1, {"1", "g", "", ""})}));
  query("DROP TABLE energy_jobs");
  query("DROP TABLE energy_jobs_version");
  EXPECT_EQ(energy_sums(words(), {"job"}).size(), 1U);
  try {
    (void)energy_sums(words(), {"group"});
    ADD_FAILURE() << "sums by labels that the database does not have";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("no groups, accounts and tags"), std::string::npos) << error.what();
  }
  ASSERT_TRUE(open_database(words())->store(std::vector<Batch>{labelled("a", 2, {"1", "g", "", ""})}));
  EXPECT_EQ(energy_sums(words(), {"group"}).at(0).key, "g");
  query("UPDATE energy_jobs_version SET version = 7");
  try {
    (void)open_database(words());
    ADD_FAILURE() << "tables of another version";
  } catch (const VersionError& error) {
    EXPECT_NE(std::string(error.what()).find("jobs: its tables have version 7"), std::string::npos) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, JobTable, testing::Values("sqlite", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace molen::collect
