#include "daemon/meter_board.h"

#include <gtest/gtest.h>

#include "daemon/test_daemon.h"

namespace molen::daemon {
namespace {

class Board : public ::testing::Test {
 protected:
  double time_ = 1000.0;
  std::unique_ptr<MeterBoard> board(Seconds read_every, std::unique_ptr<energy::Meter> meter) {
    energy::Meters meters;
    meters.meters.push_back(std::move(meter));
    meters.meters.push_back(std::make_unique<energy::NullMeter>("gpu0", "dead"));
    return std::make_unique<MeterBoard>(std::move(meters), read_every, [this] { return time_; });
  }
  static double joules(MeterBoard& board) { return board.read().at(0).reading.value().total.value; }
};

TEST_F(Board, AllPeersGetOneReadingOfATime) {
  const auto b = board(Seconds(0.1), std::make_unique<CountingMeter>());
  const double first = joules(*b);
  time_ += 0.04;
  const auto again = b->read();
  EXPECT_EQ(again.size(), 1u) << "a null meter is none";
  EXPECT_EQ(again[0].reading->total.value, first);
  EXPECT_NEAR(again[0].reading->age_s, 0.04, 1e-9);
  time_ += 0.07;
  EXPECT_EQ(joules(*b), first + 1.0);
  EXPECT_EQ(b->read()[0].reading->age_s, 0.0);
  const auto meters = b->meters();
  ASSERT_EQ(meters.size(), 1u);
  EXPECT_EQ(meters[0].meter, "counting");
  EXPECT_EQ(meters[0].changes_every_s, 0.1) << "no finer than what peers get";
}

class WrappingMeter : public energy::Meter {
 public:
  WrappingMeter() : Meter({"wrapping", "cpu-package0", energy::Source::kCounter, "", Seconds(60), true}) {}
  Result<energy::Reading> read() override {
    ++reads;
    return Failure{"no permission"};
  }
  int reads = 0;
};

TEST_F(Board, AMeterIsReadBeforeItLosesEnergy) {
  auto meter = std::make_unique<WrappingMeter>();
  WrappingMeter& wrapping = *meter;
  const auto b = board(Seconds(0.1), std::move(meter));
  EXPECT_EQ(b->keep_every_s(), 10.0);
  b->keep();
  EXPECT_EQ(wrapping.reads, 1);
  for (int i = 0; i < 4; ++i, time_ += 1.0) b->keep();
  EXPECT_EQ(wrapping.reads, 1) << "it was read within half the time";
  for (int i = 0; i < 12; ++i, time_ += 5.0) b->keep();
  EXPECT_GE(wrapping.reads, 5);
  EXPECT_EQ(b->read().at(0).reason, "no permission");
  EXPECT_FALSE(b->read().at(0).reading);
}

// A power meter, which must be read often, beside a counter whose fine readings tell secrets.
TEST_F(Board, WhatIsKeptShowsPeersNothingEarlier) {
  class PowerMeter : public CountingMeter {
   public:
    PowerMeter() : CountingMeter("node", 0.0, Seconds(0.05)) {}
  };
  energy::Meters meters;
  meters.meters.push_back(std::make_unique<CountingMeter>());
  meters.meters.push_back(std::make_unique<PowerMeter>());
  energy::Meter& counter = *meters.meters[0];
  energy::Meter& power = *meters.meters[1];
  MeterBoard board(std::move(meters), Seconds(1.0), [this] { return time_; });
  const auto first = board.read();
  for (int i = 0; i < 36; ++i) {
    time_ += board.keep_every_s();
    board.keep();
    const auto seen = board.read();
    EXPECT_EQ(seen.at(0).reading->total.value, first.at(0).reading->total.value) << i;
    EXPECT_EQ(seen.at(1).reading->total.value, first.at(1).reading->total.value) << i;
    EXPECT_NEAR(seen.at(0).reading->age_s, time_ - 1000.0, 1e-9);
  }
  EXPECT_EQ(counter.read().value().total.value, first.at(0).reading->total.value + 1.0) << "nobody has read it";
  EXPECT_GE(power.read().value().total.value, first.at(1).reading->total.value + 30.0) << "it was kept";
  time_ += 0.2;
  EXPECT_EQ(board.read().at(0).reading->total.value, first.at(0).reading->total.value + 2.0);
}

}  // namespace
}  // namespace molen::daemon
