#include "energy/cray.h"

#include <gtest/gtest.h>

#include "energy/accountant.h"
#include "energy/commands.h"
#include "energy/coverage.h"
#include "energy/open.h"
#include "energy/test_machine.h"

namespace molen::energy {
namespace {

// A node whose controller scans its counters whenever `scan` is called. The sizes of its parts are those of a node of
// LUMI-G: a package, memory, and four modules of two GPUs.
class CrayNode : public FakeMachine {
 public:
  CrayNode() {
    write("sys/cray/pm_counters/startup", "1700000000\n");
    scan();
    tick = [this] { scan(); };
  }

  void counter(const std::string& file, std::uint64_t joules) const {
    write("sys/cray/pm_counters/" + file, fmt::format("{} J {} us\n", joules, static_cast<std::int64_t>(time * 1e6)));
  }
  void scan(std::uint64_t more = 100) {
    joules_ += more;
    write("sys/cray/pm_counters/freshness", fmt::format("{}\n", ++freshness_));
    counter("energy", 12 * joules_);
    counter("cpu_energy", 2 * joules_);
    counter("memory_energy", joules_);
    for (int i = 0; i < 4; ++i) counter(fmt::format("accel{}_energy", i), 2 * joules_);
  }
  OpenOptions options() const {
    OpenOptions o;
    o.machine = machine;
    o.nvml.library = "libno-such-library.so.1";
    return o;
  }

 private:
  std::uint64_t joules_ = 1000, freshness_ = 7;
};

std::optional<double> joules_of(const StepEnergy& step, const std::string& scope) {
  return step.scopes.at(scope).joules;
}

TEST(Cray, ANodeIsSummedInPlaceOfItsParts) {
  CrayNode node;
  node.write("sys/cray/pm_counters/power", "512 W 1 us\n");
  node.write("sys/cray/pm_counters/cpu_temp", "40 C 1 us\n");
  Accountant a(open_meters({"auto"}, node.options()));
  node.time += 1;
  (void)a.end_step();
  node.scan(50);
  node.time += 1;
  const StepEnergy step = a.end_step();
  EXPECT_EQ(step.scopes.size(), 8u) << "power and temperature are no energy";
  EXPECT_EQ(joules_of(step, "node"), 600.0);
  EXPECT_EQ(joules_of(step, "cpu"), 100.0);
  EXPECT_EQ(joules_of(step, "dram"), 50.0);
  EXPECT_EQ(joules_of(step, "accel3"), 100.0);
  EXPECT_EQ(joules_of(step, "rest"), 50.0);
  EXPECT_EQ(step.total_j, 600.0);
  const Coverage coverage = coverage_of(a.meters(), true);
  EXPECT_EQ(coverage.partial(), "");
  EXPECT_EQ(coverage.summed, (std::set<std::string>{"node"}));
}

TEST(Cray, MetersOfOneMomentHaveOneScan) {
  CrayNode node;
  Meters m = open_cray(node.machine);
  ASSERT_EQ(m.meters.size(), 8u);
  node.time += 1;
  node.scan(50);
  const double first = m.meters[0]->read().value().total.value;
  EXPECT_EQ(m.meters[0]->info().scope, "accel0");
  EXPECT_EQ(first, 100.0);
  node.scan(50);  // between the reading of the first and that of the last
  EXPECT_EQ(m.meters[6]->read().value().total.value, 600.0) << m.meters[6]->info().scope;
  node.time += 0.06;
  EXPECT_EQ(m.meters[6]->read().value().total.value, 1200.0);
}

TEST(Cray, CountersThatChangeWhileTheyAreReadAreReadAgain) {
  CrayNode node;
  int scans = 0;  // that fall between the files of one reading; the meter asks for the time once in each
  node.machine.clock = [&] {
    if (scans > 0) --scans, node.scan(10);
    return node.time;
  };
  Meters m = open_cray(node.machine);
  node.time += 1;
  scans = 3;  // the first before the first try
  EXPECT_EQ(m.meters[0]->read().value().total.value, 60.0);
  node.time += 1;
  scans = 100;
  const auto restless = m.meters[0]->read();
  ASSERT_FALSE(restless);
  EXPECT_NE(restless.reason().find("changed while it was read, 5 times"), std::string::npos);
  scans = 0;
  node.time += 0.1;
  EXPECT_TRUE(m.meters[0]->read());
}

TEST(Cray, CountersGoOnWhileTheyCannotBeRead) {
  CrayNode node;
  Meters m = open_cray(node.machine);
  node.time += 1;
  fs::remove(node.root() / "sys/cray/pm_counters/freshness");
  const auto gone = m.meters[0]->read();
  EXPECT_FALSE(gone);
  EXPECT_NE(gone.reason().find("freshness"), std::string::npos);
  node.time += 0.1;
  node.scan(10);

  EXPECT_EQ(m.meters[0]->read().value().total.value, 20.0);
}

TEST(Cray, AControllerThatStopsIsNoReadingOfAnyScope) {
  CrayNode node;
  Accountant a(open_cray(node.machine));
  node.time += 1.9;
  node.scan(10);
  EXPECT_EQ(joules_of(a.end_step(), "node"), 120.0);
  node.time += 1.9;
  EXPECT_NE(a.end_step().scopes.at("node").reason.find("did not change"), std::string::npos);
  for (int i = 0; i < 3; ++i) {
    node.time += 0.2;
    const StepEnergy step = a.end_step();
    for (const auto& [scope, e] : step.scopes)
      EXPECT_NE(e.reason.find(fmt::format("has not been updated for 2.{} s", 1 + 2 * i)), std::string::npos)
          << scope << e.reason;
    EXPECT_EQ(a.so_far().lost.count("node"), 1u) << "a total must not look complete";
  }
  node.time += 0.1;
  node.scan(10);
  (void)a.end_step();
  EXPECT_EQ(a.so_far().joules.at("node"), 240.0) << "the counters went on";
  EXPECT_TRUE(a.so_far().lost.empty());
}

TEST(Cray, OneFileThatIsNotMeasuredIsNoReading) {
  CrayNode node;
  Accountant a(open_cray(node.machine));
  const auto stale = [&] {
    node.time += 1;
    const auto before = read_small(node.root() / "sys/cray/pm_counters/energy").value();
    node.scan(10);
    node.write("sys/cray/pm_counters/energy", before + "\n");
    return a.end_step();
  };
  EXPECT_NE(stale().scopes.at("node").reason.find("did not change"), std::string::npos);
  (void)stale();
  const StepEnergy third = stale();
  EXPECT_NE(third.scopes.at("node").reason.find("node in"), std::string::npos) << third.scopes.at("node").reason;
  EXPECT_NE(third.scopes.at("node").reason.find("has not been measured for 3.0 s"), std::string::npos);
  EXPECT_EQ(joules_of(third, "cpu"), 20.0);
  EXPECT_EQ(a.so_far().lost.count("node"), 1u);
}

TEST(Cray, ARestartOfTheControllerIsAGap) {
  CrayNode node;
  Accountant a(open_cray(node.machine));
  node.time += 1;
  node.write("sys/cray/pm_counters/startup", "1700009999\n");
  node.scan(5000);  // more than before: only `startup` tells
  const StepEnergy lost = a.end_step();
  EXPECT_EQ(joules_of(lost, "node"), std::nullopt);
  EXPECT_NE(lost.scopes.at("node").reason.find("energy was lost"), std::string::npos);
  EXPECT_EQ(lost.total_j, std::nullopt);
  node.time += 1;
  node.scan(10);
  EXPECT_EQ(joules_of(a.end_step(), "node"), 120.0);
  EXPECT_EQ(a.so_far().lost.count("node"), 1u);
}

// A controller that starts is the likeliest to have a file that cannot be read.
TEST(Cray, ARestartIsSeenByACounterThatCouldNotBeRead) {
  CrayNode node;
  Accountant a(open_cray(node.machine));
  node.time += 1;
  node.write("sys/cray/pm_counters/startup", "1700009999\n");
  node.scan(10);
  node.write("sys/cray/pm_counters/energy", "");
  EXPECT_EQ(joules_of(a.end_step(), "node"), std::nullopt);
  node.time += 1;
  node.scan(90000);
  (void)a.end_step();
  EXPECT_EQ(a.so_far().joules.count("node"), 0u) << "the joules of another start of the counter";
  EXPECT_EQ(a.so_far().lost.count("node"), 1u);
}

TEST(Cray, ACounterThatGoesBackIsAGap) {
  CrayNode node;
  Accountant a(open_cray(node.machine));
  node.time += 1;
  node.scan(10);
  node.counter("energy", 3);
  const StepEnergy step = a.end_step();
  EXPECT_NE(step.scopes.at("node").reason.find("went back"), std::string::npos);
  EXPECT_EQ(joules_of(step, "cpu"), 20.0);
}

TEST(Cray, OddFilesAreReasons) {
  for (const char* text :
       {"", "J", "-5 J 1 us\n", "12 W 1 us\n", "12", "1e3 J 1 us\n", "99999999999999999999 J 1 us\n"}) {
    CrayNode node;
    node.write("sys/cray/pm_counters/energy", text);
    node.tick = {};
    const Meters m = open_cray(node.machine);
    EXPECT_EQ(m.meters.size(), 6u) << text;
    ASSERT_EQ(m.unavailable.size(), 2u) << text;
    EXPECT_EQ(m.unavailable[0].scope, "node");
    EXPECT_EQ(m.unavailable[1].scope, "rest");
    EXPECT_NE(m.unavailable[0].reason.find("pm_counters/energy"), std::string::npos) << m.unavailable[0].reason;
  }
}

TEST(Cray, AScanThatEndsAtTheStartCostsNoMeter) {
  CrayNode node;
  int scans = 7;  // the first look of five tries meets a scan in each
  node.machine.clock = [&] {
    if (scans > 0) --scans, node.scan(10);
    return node.time;
  };
  EXPECT_EQ(open_cray(node.machine).meters.size(), 8u);
}

TEST(Cray, AnotherMachineHasNone) {
  FakeMachine other;
  const Meters m = open_cray(other.machine);
  EXPECT_TRUE(m.meters.empty());
  ASSERT_EQ(m.unavailable.size(), 1u);
  EXPECT_NE(m.unavailable[0].reason.find("no Cray node"), std::string::npos);
}

// Each file has whole joules, so the rest of a node may seem to fall by one.
TEST(Cray, TheRestOfANodeNeverFalls) {
  CrayNode node;
  Meters m = open_cray(node.machine);
  Meter& rest = *m.meters.back();
  ASSERT_EQ(rest.info().scope, "rest");
  EXPECT_TRUE(rest.info().detail.ends_with("energy less accel0, accel1, accel2, accel3, cpu, dram"));
  const auto after = [&](std::uint64_t node_j, std::uint64_t memory_j) {
    node.time += 1;
    node.scan(0);
    node.counter("energy", 12 * 1100 + node_j);
    node.counter("memory_energy", 1100 + memory_j);
    return rest.read().value();
  };
  EXPECT_EQ(after(5, 2).total.value, 3.0);
  EXPECT_EQ(after(5, 3).total.value, 3.0);
  EXPECT_EQ(after(9, 3).total.value, 6.0);
  EXPECT_EQ(after(9, 3).ticks, 6);
  EXPECT_EQ(after(9, 3).gaps, 0);
  node.counter("cpu_energy", 1);
  node.time += 1;
  node.write("sys/cray/pm_counters/freshness", "4711\n");
  EXPECT_FALSE(rest.read()) << "a part went back";
}

TEST(Cray, PackagesAreCountedOnceInTheRest) {
  CrayNode node;
  node.counter("cpu0_energy", 7);
  const Meters m = open_cray(node.machine);
  EXPECT_EQ(m.meters.back()->info().detail.find("cpu-package0"), std::string::npos) << "cpu has it";
  fs::remove(node.root() / "sys/cray/pm_counters/cpu_energy");
  EXPECT_NE(open_cray(node.machine).meters.back()->info().detail.find("cpu-package0"), std::string::npos);
}

TEST(Cray, WithoutANodeItsPartsAreSummed) {
  CrayNode node;
  fs::remove(node.root() / "sys/cray/pm_counters/energy");
  node.tick = [&] {
    node.scan();
    fs::remove(node.root() / "sys/cray/pm_counters/energy");
  };
  Accountant a(open_meters({"cray"}, node.options()));
  EXPECT_EQ(coverage_of(a.meters(), true).summed,
            (std::set<std::string>{"accel0", "accel1", "accel2", "accel3", "cpu", "dram"}));
}

}  // namespace
}  // namespace molen::energy
