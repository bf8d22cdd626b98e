#include "energy/hwmon.h"

#include <gtest/gtest.h>

#include "energy/accountant.h"
#include "energy/coverage.h"
#include "energy/scope.h"
#include "energy/test_machine.h"

namespace molen::energy {
namespace {

void power_meter(const FakeMachine& f, int device, const std::string& description, std::int64_t microwatts,
                 const std::string& below = "") {
  const std::string folder = fmt::format("sys/class/hwmon/hwmon{}", device);
  f.write(folder + "/name", "power_meter\n");
  f.write(folder + below + "/power1_average", std::to_string(microwatts) + "\n");
  if (!description.empty()) f.write(folder + below + "/power1_oem_info", description + "\n");
}

TEST(Hwmon, PowerIsIntegratedOverMeasuredTimes) {
  FakeMachine f;
  power_meter(f, 3, "Grace Power Socket 0", 100'000'000);
  Meters m = open_hwmon(f.machine);
  ASSERT_EQ(m.meters.size(), 1u);
  EXPECT_EQ(m.meters[0]->info().scope, "grace0");
  EXPECT_EQ(m.meters[0]->info().source, Source::kPower);
  EXPECT_GT(m.meters[0]->info().read_every.value, 0.0) << "else nothing reads it between steps";
  f.time += 0.5;
  power_meter(f, 3, "Grace Power Socket 0", 300'000'000);
  EXPECT_DOUBLE_EQ(m.meters[0]->read().value().total.value, 0.5 * (100 + 300) / 2);
  f.time += 0.25;
  EXPECT_DOUBLE_EQ(m.meters[0]->read().value().total.value, 100 + 0.25 * 300);
  EXPECT_EQ(m.meters[0]->read().value().gaps, 0);
  f.time += 2.5;
  EXPECT_EQ(m.meters[0]->read().value().gaps, 1) << "power between is unknown";
  f.time -= 1;
  EXPECT_EQ(m.meters[0]->read().value().gaps, 2) << "the clock went back";
  EXPECT_DOUBLE_EQ(m.meters[0]->read().value().total.value, 175.0);
}

TEST(Hwmon, EachDescriptionIsAScope) {
  FakeMachine f;
  power_meter(f, 0, "Module Power Socket 0", 1);
  power_meter(f, 1, "Grace Power Socket 0", 1);
  power_meter(f, 2, "CPU Power Socket 0", 1);
  power_meter(f, 3, "SysIO Power Socket 0", 1, "/device");
  f.write("sys/class/hwmon/hwmon0/power1_average_interval", "50\n");
  f.write("sys/class/hwmon/hwmon5/name", "nvme\n");
  Meters m = open_hwmon(f.machine);
  std::vector<std::string> scopes;
  for (const auto& meter : m.meters) scopes.push_back(meter->info().scope);
  EXPECT_EQ(scopes, (std::vector<std::string>{"module0", "grace0", "cpu-package0", "sysio0"}));
  EXPECT_TRUE(m.meters[0]->info().detail.ends_with("hwmon0/power1_average, averages of 50 ms"))
      << m.meters[0]->info().detail;
  EXPECT_TRUE(m.unavailable.empty());
  choose_counted(m);
  EXPECT_EQ(coverage_of(m, false).summed, (std::set<std::string>{"module0"}));
  EXPECT_EQ(coverage_of(m, false).partial(), "");
  EXPECT_EQ(coverage_of(m, true).partial(), "cpu+dram only") << "whether the GPU is in the module is not known";
}

TEST(Hwmon, OnSeveralSocketsTheProcessorsCount) {
  FakeMachine f;
  power_meter(f, 0, "Module Power Socket 0", 1);
  power_meter(f, 1, "Grace Power Socket 0", 1);
  power_meter(f, 2, "Grace Power Socket 1", 1);
  Meters m = open_hwmon(f.machine);
  choose_counted(m);
  EXPECT_EQ(coverage_of(m, false).summed, (std::set<std::string>{"grace0", "grace1"}));
  ASSERT_EQ(m.unavailable.size(), 1u);
  EXPECT_EQ(m.unavailable[0].scope, "module0");
}

TEST(Hwmon, FirmwareWithoutAReadingIsNoPower) {
  FakeMachine f;
  power_meter(f, 0, "Grace Power Socket 0", 4294967295000);
  const Meters m = open_hwmon(f.machine);
  EXPECT_TRUE(m.meters.empty());
  EXPECT_NE(m.unavailable.at(0).reason.find("4.295e+06 W is no power of a module"), std::string::npos)
      << m.unavailable[0].reason;
}

TEST(Hwmon, AMeterThatDoesNotSayWhatItMeasuresIsNotUsed) {
  FakeMachine f;
  power_meter(f, 0, "", 1'000'000);
  power_meter(f, 1, "Chassis \x1b[31mPower", 1'000'000);
  power_meter(f, 2, "CPU Power Socket 12", 1'000'000);
  const Meters m = open_hwmon(f.machine);
  EXPECT_TRUE(m.meters.empty());
  ASSERT_EQ(m.unavailable.size(), 3u);
  EXPECT_EQ(m.unavailable[0].scope, "hwmon0");
  EXPECT_NE(m.unavailable[0].reason.find("does not say what it measures"), std::string::npos);
  EXPECT_EQ(m.unavailable[1].reason.find('\x1b'), std::string::npos) << "no control character reaches a terminal";
  EXPECT_NE(m.unavailable[2].reason.find("names no part of a Grace module"), std::string::npos);
}

TEST(Hwmon, AReadingThatFailsIsAReason) {
  FakeMachine f;
  power_meter(f, 0, "CPU Power Socket 0", 5);
  Meters m = open_hwmon(f.machine);
  ASSERT_EQ(m.meters.size(), 1u);
  f.write("sys/class/hwmon/hwmon0/power1_average", "-1\n");
  EXPECT_FALSE(m.meters[0]->read());
  FakeMachine none;
  EXPECT_EQ(open_hwmon(none.machine).unavailable.size(), 1u);
}

}  // namespace
}  // namespace molen::energy
