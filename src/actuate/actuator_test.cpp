#include "actuate/actuator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>
#include <set>

#include "actuate/open.h"
#include "actuate/sysfs.h"
#include "actuate/test_tree.h"
#include "base/test_filesystem.h"

namespace molen::actuate {
namespace {

bool contains_text(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Cpufreq, SetsAllPoliciesOfAPackageAndRestoresThem) {
  const FakeTree tree;
  tree.cpufreq();
  tree.number(tree.policy(1), 2600000);  // an administrator's limit on one processor
  const Actuators found = open_cpufreq(tree.machine);
  ASSERT_EQ(found.actuators.size(), 2u);
  Actuator& first = *found.actuators[0];
  EXPECT_EQ(first.info().id, "cpufreq:cpu-package0");
  EXPECT_EQ(first.info().scope, "cpu-package0");
  EXPECT_STREQ(unit_of(first.info().kind), "kHz");
  EXPECT_EQ(first.least(), 800000);
  EXPECT_EQ(first.most(), 3000000);
  ASSERT_TRUE(first.set(2800000).ok());
  EXPECT_EQ(tree.clocks(), (State{2800000, 2600000, 3000000, 3000000})) << "no part gets more than was found";
  EXPECT_EQ(first.present().value(), 2800000);
  ASSERT_TRUE(first.set(1200000).ok());
  EXPECT_EQ(tree.clocks(), (State{1200000, 1200000, 3000000, 3000000}));
  const Restoration back = first.restore();
  EXPECT_TRUE(back.complete());
  EXPECT_EQ(back.restored, 2);
  EXPECT_TRUE(back.notes.empty());
  EXPECT_EQ(tree.clocks(), (State{3000000, 2600000, 3000000, 3000000}));
}

TEST(Cpufreq, AValueOutOfRangeChangesNothing) {
  const FakeTree tree;
  tree.cpufreq();
  tree.number(tree.policy(0, "scaling_min_freq"), 1000000);
  tree.number(tree.policy(1, "scaling_min_freq"), 1000000);
  const Actuators found = open_cpufreq(tree.machine);
  Actuator& first = *found.actuators.at(0);
  EXPECT_EQ(first.set(900000).reason(),
            "cpufreq of cpu-package0: 0.9 GHz is outside what can be set, 1 GHz to 3 GHz (molen sets no more than it "
            "found)");
  EXPECT_FALSE(first.set(3100000).ok());
  EXPECT_FALSE(first.set(-1).ok());
  EXPECT_EQ(tree.clocks(), (State{3000000, 3000000, 3000000, 3000000}));
}

TEST(Cpufreq, OnlyListedClocksWhereThereIsAList) {
  const FakeTree tree;
  tree.cpufreq();
  for (int p = 0; p < 4; ++p) tree.write(tree.policy(p, "scaling_available_frequencies"), "3000000 2400000 1500000 \n");
  const Actuators found = open_cpufreq(tree.machine);
  Actuator& first = *found.actuators.at(0);
  EXPECT_EQ(first.info().values, (State{1500000, 2400000, 3000000}));
  EXPECT_EQ(first.ladder(8), (State{3000000, 2400000, 1500000}));
  EXPECT_EQ(first.set(2300000).reason(),
            "cpufreq of cpu-package0: 2.3 GHz is none of the 3 values of the device; the nearest is 2.4 GHz");
  EXPECT_TRUE(first.set(2400000).ok());
  tree.write(tree.policy(0, "scaling_available_frequencies"), "3000000 fast\n");
  EXPECT_TRUE(open_cpufreq(tree.machine).actuators.at(0)->info().values.empty());
}

TEST(Actuator, ALadderIsSpreadFromTheGreatestToTheLeast) {
  const FakeTree tree;
  tree.cpufreq();
  const Actuators found = open_cpufreq(tree.machine);
  EXPECT_EQ(found.actuators.at(0)->ladder(100).size(), 23u);
  EXPECT_EQ(found.actuators.at(0)->ladder(3), (State{3000000, 1900000, 800000}));
  EXPECT_EQ(found.actuators.at(0)->ladder(2), (State{3000000, 800000}));
}

// A device whose description has no step.
class Stepless : public Actuator {
 public:
  Stepless() : Actuator(described(), {5}) {}
  Result<State> read() const override { return State{5}; }

 protected:
  Result<Done> write(std::size_t, std::int64_t) override { return Done{}; }

 private:
  static ActuatorInfo described() {
    ActuatorInfo info;
    info.parts = {{"only", 2, 5}};
    info.step = 0;
    return info;
  }
};

TEST(Actuator, ALadderWithoutAStepHasEachValueOnce) {
  EXPECT_EQ(Stepless().ladder(8), (State{5, 4, 3, 2}));
}

// A machine with more than ten processors: the order is that of their numbers, not of their texts.
TEST(Cpufreq, PartsStandInTheOrderOfTheirNumbers) {
  const FakeTree tree;
  for (const int p : {10, 2, 1}) {
    const std::string folder = fmt::format("{}/cpufreq/policy{}", FakeTree::kCpu, p);
    for (const char* end : {"min", "max"})
      for (const char* kind : {"cpuinfo", "scaling"})
        tree.number(fmt::format("{}/{}_{}_freq", folder, kind, end), end[1] == 'i' ? 800000 : 3000000);
    tree.write(folder + "/affected_cpus", fmt::format("{}\n", p));
    tree.number(fmt::format("{}/cpu{}/topology/physical_package_id", FakeTree::kCpu, p), 0);
  }
  const Actuators found = open_cpufreq(tree.machine);
  ASSERT_EQ(found.actuators.size(), 1u) << list_text(found);
  std::vector<std::string> names;
  for (const Part& part : found.actuators[0]->info().parts) names.push_back(part.name);
  EXPECT_EQ(names, (std::vector<std::string>{"policy1", "policy2", "policy10"}));
}

TEST(Actuator, AFailureOnOnePartUndoesTheOthers) {
  const FakeTree tree;
  tree.cpufreq();
  const Actuators found = open_cpufreq(tree.machine);
  FaultyFileSystem faults(tree.root());
  const FileSystemOverride replaced(faults);
  faults.fail_at(faults.calls() + 2, EIO);  // the second policy
  const auto set = found.actuators[0]->set(2000000);
  ASSERT_FALSE(set.ok());
  EXPECT_TRUE(contains_text(set.reason(), "policy1/scaling_max_freq: Input/output error")) << set.reason();
  EXPECT_EQ(tree.clocks(), (State{3000000, 3000000, 3000000, 3000000}));
  EXPECT_TRUE(found.actuators[0]->restore().complete());
  // The first policy cannot be put back either.
  faults.fail_from(faults.calls() + 2, EIO);
  const auto worse = found.actuators[0]->set(2000000);
  EXPECT_TRUE(contains_text(worse.reason(), "policy0 could not be put back to 3 GHz")) << worse.reason();
  const Restoration failed = found.actuators[0]->restore();
  EXPECT_FALSE(failed.complete());
  EXPECT_TRUE(contains_text(failed.notes.at(0), "could not be put back")) << failed.notes.at(0);
  faults.fail_at(INT64_MAX, 0);
  EXPECT_EQ(found.actuators[0]->restore().restored, 1);
  EXPECT_EQ(tree.clocks(), (State{3000000, 3000000, 3000000, 3000000}));
}

TEST(Actuator, AnothersChangeIsLeftAloneAndSaid) {
  const FakeTree tree;
  tree.cpufreq();
  const Actuators found = open_cpufreq(tree.machine);
  Actuator& first = *found.actuators.at(0);
  ASSERT_TRUE(first.set(2000000).ok());
  tree.number(tree.policy(1), 1500000);
  const auto set = first.set(2500000);
  EXPECT_EQ(set.reason(),
            "cpufreq of cpu-package0, policy1: another program has set 1.5 GHz since; it is left so, and nothing is "
            "set");
  const Restoration back = first.restore();
  EXPECT_TRUE(back.complete());
  EXPECT_EQ(back.restored, 1);
  EXPECT_EQ(back.left_alone, 1);
  EXPECT_EQ(back.notes.at(0),
            "cpufreq of cpu-package0, policy1: another program has set 1.5 GHz since; it is left so (found: 3 GHz)");
  EXPECT_EQ(tree.clocks(), (State{3000000, 1500000, 3000000, 3000000}));
}

// Whatever is set, fails and is changed by others, a part that another program left alone ends as it was found.
RC_GTEST_PROP(Actuator, RestoresWhateverHappened, ()) {
  const FakeTree tree;
  tree.cpufreq();
  const Actuators found = open_cpufreq(tree.machine);
  std::set<int> changed;
  {
    FaultyFileSystem faults(tree.root());
    const FileSystemOverride replaced(faults);
    for (int left = *rc::gen::inRange(1, 10); left > 0; --left) {
      const int action = *rc::gen::inRange(0, 12);
      if (action < 8) {
        const std::int64_t clock = *rc::gen::inRange<std::int64_t>(700000, 3100000);
        if (*rc::gen::inRange(0, 3) == 0) faults.fail_at(faults.calls() + *rc::gen::inRange(0, 8), EIO);
        (void)found.actuators[0]->set(clock).ok();
        faults.fail_at(INT64_MAX, 0);
      } else if (action == 8) {
        const int part = *rc::gen::inRange(0, 2);
        tree.number(tree.policy(part), 123456);
        changed.insert(part);
      }
    }
  }
  RC_ASSERT(found.actuators[0]->restore().complete());
  for (int part = 0; part < 2; ++part)
    RC_ASSERT(tree.at(tree.policy(part)) == (changed.contains(part) ? 123456 : 3000000));
}

// Without SMT, half of the policies have no processor that is switched on, and cannot be read.
TEST(Cpufreq, ProcessorsThatAreOffAreLeftOut) {
  const FakeTree tree;
  tree.cpufreq();
  for (const int p : {1, 3}) {
    tree.write(tree.policy(p, "affected_cpus"), "\n");
    tree.write(tree.policy(p), "<unsupported>\n");
  }
  const Actuators found = open_cpufreq(tree.machine);
  ASSERT_EQ(found.actuators.size(), 2u) << list_text(found);
  EXPECT_TRUE(found.actuators[1]->set(2000000).ok());
  EXPECT_EQ(tree.at(tree.policy(2)), 2000000);
}

TEST(Cpufreq, ReasonsAreSentences) {
  const FakeTree tree;
  EXPECT_TRUE(contains_text(why_not(open_cpufreq(tree.machine), "cpufreq", "cpu-package"), "no cpufreq driver"));
  tree.write("proc/cpuinfo", "flags\t\t: fpu hypervisor sse\n");
  EXPECT_TRUE(contains_text(why_not(open_cpufreq(tree.machine), "cpufreq", "cpu-package"), "virtual machine"));
  tree.cpufreq();
  tree.write(tree.policy(2, "cpuinfo_max_freq"), "fast\n");
  const Actuators found = open_cpufreq(tree.machine);
  EXPECT_TRUE(found.actuators.empty()) << "a package would be set in part";
  EXPECT_TRUE(contains_text(why_not(found, "cpufreq", "cpu-package"), "cpuinfo_max_freq: 'fast' is no count"));
}

TEST(Cpufreq, NoPermissionNamesTheWayOut) {
  const FakeTree tree;
  tree.cpufreq();
  for (int p = 0; p < 4; ++p) fs::permissions(tree.root() / tree.policy(p), fs::perms(0444));
  const bool root = ::geteuid() == 0;
  const int dropped = root ? ::seteuid(65534) : 0;  // root writes everything
  const Actuators found = open_cpufreq(tree.machine);
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  if (dropped != 0) GTEST_SKIP() << "root that cannot become another user writes everything";
  EXPECT_TRUE(found.actuators.empty());
  EXPECT_TRUE(contains_text(why_not(found, "cpufreq", "cpu-package1"), "chgrp GROUP")) << list_text(found);
  EXPECT_TRUE(contains_text(why_not(found, "cpufreq", "cpu-package1"), "molen energy daemon")) << list_text(found);
}

TEST(Uncore, SetsAllDiesOfAPackage) {
  const FakeTree tree;
  EXPECT_EQ(why_not(open_uncore(tree.machine), "uncore", "cpu-package"),
            fmt::format("no packages in {}/{}/intel_uncore_frequency; the kernel module intel_uncore_frequency is not "
                        "loaded, or this processor is not one of Intel's for servers",
                        tree.root().string(), FakeTree::kCpu));
  tree.uncore();
  const Actuators found = open_uncore(tree.machine);
  ASSERT_EQ(found.actuators.size(), 2u);
  Actuator* first = find_actuator(found, "uncore", "cpu-package0");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->info().parts.size(), 2u);
  EXPECT_EQ(first->most(), 2400000) << "what was found, not initial_max_freq_khz";
  ASSERT_TRUE(first->set(1600000).ok());
  const std::string folder = std::string(FakeTree::kCpu) + "/intel_uncore_frequency/";
  EXPECT_EQ(tree.at(folder + "package_00_die_01/max_freq_khz"), 1600000);
  EXPECT_EQ(tree.at(folder + "package_01_die_00/max_freq_khz"), 2400000);
  EXPECT_EQ(first->restore().restored, 2);
  EXPECT_EQ(tree.at(folder + "package_00_die_01/max_freq_khz"), 2400000);
}

TEST(PowercapLimit, IsTheLongTermConstraint) {
  const FakeTree tree;
  EXPECT_TRUE(contains_text(why_not(open_powercap_limits(tree.machine), "powercap", "cpu-package"), "no RAPL zones"));
  tree.powercap();
  tree.zone("intel-rapl:1", "package-1", 5);
  tree.zone("intel-rapl:2", "psys", 5);
  const Actuators found = open_powercap_limits(tree.machine);
  Actuator* limit = find_actuator(found, "powercap", "cpu-package0");
  ASSERT_NE(limit, nullptr);
  EXPECT_STREQ(unit_of(limit->info().kind), "uW");
  EXPECT_EQ(limit->least(), 175000000);
  EXPECT_EQ(limit->most(), 330000000);
  ASSERT_TRUE(limit->set(200000000).ok());
  const std::string zone = "sys/class/powercap/intel-rapl:0/";
  EXPECT_EQ(tree.at(zone + "constraint_1_power_limit_uw"), 200000000);
  EXPECT_EQ(tree.at(zone + "constraint_0_power_limit_uw"), 420000000);
  EXPECT_EQ(limit->restore().restored, 1);
  EXPECT_EQ(tree.at(zone + "constraint_1_power_limit_uw"), 330000000);
  EXPECT_TRUE(contains_text(why_not(found, "powercap", "cpu-package1"), "counters only"));
  EXPECT_EQ(found.unavailable.size(), 1u);
  tree.write(zone + "enabled", "0\n");
  EXPECT_TRUE(contains_text(why_not(open_powercap_limits(tree.machine), "powercap", "cpu-package0"), "switched off"));
}

TEST(AmdGpu, IsNumberedByItsAddress) {
  const FakeTree tree;
  EXPECT_TRUE(contains_text(why_not(open_amdgpu(tree.machine, false), "amdgpu-power", "gpu"), "no GPU of AMD"));
  tree.amdgpu(3, "0000:d1:00.0", 560000000);
  tree.amdgpu(10, "0000:c1:00.0", 500000000);
  tree.amdgpu(11, "0000:d6:00.0", 0);
  const Actuators found = open_amdgpu(tree.machine, false);
  Actuator* first = find_actuator(found, "amdgpu-power", "gpu0");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->most(), 500000000);
  EXPECT_EQ(first->least(), 250000000);
  ASSERT_TRUE(first->set(300000000).ok());
  EXPECT_EQ(tree.at("sys/class/hwmon/hwmon10/power1_cap"), 300000000);
  EXPECT_EQ(first->restore().restored, 1);
  EXPECT_TRUE(contains_text(why_not(found, "amdgpu-power", "gpu2"), "second die"));
  const Actuators hidden = open_amdgpu(tree.machine, true);
  EXPECT_TRUE(hidden.actuators.empty());
  EXPECT_TRUE(contains_text(why_not(hidden, "amdgpu-power", "gpu0"), "HIP_VISIBLE_DEVICES"));
}

TEST(OpenActuators, ListsAllAndWhyNot) {
  const FakeTree tree;
  OpenOptions options;
  options.machine = tree.machine;
  options.nvml.library = "libno-such-library.so.1";
  EXPECT_TRUE(list_text(open_actuators(options)).starts_with("no clock or power limit of this machine can be set\n"));
  tree.cpufreq();
  tree.powercap();
  const Actuators found = open_actuators(options);
  const std::string text = list_text(found);
  EXPECT_TRUE(contains_text(text, "cpu-package0     cpufreq        0.8 GHz to 3 GHz, now 3 GHz: highest clock"))
      << text;
  EXPECT_TRUE(contains_text(text, "cpu-package0     powercap       175 W to 330 W, now 330 W: long-term")) << text;
  EXPECT_TRUE(contains_text(text, "\ncannot be set:\n"));
  EXPECT_TRUE(contains_text(text, "no NVIDIA driver library"));
  const Json json = list_json(found);
  EXPECT_EQ(json.at("available").size(), 3u);
  EXPECT_EQ(json.at("available")[0].at("present"), 3000000);
  EXPECT_EQ(json.at("unavailable").size(), 3u);
}

}  // namespace
}  // namespace molen::actuate
