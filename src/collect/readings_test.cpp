#include "collect/readings.h"

#include <gtest/gtest.h>

#include "collect/wire.h"

namespace molen::collect {
namespace {

// A meter that the test sets.
class SetMeter : public energy::Meter {
 public:
  SetMeter(std::string scope, const Result<energy::Reading>& reading, bool counted = true)
      : Meter({"test", std::move(scope), energy::Source::kCounter, "", Seconds(0), counted}), reading_(reading) {}
  Result<energy::Reading> read() override { return reading_; }

 private:
  const Result<energy::Reading>& reading_;
};

Result<energy::Reading> joules_read(double joules) {
  energy::Reading reading;
  reading.total = Joules(joules);
  return reading;
}

struct ReadNode {
  Result<energy::Reading> node = joules_read(0), gpu = joules_read(0);
  double wall_s = 1e9, steady_s = 50;
  energy::Meters meters() {
    energy::Meters all;
    all.meters.push_back(std::make_unique<SetMeter>("node", node));
    all.meters.push_back(std::make_unique<SetMeter>("gpu0", gpu, false));
    all.meters.push_back(std::make_unique<energy::NullMeter>("dram0", "no rights"));
    all.unavailable.push_back({"nvml", "gpu1", "no driver"});
    return all;
  }
  Readings readings(Labels labels = {}) {
    return Readings(
        meters(), std::move(labels), [this] { return wall_s; }, [this] { return steady_s; });
  }
  void pass(double seconds) { wall_s += seconds, steady_s += seconds; }
};

TEST(Readings, APeriodForEachScope) {
  ReadNode node;
  Readings readings = node.readings({"77", "0", "ann"});
  node.pass(60);
  node.node = joules_read(6000), node.gpu = joules_read(1500);
  auto batches = readings.next();
  ASSERT_EQ(batches.size(), 1u);
  const std::vector<Period> expected{
      {"node", 1e9, 1e9 + 60, 6000.0, "", "test", energy::Source::kCounter, true, "77", "0", "ann"},
      {"gpu0", 1e9, 1e9 + 60, 1500.0, "", "test", energy::Source::kCounter, false, "77", "0", "ann"},
      {"dram0", 1e9, 1e9 + 60, {}, "no rights", "null", energy::Source::kNone, false, "77", "0", "ann"}};
  EXPECT_EQ(batches[0].periods, expected);
  EXPECT_TRUE(batches[0].events.empty());
  node.pass(30);
  node.node = Failure{"EIO\n"};
  node.gpu = joules_read(1600);
  batches = readings.next();
  EXPECT_EQ(batches[0].periods[0].joules, std::nullopt);
  EXPECT_EQ(batches[0].periods[0].reason, "EIO ") << "a text of the collector";
  EXPECT_EQ(batches[0].periods[1].joules, 100.0);
  EXPECT_EQ(batches[0].periods[1].start_s, 1e9 + 60) << "periods follow each other";
}

TEST(Readings, APeriodEndsInTheMiddleOfTheReading) {
  ReadNode node;
  double reads_take_s = 0.0;
  int asked = 0;
  // The second time that a call asks for the steady clock is after its reading.
  Readings readings(
      node.meters(), {}, [&] { return node.wall_s; },
      [&] { return node.steady_s + (++asked % 2 == 1 ? reads_take_s : 0.0); });
  node.pass(10);
  asked = 1, reads_take_s = 0.5;
  node.node = joules_read(100);
  const auto batches = readings.next();
  EXPECT_EQ(batches.at(0).periods.at(0).start_s, 1e9);
  EXPECT_EQ(batches[0].periods[0].end_s, 1e9 + 10.25);
  EXPECT_TRUE(batches[0].events.empty());
}

TEST(Readings, AValueThatCannotBeIsNull) {
  ReadNode node;
  Readings readings = node.readings();
  node.pass(1);
  node.node = joules_read(2e6);
  const auto batches = readings.next();
  EXPECT_EQ(batches[0].periods[0].joules, std::nullopt);
  EXPECT_NE(batches[0].periods[0].reason.find("more than 1e+06 W"), std::string::npos);
  EXPECT_EQ(wrong_with(batches[0].periods[0]), "");
}

TEST(Readings, AClockThatIsSetIsReported) {
  ReadNode node;
  Readings readings = node.readings();
  node.pass(60);
  node.wall_s += 0.5;  // as a time service corrects it
  EXPECT_TRUE(readings.next()[0].events.empty());
  node.pass(60);
  node.wall_s -= 3600;
  auto batches = readings.next();
  ASSERT_EQ(batches[0].events.size(), 1u);
  EXPECT_EQ(batches[0].events[0].kind, "clock");
  EXPECT_NE(batches[0].events[0].text.find("-3600.000 s"), std::string::npos) << batches[0].events[0].text;
  EXPECT_EQ(batches[0].periods[0].end_s, node.wall_s);
  EXPECT_EQ(batches[0].periods[0].start_s, node.wall_s - 60) << "as long as it was";
  node.pass(60);
  node.wall_s = 5;  // before anything has set it
  batches = readings.next();
  for (const Period& p : batches[0].periods) EXPECT_EQ(wrong_with(p), "");
}

TEST(Readings, SaysWhatIsReadAndWhatIsNot) {
  ReadNode node;
  const auto batches = node.readings().describe();
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0].events.size(), 2u);
  EXPECT_EQ(batches[0].events[0].kind, "start");
  EXPECT_EQ(batches[0].events[0].text, "node test, gpu0 test");
  EXPECT_EQ(batches[0].events[1].kind, "unavailable");
  EXPECT_EQ(batches[0].events[1].text, "nvml gpu1: no driver");
}

TEST(Readings, AJobHasAStartAndAnEnd) {
  ReadNode node;
  Readings readings = node.readings({"77", "batch", "ann"});
  auto batches = readings.describe();
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0].events.size(), 3u);
  EXPECT_EQ(batches[0].events[1], (Event{1e9, "job_start", "job=77 step=batch user=ann", 0}));
  node.pass(60);
  readings.next();
  node.pass(5);  // while the last records are sent
  batches = readings.farewell();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].events,
            (std::vector<Event>{{1e9 + 60, "job_stop", "job=77 step=batch user=ann", 0}, {1e9 + 60, "stop", "", 0}}));
  EXPECT_EQ(node.readings({"77", "", ""}).describe()[0].events[1].text, "job=77");
  const auto labelled = node.readings({"77", "", "", "physics", "", "x"}).describe();
  EXPECT_EQ(labelled[0].events[2], (Event{1e9 + 65, "job_labels", "job=77 group=physics tag=x", 0}));
  Readings labelled_node = node.readings({"77", "", "", "physics", "", "x"});
  const auto end = labelled_node.farewell();
  EXPECT_EQ(end[0].events[1].text, "job=77 group=physics tag=x") << "again, where the spool has lost the start";
  const auto without_job = node.readings({"", "", "", "physics", "", ""}).describe();
  for (const Event& event : without_job[0].events) EXPECT_NE(event.kind, "job_labels") << "labels without a job";
  ReadNode without;
  EXPECT_EQ(without.readings({"", "", "ann"}).farewell()[0].events, (std::vector<Event>{{1e9, "stop", "", 0}}));
}

TEST(Readings, ManyScopesAreSeveralBatches) {
  std::vector<Period> periods(100, {"node",
                                    1,
                                    2,
                                    {},
                                    std::string(kMostTextBytes, '"'),
                                    std::string(kMostNameBytes, '"'),
                                    energy::Source::kNone,
                                    true,
                                    std::string(kMostNameBytes, '\\'),
                                    "",
                                    ""});
  auto batches = in_batches(periods, {{1, "start", "", 0}});
  ASSERT_EQ(batches.size(), 5u);
  std::size_t records = 0;
  std::int64_t seq = 0;
  for (Batch& b : batches) {
    records += b.records();
    b.node = "n", b.session = "s", b.seq = ++seq;
    EXPECT_LE(batch_line(b).size(), kMostLineBytes) << "texts that need an escape for each character";
  }
  EXPECT_EQ(records, 101u);
  EXPECT_TRUE(in_batches({}, {}).empty());
}

}  // namespace
}  // namespace molen::collect
