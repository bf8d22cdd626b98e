#include "actuate/nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "actuate/journal.h"
#include "actuate/open.h"
#include "actuate/test_tree.h"

namespace molen::actuate {
namespace {

struct GpuSettings {
  unsigned limit = 0, lowest = 0, highest = 0;
  bool operator==(const GpuSettings&) const = default;
};

class NvmlSettings : public ::testing::Test {
 protected:
  template <class F>
  F* symbol(const char* name) {
    return reinterpret_cast<F*>(::dlsym(handle_, name));
  }
  void SetUp() override {
    handle_ = ::dlopen(MOLEN_FAKE_NVML, RTLD_NOW);
    ASSERT_NE(handle_, nullptr) << ::dlerror();
    symbol<void(unsigned, int)>("fake_nvml_reset")(2, 0);
    for (const char* bus : {"10", "11"})
      tree_.write(fmt::format("sys/bus/pci/devices/0000:{}:00.0/uevent", bus), "DRIVER=nvidia\n");
  }
  void TearDown() override {
    EXPECT_EQ(symbol<int()>("fake_nvml_users")(), 0) << "nvmlShutdown for each nvmlInit";
    ::dlclose(handle_);
  }
  Actuators open(std::optional<std::string> visible = std::nullopt, const char* library = MOLEN_FAKE_NVML) {
    energy::NvmlOptions options;
    options.library = library;
    options.visible = std::move(visible);
    return open_nvml_settings(tree_.machine, options);
  }
  GpuSettings settings(unsigned index) {
    GpuSettings s;
    symbol<void(unsigned, unsigned*, unsigned*, unsigned*)>("fake_nvml_settings")(index, &s.limit, &s.lowest,
                                                                                  &s.highest);
    return s;
  }
  FakeTree tree_;
  void* handle_ = nullptr;
};

TEST_F(NvmlSettings, LocksAndUnlocksClocks) {
  const Actuators found = open();
  ASSERT_EQ(found.actuators.size(), 4u);
  Actuator* clock = find_actuator(found, "nvml-clock", "gpu1");
  ASSERT_NE(clock, nullptr);
  EXPECT_EQ(clock->info().id, "nvml-clock:GPU-b0000000");
  EXPECT_EQ(clock->info().detail, "Fake GPU GPU-b0000000");
  EXPECT_EQ(clock->info().values.size(), 110u);
  EXPECT_EQ(clock->least(), 345000);
  EXPECT_EQ(clock->most(), 1980000);
  EXPECT_FALSE(clock->present().ok()) << "NVML does not tell";
  ASSERT_TRUE(clock->set(1410000).ok());
  EXPECT_EQ(settings(1), (GpuSettings{700000, 345, 1410}));
  EXPECT_EQ(settings(0), (GpuSettings{700000, 0, 0}));
  EXPECT_EQ(clock->set(1400000).reason(),
            "nvml-clock of gpu1: 1.4 GHz is none of the 110 values of the device; the nearest is 1.395 GHz");
  EXPECT_EQ(clock->restore().restored, 1);
  EXPECT_EQ(settings(1), (GpuSettings{700000, 0, 0}));
  EXPECT_EQ(clock->restore().restored, 0) << "nothing is ours any more";
}

// A guardian does this for a job that was killed.
TEST_F(NvmlSettings, AJournalUnlocksClocksByUuid) {
  {
    Actuators job = open();
    ASSERT_TRUE(find_actuator(job, "nvml-clock", "gpu1")->set(1410000).ok());
    ASSERT_TRUE(find_actuator(job, "nvml-power", "gpu1")->set(450000000).ok());
  }
  EXPECT_EQ(settings(1), (GpuSettings{450000, 345, 1410}));
  Journal journal;
  journal.entries = {{"nvml-clock:GPU-b0000000", {"GPU-b0000000"}, {0}, {{1410000}}},
                     {"nvml-power:GPU-b0000000", {"GPU-b0000000"}, {700000000}, {{450000000}}}};
  Actuators here = open("1");
  const Restoration done = restore_journal(journal, here);
  EXPECT_TRUE(done.complete());
  EXPECT_EQ(done.notes, (std::vector<std::string>{"nvml-clock of gpu0: put back to no limit",
                                                  "nvml-power of gpu0: put back to 700 W"}));
  EXPECT_EQ(settings(1), (GpuSettings{700000, 0, 0}));
}

TEST_F(NvmlSettings, LimitsPowerAndRestoresIt) {
  {
    const Actuators found = open();
    Actuator* limit = find_actuator(found, "nvml-power", "gpu0");
    ASSERT_NE(limit, nullptr);
    EXPECT_EQ(limit->least(), 200000000);
    EXPECT_EQ(limit->most(), 700000000);
    ASSERT_TRUE(limit->set(450000000).ok());
    EXPECT_EQ(settings(0).limit, 450000u);
    EXPECT_EQ(limit->present().value(), 450000000);
    EXPECT_FALSE(limit->set(150000000).ok());
    EXPECT_EQ(limit->restore().restored, 1);
    EXPECT_EQ(settings(0).limit, 700000u);
  }
  symbol<void(int)>("fake_nvml_set_error")(4);
  const Actuators found = open();
  const std::string why = find_actuator(found, "nvml-power", "gpu0")->set(450000000).reason();
  EXPECT_EQ(why.find("nvmlDeviceSetPowerManagementLimit: Insufficient Permissions (the driver lets only root"), 0u)
      << why;
  EXPECT_FALSE(find_actuator(found, "nvml-clock", "gpu0")->set(1410000).ok());
}

TEST_F(NvmlSettings, AnOldDriverSetsNothingAndSaysWhy) {
  const Actuators found = open(std::nullopt, MOLEN_FAKE_OLD_NVML);
  EXPECT_TRUE(found.actuators.empty());
  for (const char* gpu : {"gpu0", "gpu1"}) {
    EXPECT_EQ(why_not(found, "nvml-power", gpu), "this driver cannot set power limits");
    EXPECT_EQ(why_not(found, "nvml-clock", gpu), "this driver cannot lock clocks (it is older than NVML 11)");
  }
}

TEST_F(NvmlSettings, OnlyVisibleWholeDevices) {
  const Actuators second = open("1");
  ASSERT_EQ(second.actuators.size(), 2u);
  EXPECT_EQ(second.actuators[0]->info().scope, "gpu0");
  EXPECT_EQ(second.actuators[0]->info().id, "nvml-clock:GPU-b0000000");
  EXPECT_EQ(why_not(open("-1"), "nvml", "gpu"), "none of 2 GPUs is visible");
  EXPECT_NE(why_not(open("MIG-1"), "nvml", "gpu0").find("a MIG instance has no"), std::string::npos);
  symbol<void(unsigned)>("fake_nvml_mig")(1);
  const Actuators divided = open();
  EXPECT_TRUE(divided.actuators.empty());
  EXPECT_EQ(why_not(divided, "nvml", "gpu1"),
            "MIG divides this GPU, and its clock and power limit are those of all instances");
}

TEST_F(NvmlSettings, RightsAreToldBeforeAnythingIsSet) {
  tree_.write("proc/self/status", "Name:\tmolen\nCapEff:\t0000000000000000\nSeccomp:\t0\n");
  const Actuators found = open();
  EXPECT_TRUE(found.actuators.empty());
  EXPECT_NE(why_not(found, "nvml", "gpu0").find("CAP_SYS_ADMIN"), std::string::npos);
  tree_.write("proc/self/status", "Name:\tmolen\nCapEff:\t000001ffffffffff\n");
  EXPECT_EQ(open().actuators.size(), 4u);
  fs::remove(tree_.root() / "sys/bus/pci/devices/0000:10:00.0/uevent");
  const Actuators unlocked = open();
  EXPECT_EQ(unlocked.actuators.size(), 2u);
  EXPECT_NE(why_not(unlocked, "nvml", "gpu0").find("two jobs could not exclude each other"), std::string::npos);
}

}  // namespace
}  // namespace molen::actuate
