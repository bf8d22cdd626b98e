// Tests what a rank leaves in its flight record while it runs, and when it ends.
#include "train/observe/flight_recorder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "comm/self/self.h"
#include "program/build/build.h"

namespace molen::train {
namespace {

class Flight : public ::testing::Test {
 protected:
  void SetUp() override {
    job_.arch = arch::preset("llama-tiny");
    job_.setting.micro_batch = job_.setting.global_batch = 1;
    job_.setting.sequence = 16;
    job_.program = program::build(job_.arch, job_.setting);
    job_.config.run.dir = runs_.string();
    job_.config.run.name = "run";
  }
  void TearDown() override { fs::remove_all(runs_); }

  store::FlightState state() const { return store::read_flight(store::flight_file(runs_ / "run/flight", 0)); }
  // Returns the median that is recorded after a step of so many seconds.
  double median_after(FlightRecorder& recorder, double seconds) const {
    recorder.step_took(seconds);
    return static_cast<double>(state().median_step_ns) * 1e-9;
  }

  const fs::path runs_ = fs::temp_directory_path() / fmt::format("molen_flight_recorder_{}", ::getpid());
  Job job_;
};

TEST_F(Flight, MedianIsOfTheLastSteps) {
  const auto world = comm::make_self();
  FlightRecorder recorder;
  recorder.open(job_, 1, *world);
  EXPECT_EQ(state().median_step_ns, 0);
  constexpr double kNanosecond = 1.1e-9;  // the record has whole nanoseconds, rounded down
  EXPECT_NEAR(median_after(recorder, 0.5), 0.5, kNanosecond);
  EXPECT_NEAR(median_after(recorder, 0.125), 0.5, kNanosecond) << "of two the greater";
  EXPECT_NEAR(median_after(recorder, 0.25), 0.25, kNanosecond);
  EXPECT_NEAR(median_after(recorder, 0.0625), 0.25, kNanosecond);
  for (int i = 0; i < 51; ++i) recorder.step_took(2.0);
  EXPECT_NEAR(median_after(recorder, 1.0), 2.0, kNanosecond);
  for (int i = 0; i < 24; ++i) recorder.step_took(1.0);
  EXPECT_EQ(state().median_step_ns, 2'000'000'000) << "25 of 51";
  EXPECT_NEAR(median_after(recorder, 1.0), 1.0, kNanosecond) << "26 of 51";
  EXPECT_EQ((recorder.step_took(0.0), state().median_step_ns), 1'000'000'000);
}

// A median of 0 means that no step has ended.
TEST_F(Flight, StepsOfNoTimeHaveAMedian) {
  const auto world = comm::make_self();
  FlightRecorder recorder;
  recorder.open(job_, 1, *world);
  recorder.step_took(0.0);
  EXPECT_EQ(state().median_step_ns, 1);
}

TEST_F(Flight, AnOpIsBegunUntilItEnds) {
  const auto world = comm::make_self();
  FlightRecorder recorder;
  recorder.open(job_, 1, *world);
  recorder.phase(store::FlightPhase::kTrain, 3);
  const auto compute = static_cast<std::size_t>(program::Stream::kCompute);
  recorder.begin(program::Stream::kCompute, 2, 100);
  store::FlightStream stream = state().streams[compute];
  EXPECT_TRUE(stream.any);
  EXPECT_TRUE(stream.inside);
  EXPECT_EQ(stream.op, 2);
  EXPECT_EQ(stream.step, 3);
  recorder.end(program::Stream::kCompute, 2, 200);
  stream = state().streams[compute];
  EXPECT_FALSE(stream.inside);
  ASSERT_EQ(stream.records.size(), 2u);
  EXPECT_EQ(stream.records[0].ns, 100);
  EXPECT_EQ(stream.records[1].ns, 200);
}

TEST_F(Flight, KeepsWhereItEnded) {
  const auto world = comm::make_self();
  {
    FlightRecorder recorder;
    recorder.phase(store::FlightPhase::kTrain, 3);  // before it is open
    recorder.open(job_, 4, *world);
    recorder.phase(store::FlightPhase::kFinish, 7);
    EXPECT_EQ(state().end, store::FlightEnd::kRunning);
  }
  const store::FlightState left = state();
  EXPECT_EQ(left.identity.attempt, 4);
  EXPECT_EQ(left.phase, store::FlightPhase::kFinish);
  EXPECT_EQ(left.step, 7);
  EXPECT_EQ(left.end, store::FlightEnd::kEnded);
}

}  // namespace
}  // namespace molen::train
