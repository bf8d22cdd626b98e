#include "energy/dcmi.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/clock.h"
#include "energy/accountant.h"
#include "energy/coverage.h"
#include "energy/open.h"
#include "energy/polled_power.h"
#include "energy/test_machine.h"

namespace molen::energy {
namespace {

// The answer of a controller: 305 W now, over 1 s; between 120 W and 610 W, 290 W on average.
std::vector<std::uint8_t> answer(int watts = 305, std::uint8_t state = 0x40) {
  return {0xDC,
          static_cast<std::uint8_t>(watts & 0xff),
          static_cast<std::uint8_t>(watts >> 8),
          0x78,
          0x00,
          0x62,
          0x02,
          0x22,
          0x01,
          0x40,
          0xE2,
          0x01,
          0x65,
          0xE8,
          0x03,
          0x00,
          0x00,
          state};
}

class FakeController : public IpmiController {
 public:
  Result<std::vector<std::uint8_t>> request(std::uint8_t net_function, std::uint8_t command,
                                            const std::vector<std::uint8_t>& data) override {
    EXPECT_EQ(net_function, 0x2C);
    EXPECT_EQ(command, 0x02);
    EXPECT_EQ(data, (std::vector<std::uint8_t>{0xDC, 0x01, 0x00, 0x00}));
    ++requests;
    if (!failure.empty()) return Failure{failure};
    return reply;
  }
  std::vector<std::uint8_t> reply = answer();
  std::string failure;
  std::atomic<int> requests = 0;
};

Result<DcmiPower> read_of(std::vector<std::uint8_t> reply) {
  FakeController c;
  c.reply = std::move(reply);
  return read_dcmi_power(c);
}

TEST(Dcmi, ReadsTheAnswer) {
  const auto power = read_of(answer());
  ASSERT_TRUE(power.ok()) << power.reason();
  EXPECT_EQ(power.value().watts, 305.0);
  EXPECT_EQ(power.value().averaged_s, 1.0);
  EXPECT_EQ(read_of(answer(0xFFFF)).value().watts, 65535.0);
}

TEST(Dcmi, OtherAnswersAreReasons) {
  EXPECT_EQ(read_of(answer(305, 0)).reason(), "the controller does not measure power now");
  EXPECT_EQ(read_of(answer(0)).reason(), "the controller reads 0 W");
  EXPECT_EQ(read_of({}).reason(), "the controller's answer of 0 bytes is no power reading of DCMI");
  auto other = answer();
  other[0] = 0xDD;
  EXPECT_FALSE(read_of(other));
  for (std::size_t length = 0; length < 18; ++length) {
    auto cut = answer();
    cut.resize(length);
    EXPECT_FALSE(read_of(cut)) << length;
  }
}

// A power that a test sets, polled by hand. It was 100 W at 0 s.
struct Polled {
  double time = 0.0, takes = 0.0;
  Result<double> watts = 100.0;
  PolledPower power{[this]() {
                      time += takes;
                      return watts;
                    },
                    [this] { return time; }, 100.0, 10.0};
  double joules() { return power.read().value().total.value; }
};

TEST(PolledPower, EachPowerCountsUntilTheNext) {
  Polled p;
  p.time = 2.0;
  EXPECT_DOUBLE_EQ(p.joules(), 200.0);
  p.watts = 300.0;
  p.power.poll();
  EXPECT_DOUBLE_EQ(p.joules(), 200.0);
  p.time = 3.0;
  EXPECT_DOUBLE_EQ(p.joules(), 500.0);
  p.watts = 20.0;
  p.takes = 2.0;
  p.power.poll();  // from 3 s to 5 s
  EXPECT_DOUBLE_EQ(p.joules(), 1100.0) << "until the answer";
  p.time = 6.0;
  EXPECT_DOUBLE_EQ(p.joules(), 1120.0);
  EXPECT_EQ(p.power.read().value().gaps, 0);
}

TEST(PolledPower, ABusyControllerIsBelievedForAWhile) {
  Polled p;
  p.watts = Failure{"busy"};
  p.time = 4.0;
  p.power.poll();
  EXPECT_DOUBLE_EQ(p.joules(), 400.0);
  p.time = 10.5;
  p.power.poll();
  EXPECT_EQ(p.power.read().reason(), "the controller has not answered for 10 s: busy");
  p.watts = 50.0;
  p.time = 20.0;
  p.power.poll();
  EXPECT_DOUBLE_EQ(p.joules(), 1000.0) << "10 s of 100 W; nobody knows the power of the other 10 s";
  EXPECT_EQ(p.power.read().value().gaps, 1);
  p.time = 22.0;
  EXPECT_DOUBLE_EQ(p.joules(), 1100.0);
  EXPECT_EQ(p.power.read().value().gaps, 1);
}

TEST(PolledPower, SilenceIsAReason) {
  Polled p;
  p.time = 21.0;
  EXPECT_EQ(p.power.read().reason(), "the controller has not answered for 21 s");
  p.power.poll();
  EXPECT_DOUBLE_EQ(p.joules(), 1000.0);
  p.time = 20.0;
  EXPECT_DOUBLE_EQ(p.joules(), 1000.0) << "a clock that goes back";
}

TEST(PolledPower, AThreadAsksAndNobodyWaits) {
  std::atomic<int> asked = 0;
  std::atomic<bool> stuck = false;
  {
    PolledPower power(
        [&]() -> Result<double> {
          ++asked;
          while (stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          return 100.0;
        },
        [] { return now().value; }, 100.0, 10.0);
    power.start(0.001);
    while (asked < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stuck = true;
    const int before = asked;
    while (asked == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(power.read()) << "the last power counts while a request has no answer";
    stuck = false;
  }
  const int end = asked;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(asked, end) << "the thread has ended";
}

TEST(Dcmi, ANodeIsMeasuredByItsController) {
  FakeMachine f;
  const auto controller = std::make_shared<FakeController>();
  constexpr Seconds kNever(1e6);  // the test's clock is the test's alone
  const Meters m = open_dcmi(f.machine, std::shared_ptr<IpmiController>(controller), kNever);
  ASSERT_EQ(m.meters.size(), 1u);
  const MeterInfo& info = m.meters[0]->info();
  EXPECT_EQ(info.scope, "node");
  EXPECT_EQ(info.source, Source::kPower);
  EXPECT_EQ(coverage_of(m, true).partial(), "");
  f.time += 2.0;
  EXPECT_NEAR(m.meters[0]->read().value().total.value, 610.0, 1e-9);
  EXPECT_EQ(controller->requests, 1);
}

TEST(Dcmi, IsAskedAgainAndAgain) {
  const auto controller = std::make_shared<FakeController>();
  const Meters m = open_dcmi(Machine(), std::shared_ptr<IpmiController>(controller), Seconds(0.001));
  while (controller->requests < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GT(m.meters.at(0)->read().value().total.value, 0.0);
}

// Its power is too slow for steps, and as a node's it would count in place of exact counters.
TEST(Dcmi, IsReadOnlyWhereItIsNamed) {
  FakeMachine f;
  OpenOptions o;
  o.machine = f.machine;
  o.nvml.library = "libno-such-library.so.1";
  int asked = 0;
  o.ipmi = [&](const Machine&) {
    ++asked;
    return Result<std::shared_ptr<IpmiController>>(std::make_shared<FakeController>());
  };
  f.tick = [&] { f.zone("intel-rapl:0", "package-0", static_cast<std::uint64_t>(f.time * 1e6)); };
  f.tick();
  EXPECT_EQ(open_meters({"auto"}, o).meters.at(0)->info().scope, "cpu-package0");
  EXPECT_EQ(asked, 0);
  const Meters both = open_meters({"dcmi", "auto"}, o);
  EXPECT_EQ(coverage_of(both, false).summed, (std::set<std::string>{"node"})) << "what is named, counts";
}

TEST(Dcmi, WithoutAControllerTheReasonIsGiven) {
  FakeMachine f;
  OpenOptions o;
  o.machine = f.machine;
  o.nvml.library = "libno-such-library.so.1";
  const auto absent = open_dcmi(f.machine, kernel_ipmi(f.machine));
  EXPECT_EQ(absent.unavailable.at(0).meter, "dcmi");
  EXPECT_EQ(absent.unavailable[0].reason, (f.root() / "dev/ipmi0: No such file or directory").string());
  // A device that is no IPMI device refuses the first request.
  f.write("dev/ipmi0", "");
  const auto file = open_dcmi(f.machine, kernel_ipmi(f.machine));
  EXPECT_NE(file.unavailable.at(0).reason.find("sending a request: Inappropriate ioctl"), std::string::npos)
      << file.unavailable[0].reason;
  const auto busy = std::make_shared<FakeController>();
  busy->failure = "/dev/ipmi0: the controller refused the request with code 0xc1";
  o.ipmi = [&](const Machine&) { return Result<std::shared_ptr<IpmiController>>(busy); };
  EXPECT_THROW((void)open_meters({"dcmi"}, o), UsageError);
}

}  // namespace
}  // namespace molen::energy
