#include "collect/job_labels.h"

#include <gtest/gtest.h>

#include <map>
#include <span>

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
  for (const Event& other :
       {Event{1, "job_start", "job=77 group=g", 0}, Event{1, "job_labels", "group=g", 0},
        Event{1, "job_labels", "job=77", 0}, Event{1, "job_labels", "", 0},
        Event{1, "job_labels", "job=77 group=\xc3\xa9", 0},
        Event{1, "job_labels", "job=77 tag=" + std::string(kMostJobLabelBytes + 1, 'x'), 0},
        Event{1, "job_labels", "job=77 job=78 group=g", 0}, Event{1, "job_labels", "group=g job=78", 0},
        Event{1, "job_labels", "job=77 group=g colour=red", 0}, Event{1, "job_labels", "job=77  group=g", 0}})
    EXPECT_FALSE(job_labels_of(other)) << other.text;
}

TEST(JobLabelsEvent, AnyTextBecomesALabel) {
  EXPECT_EQ(as_job_label("physics"), "physics");
  EXPECT_EQ(as_job_label(""), "");
  EXPECT_EQ(as_job_label("my job\x1b"), "my_job_");
  EXPECT_EQ(as_job_label(std::string(200, 'x')), std::string(kMostJobLabelBytes, 'x'));
}

using JobTable = AnyDatabase;

Batch labelled(const std::string& node, const std::string& session, std::int64_t seq, const JobLabels& labels) {
  Batch batch = test_batch(node, session, seq);
  for (Period& p : batch.periods) p.job = labels.job;
  if (!labels.empty()) batch.events = {job_labels_event(1.7e9, labels)};
  return batch;
}

using JoulesByKey = std::map<std::string, double>;
JoulesByKey joules_by(const std::string& words, const std::string& key) {
  JoulesByKey joules;
  for (const EnergySum& sum : energy_sums(words, {key})) joules[sum.key] = sum.joules.value();
  return joules;
}

// Three jobs have 100 J in each batch. Two of them have the group g, one of these ran on two nodes, and the third job
// has no label.
TEST_P(JobTable, SumsAreByTheLabelsOfJobs) {
  const auto database = open_database(words());
  ASSERT_TRUE(database->store(
      std::vector<Batch>{labelled("a", "s", 1, {"1", "g", "acc", ""}), labelled("b", "s", 1, {"1", "g", "acc", ""}),
                         labelled("c", "s", 1, {"2", "g", "", "t"}), labelled("d", "s", 1, {"3", "", "", ""})}));
  EXPECT_EQ(joules_by(words(), "group"), (JoulesByKey{{"", 100}, {"g", 300}}));
  EXPECT_EQ(joules_by(words(), "account"), (JoulesByKey{{"", 200}, {"acc", 200}}));
  EXPECT_EQ(joules_by(words(), "tag"), (JoulesByKey{{"", 300}, {"t", 100}}));
  // The sums by job have the labels too, as far as all periods of a line have the same.
  const std::string csv = sums_csv("job", energy_sums(words(), {"job"}));
  EXPECT_NE(csv.find("\n1,0,ann,,,2,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",g,acc,\n2,"), std::string::npos) << csv;
  EXPECT_NE(sums_csv("user", energy_sums(words(), {"user"})).find(",,,\n"), std::string::npos);
}

// A node, or a later job of the same number, changes nothing of what another sender has told.
TEST_P(JobTable, LabelsAreThoseOfTheirSender) {
  const auto database = open_database(words());
  ASSERT_TRUE(database->store(
      std::vector<Batch>{labelled("a", "s", 1, {"1", "mine", "", ""}), labelled("b", "s", 1, {"1", "yours", "", ""}),
                         labelled("a", "later", 1, {"1", "", "other", ""}), labelled("a", "s", 2, {"1", "", "", ""})}));
  EXPECT_EQ(joules_by(words(), "group"), (JoulesByKey{{"", 100}, {"mine", 200}, {"yours", 100}}));
  EXPECT_EQ(joules_by(words(), "account"), (JoulesByKey{{"", 300}, {"other", 100}}));
}

// A sender tells its labels at its end again. A batch that was stored before changes nothing.
TEST_P(JobTable, LabelsMayBeToldTwice) {
  const auto database = open_database(words());
  const std::vector<Batch> batches{labelled("a", "s", 1, {"1", "g", "", ""}),
                                   labelled("a", "s", 2, {"1", "g", "", ""})};
  ASSERT_TRUE(database->store(batches));
  ASSERT_TRUE(database->store(std::span(batches).first(1)));
  EXPECT_EQ(value("SELECT COUNT(*) FROM energy_jobs"), "1");
  EXPECT_EQ(joules_by(words(), "group"), (JoulesByKey{{"g", 200}}));
}

// Databases of before the labels get their table when a collector opens them, with what older collectors kept as
// events. Reading makes no table.
TEST_P(JobTable, OlderDatabasesGetTheLabelsOfTheirEvents) {
  ASSERT_TRUE(open_database(words())->store(
      std::vector<Batch>{labelled("a", "s", 1, {"1", "g", "", "t"}), labelled("b", "s", 1, {"2", "", "", ""})}));
  query("DROP TABLE energy_jobs");
  query("DROP TABLE energy_jobs_version");
  EXPECT_EQ(energy_sums(words(), {"job"}).size(), 2U);
  try {
    (void)energy_sums(words(), {"group"});
    ADD_FAILURE() << "sums by labels that the database does not have";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("no groups, accounts and tags"), std::string::npos) << error.what();
  }
  (void)open_database(words());
  EXPECT_EQ(joules_by(words(), "group"), (JoulesByKey{{"", 100}, {"g", 100}}));
  query("UPDATE energy_jobs_version SET version = 7");
  for (const bool reads : {false, true}) {
    try {
      if (reads)
        (void)energy_sums(words(), {"group"});
      else
        (void)open_database(words());
      ADD_FAILURE() << "tables of another version";
    } catch (const VersionError& error) {
      EXPECT_NE(std::string(error.what()).find("jobs: its tables have version 7"), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, JobTable, testing::Values("sqlite", "postgres"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace molen::collect
