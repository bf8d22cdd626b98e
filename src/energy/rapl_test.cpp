#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cerrno>
#include <map>
#include <tuple>

#include "energy/counter.h"
#include "energy/rapl_perf.h"
#include "energy/rapl_powercap.h"
#include "energy/test_machine.h"

namespace molen::energy {
namespace {

const Unavailable* find(const Meters& m, const std::string& scope) {
  for (const auto& u : m.unavailable)
    if (u.scope == scope) return &u;
  return nullptr;
}

TEST(Powercap, ReadsPackagesAndDramOnce) {
  FakeMachine f;
  f.zone("intel-rapl:0", "package-0", 1000000);
  f.zone("intel-rapl:0:0", "core", 5);
  f.zone("intel-rapl:0:1", "dram", 2000000);
  f.zone("intel-rapl:1", "package-1-die-1", 3000000);
  f.zone("intel-rapl:1:0", "dram", 0);
  f.zone("intel-rapl:2", "psys", 7);
  f.zone("intel-rapl-mmio:0", "package-0", 999);  // the same package again
  Meters m = open_powercap(f.machine);
  std::vector<std::string> scopes;
  for (const auto& meter : m.meters) scopes.push_back(meter->info().scope);
  EXPECT_EQ(scopes, (std::vector<std::string>{"cpu-package0", "dram0", "cpu-package1-die1", "dram1-die1", "psys"}));
  ASSERT_NE(find(m, "cpu-package0"), nullptr);
  EXPECT_NE(find(m, "cpu-package0")->reason.find("intel-rapl-mmio:0"), std::string::npos);
  f.zone("intel-rapl:0", "package-0", 3500000);
  f.time += 1;
  EXPECT_DOUBLE_EQ(m.meters[0]->read().value().total.value, 2.5);
  EXPECT_LE(m.meters[0]->info().read_every.value, 33.0) << "half the time in which 65.5 kJ can wrap";
}

// DRAM whose package has no name gets the number of its zone.
TEST(Powercap, MemoryWithoutAPackage) {
  FakeMachine f;
  f.zone("intel-rapl:3:0", "dram", 1);
  Meters m = open_powercap(f.machine);
  ASSERT_EQ(m.meters.size(), 1u);
  EXPECT_EQ(m.meters[0]->info().scope, "dram3");
}

TEST(Powercap, WrapsOnceButAdmitsALongSilence) {
  FakeMachine f;
  f.zone("intel-rapl:0", "package-0", 65532000000);
  Meters m = open_powercap(f.machine);
  ASSERT_EQ(m.meters.size(), 1u);
  f.time += 10;
  f.zone("intel-rapl:0", "package-0", 1000000);
  const auto wrapped = m.meters[0]->read();
  EXPECT_NEAR(wrapped.value().total.value, 0.610987 + 1.0, 1e-9);
  EXPECT_EQ(wrapped.value().gaps, 0);
  f.time += 66;  // 65.5 kJ at 1 kW
  f.zone("intel-rapl:0", "package-0", 2000000);
  const auto silent = m.meters[0]->read();
  EXPECT_NE(silent.reason().find("wrapped more than once"), std::string::npos);
  f.time += 1;
  EXPECT_EQ(m.meters[0]->read().value().gaps, 1) << "what is read later shows that energy was lost";
}

// Processors have counters of two ranges. At 350 W they wrap every three and every twelve minutes.
TEST(Powercap, WrapsAtBothRanges) {
  for (const std::uint64_t range : {65532610987ULL, 262143328850ULL}) {
    FakeMachine f;
    std::uint64_t count = range / 2;
    f.zone("intel-rapl:0", "package-0", count, range);
    Meters m = open_powercap(f.machine);
    ASSERT_EQ(m.meters.size(), 1u);
    for (int second = 10; second <= 3000; second += 10) {
      f.time += 10;
      count = (count + 3500000000ULL) % range;
      f.zone("intel-rapl:0", "package-0", count, range);
      const auto reading = m.meters[0]->read();
      ASSERT_TRUE(reading.ok()) << reading.reason();
      ASSERT_NEAR(reading.value().total.value, 350.0 * second, 1e-6 * second);
    }
  }
}

// A reset is no wrap: the missing joules are a gap, and not the rest of the range.
TEST(Powercap, ACounterThatBeginsAgainIsAGap) {
  for (const std::uint64_t range : {65532610987ULL, 262143328850ULL}) {
    FakeMachine f;
    f.zone("intel-rapl:0", "package-0", 40000000000, range);
    Meters m = open_powercap(f.machine);
    ASSERT_EQ(m.meters.size(), 1u);
    f.time += 1;
    f.zone("intel-rapl:0", "package-0", 40300000000, range);
    EXPECT_DOUBLE_EQ(m.meters[0]->read().value().total.value, 300.0);
    f.time += 1;
    f.zone("intel-rapl:0", "package-0", 100000000, range);
    const auto reset = m.meters[0]->read();
    ASSERT_FALSE(reset.ok());
    EXPECT_NE(reset.reason().find("from 40300000000 to 100000000 in 1.000 s"), std::string::npos) << reset.reason();
    EXPECT_NE(reset.reason().find("it began again"), std::string::npos) << reset.reason();
    f.time += 1;
    f.zone("intel-rapl:0", "package-0", 350000000, range);
    const auto after = m.meters[0]->read();
    EXPECT_DOUBLE_EQ(after.value().total.value, 550.0);
    EXPECT_EQ(after.value().gaps, 1);
    f.time += 1;
    f.zone("intel-rapl:0", "package-0", 5000000000, range);
    EXPECT_FALSE(m.meters[0]->read().ok()) << "4,650 W of one package";
  }
}

// The counter of a whole node may count what no package could.
TEST(Powercap, ANodeDrawsMoreThanAPackage) {
  FakeMachine f;
  f.zone("intel-rapl:1", "psys", 65000000000);
  Meters m = open_powercap(f.machine);
  ASSERT_EQ(m.meters.size(), 1u);
  EXPECT_NEAR(m.meters[0]->info().read_every.value, 65532.610987 / 15000 / 2, 1e-9);
  f.time += 1;
  f.zone("intel-rapl:1", "psys", 9467389013);
  const auto reading = m.meters[0]->read();
  ASSERT_TRUE(reading.ok()) << reading.reason();
  EXPECT_NEAR(reading.value().total.value, 10000.0, 1e-3);
}

TEST(Powercap, SaysWhyThereIsNothing) {
  FakeMachine bare;
  EXPECT_NE(find(open_powercap(bare.machine), "cpu-package")->reason.find("intel_rapl_msr"), std::string::npos);
  bare.write("proc/cpuinfo", "processor : 0\nflags\t\t: fpu sse hypervisor\n");
  EXPECT_NE(find(open_powercap(bare.machine), "cpu-package")->reason.find("virtual machine"), std::string::npos);

  FakeMachine odd;
  for (const char* text : {"", "abc", "-5", "1e6", "99999999999999999999999", "65532610988"}) {
    odd.zone("intel-rapl:0", "package-0", 1);
    odd.write("sys/class/powercap/intel-rapl:0/energy_uj", text);
    const Meters m = open_powercap(odd.machine);
    EXPECT_TRUE(m.meters.empty()) << text;
    EXPECT_NE(find(m, "cpu-package0"), nullptr) << text;
  }
}

TEST(Powercap, NoPermissionNamesTheWayOut) {
  FakeMachine f;
  f.zone("intel-rapl:0", "package-0", 1);
  fs::permissions(f.machine.sys / "class/powercap/intel-rapl:0/energy_uj", fs::perms::none);
  const bool root = ::geteuid() == 0;
  const int dropped = root ? ::seteuid(65534) : 0;  // root reads everything
  const Meters m = open_powercap(f.machine);
  const int back = root ? ::seteuid(0) : 0;
  ASSERT_EQ(back, 0);
  if (dropped != 0) GTEST_SKIP() << "root that cannot become another user reads everything";
  ASSERT_NE(find(m, "cpu-package0"), nullptr);
  EXPECT_NE(find(m, "cpu-package0")->reason.find("perf_event_paranoid"), std::string::npos);
}

// Wherever a counter wraps, its total is the energy that was spent.
RC_GTEST_PROP(Unwrapper, TotalIsWhatWasSpent, ()) {
  const std::uint64_t range = *rc::gen::inRange<std::uint64_t>(1000, 1 << 20);
  const auto spent = *rc::gen::container<std::vector<std::uint64_t>>(rc::gen::inRange<std::uint64_t>(0, range));
  Unwrapper u(range, 0);
  std::uint64_t value = *rc::gen::inRange<std::uint64_t>(0, range), total = 0;
  RC_ASSERT(u.add(value, 0, 1.0).ok());
  for (const std::uint64_t s : spent) {
    value = value + s >= range ? value + s - range : value + s;
    total += s;
    RC_ASSERT(u.add(value, 0, 1.0).value().total.value == static_cast<double>(total));
  }
}

TEST(Unwrapper, WithoutARangeGoingBackIsAGap) {
  Unwrapper u(0, 0);
  ASSERT_TRUE(u.add(10, 0, 1).ok());
  ASSERT_FALSE(u.add(5, 1, 1).ok());
  EXPECT_EQ(u.add(7, 2, 1).value().gaps, 1);
  EXPECT_EQ(u.add(7, 2, 1).value().total.value, 2.0);
}

class FakePerf : public PerfEvents {
 public:
  int open(std::uint32_t type, std::uint64_t config, int cpu) override {
    if (error != 0) return -error;
    EXPECT_EQ(type, 23u);
    opened[next] = {config, cpu};
    return next++;
  }
  int read(int descriptor, std::uint64_t& count) override {
    count = counts[opened.at(descriptor)];
    return read_error;
  }
  void close(int descriptor) override { opened.erase(descriptor); }
  int error = 0, read_error = 0, next = 3;
  std::map<int, std::pair<std::uint64_t, int>> opened;
  std::map<std::pair<std::uint64_t, int>, std::uint64_t> counts;
};

void perf_tree(const FakeMachine& f, const std::string& cpumask) {
  const std::string d = "sys/bus/event_source/devices/power/";
  f.write(d + "type", "23\n");
  f.write(d + "cpumask", cpumask + "\n");
  for (const auto& [name, code] : {std::pair{"energy-pkg", "0x02"}, {"energy-ram", "0x03"}, {"energy-psys", "0x05"}}) {
    f.write(d + "events/" + name, std::string("event=") + code + "\n");
    f.write(d + "events/" + name + ".scale", "2.3283064365386962890625e-10\n");
    f.write(d + "events/" + name + ".unit", "Joules\n");
  }
  f.write("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n");
  f.write("sys/devices/system/cpu/cpu18/topology/physical_package_id", "1\n");
}

TEST(Perf, ScalesCountsOfEachPackage) {
  FakeMachine f;
  perf_tree(f, "0,18");
  auto perf = std::make_shared<FakePerf>();
  {
    Meters m = open_perf(f.machine, perf);
    std::vector<std::string> scopes;
    for (const auto& meter : m.meters) scopes.push_back(meter->info().scope);
    EXPECT_EQ(scopes, (std::vector<std::string>{"cpu-package0", "cpu-package1", "dram0", "dram1", "psys"}));
    perf->counts[{2, 18}] = std::uint64_t{3} << 32;  // a count is 2^-32 J
    f.time += 86400;                                 // 64 bits do not wrap in a day
    EXPECT_DOUBLE_EQ(m.meters[1]->read().value().total.value, 3.0);
    EXPECT_EQ(m.meters[0]->read().value().total.value, 0.0);
    perf->read_error = EIO;
    EXPECT_FALSE(m.meters[0]->read().ok());
  }
  EXPECT_TRUE(perf->opened.empty()) << "descriptors are closed";
}

TEST(Perf, SeveralDiesOfAPackageHaveTheirOwnScopes) {
  FakeMachine f;
  perf_tree(f, "0,18");
  f.write("sys/devices/system/cpu/cpu18/topology/physical_package_id", "0\n");
  f.write("sys/devices/system/cpu/cpu0/topology/die_id", "0\n");
  f.write("sys/devices/system/cpu/cpu18/topology/die_id", "1\n");
  const Meters m = open_perf(f.machine, std::make_shared<FakePerf>());
  ASSERT_GE(m.meters.size(), 2u);
  EXPECT_EQ(m.meters[0]->info().scope, "cpu-package0-die0");
  EXPECT_EQ(m.meters[1]->info().scope, "cpu-package0-die1");
}

TEST(Perf, ReasonsArePrecise) {
  FakeMachine f;
  EXPECT_NE(find(open_perf(f.machine, std::make_shared<FakePerf>()), "cpu-package")->reason.find("no "),
            std::string::npos);
  perf_tree(f, "0");
  f.write("proc/sys/kernel/perf_event_paranoid", "3\n");
  auto perf = std::make_shared<FakePerf>();
  perf->error = EACCES;
  EXPECT_NE(find(open_perf(f.machine, perf), "cpu-package0")->reason.find("perf_event_paranoid is 3"),
            std::string::npos);
  perf->error = ENODEV;
  EXPECT_NE(find(open_perf(f.machine, perf), "cpu-package0")->reason.find("No such device"), std::string::npos);
  perf->error = 0;
  const std::string d = "sys/bus/event_source/devices/power/";
  for (const auto& [file, text] : {std::pair{"events/energy-pkg.scale", "zero"},
                                   {"events/energy-pkg.scale", "-1"},
                                   {"events/energy-pkg.scale", "nan"},
                                   {"events/energy-pkg", "event=2"},
                                   {"events/energy-pkg.unit", "Watts"}}) {
    perf_tree(f, "0");
    f.write(d + file, text);
    const Meters found = open_perf(f.machine, perf);
    const Unavailable* unavailable = find(found, "cpu-package");
    ASSERT_NE(unavailable, nullptr) << file << " " << text;
    // The reason names the file first, then its content.
    const std::string& reason = unavailable->reason;
    ASSERT_NE(reason.find(file), std::string::npos) << reason;
    EXPECT_LT(reason.find(file), reason.rfind(text)) << reason;
    EXPECT_NE(reason.rfind(text), std::string::npos) << reason;
  }
  const std::string events = (f.root() / d / "events/energy-pkg").string(), much(50, '7');
  for (const auto& [file, text, why] :
       {std::tuple<std::string, std::string, std::string>{"", "event=2" + much,
                                                          "event=2" + much.substr(0, 33) + "' is not event=0x.."},
        {"", "event=0x2;umask" + much, "event=0x2;umask" + much.substr(0, 25) + "' is not event=0x.."},
        {"", "event=0x", "event=0x' is not event=0x.."},
        {".scale", "1e-10x" + much, "1e-10x" + much.substr(0, 34) + "' is no scale"},
        {".scale", "0", "0' is no scale"},
        {".scale", "inf", "inf' is no scale"}}) {
    perf_tree(f, "0");
    f.write(d + "events/energy-pkg" + file, text);
    const Meters found = open_perf(f.machine, perf);
    ASSERT_NE(find(found, "cpu-package"), nullptr) << text;
    EXPECT_EQ(find(found, "cpu-package")->reason, events + file + ": '" + why);
  }
  perf_tree(f, "0");
  f.write(d + "events/energy-pkg.unit", "Watts" + much);
  EXPECT_EQ(find(open_perf(f.machine, perf), "cpu-package")->reason,
            events + ".unit: unit 'Watts" + much.substr(0, 35) + "', not Joules");
  perf_tree(f, "0");
  perf->read_error = EIO;
  EXPECT_EQ(find(open_perf(f.machine, perf), "cpu-package0")->reason, "power/energy-pkg/ on cpu 0: Input/output error");
  perf->read_error = 0;
  fs::remove(f.root() / d / "events/energy-pkg");
  const std::string device = (f.root() / "sys/bus/event_source/devices/power").string();
  EXPECT_EQ(find(open_perf(f.machine, perf), "cpu-package")->reason, "no event energy-pkg in " + device);
  f.write("proc/cpuinfo", "processor : 0\nflags\t\t: fpu sse hypervisor\n");
  const std::string vm = "; this is a virtual machine, whose host keeps the counters";
  EXPECT_EQ(find(open_perf(f.machine, perf), "cpu-package")->reason, "no event energy-pkg in " + device + vm);
  perf_tree(f, "0");
  perf->error = ENODEV;
  EXPECT_EQ(find(open_perf(f.machine, perf), "cpu-package0")->reason, "perf_event_open: No such device" + vm);
  perf->error = 0;
  fs::remove_all(device);
  EXPECT_EQ(find(open_perf(f.machine, perf), "cpu-package")->reason, "no " + device + vm);
  fs::remove(f.root() / "proc/cpuinfo");
  EXPECT_EQ(find(open_perf(f.machine, perf), "cpu-package")->reason,
            "no " + device + "; this CPU or kernel has no RAPL events");
  perf_tree(f, "0-");
  EXPECT_TRUE(open_perf(f.machine, perf).meters.empty());
}

TEST(CpuList, IsStrict) {
  EXPECT_EQ(parse_cpu_list("0,18-20").value(), (std::vector<int>{0, 18, 19, 20}));
  EXPECT_EQ(parse_cpu_list("0-65535").value().size(), 65536u);
  EXPECT_EQ(parse_cpu_list("100000-100001").value(), (std::vector<int>{100000, 100001}));
  for (const char* bad : {"", ",", "1,", "a", "3-1", "-1", "0-99999999", "0-65536", "1;2", "1-"})
    EXPECT_FALSE(parse_cpu_list(bad).ok()) << bad;
}

// A counter of one microjoule wraps at once; a counter without a range never does and is read only on request.
TEST(Powercap, IsReadTwiceWhileItCanWrap) {
  for (const auto& [range, seconds] :
       {std::pair{"65532610987", 32.7663054935}, {"2000000000", 1.0}, {"1", 5e-10}, {"0", 0.0}}) {
    FakeMachine f;
    f.zone("intel-rapl:0", "package-0", 1);
    f.write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", std::string(range) + "\n");
    const Meters m = open_powercap(f.machine);
    ASSERT_EQ(m.meters.size(), 1u);
    EXPECT_DOUBLE_EQ(m.meters[0]->info().read_every.value, seconds) << range;
  }
}

}  // namespace
}  // namespace molen::energy
