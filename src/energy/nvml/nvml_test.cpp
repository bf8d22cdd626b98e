#include "energy/nvml/nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "energy/commands.h"
#include "energy/open.h"
#include "energy/test_machine.h"

namespace molen::energy {
namespace {

class Nvml : public ::testing::Test {
 protected:
  void SetUp() override {
    handle_ = ::dlopen(MOLEN_FAKE_NVML, RTLD_NOW);
    ASSERT_NE(handle_, nullptr) << ::dlerror();
    set = reinterpret_cast<decltype(set)>(::dlsym(handle_, "fake_nvml_set"));
    reset = reinterpret_cast<decltype(reset)>(::dlsym(handle_, "fake_nvml_reset"));
    model = reinterpret_cast<decltype(model)>(::dlsym(handle_, "fake_nvml_model"));
    mig = reinterpret_cast<decltype(mig)>(::dlsym(handle_, "fake_nvml_mig"));
    clock = reinterpret_cast<decltype(clock)>(::dlsym(handle_, "fake_nvml_clock"));
    power_now = reinterpret_cast<decltype(power_now)>(::dlsym(handle_, "fake_nvml_power_now"));
    users = reinterpret_cast<decltype(users)>(::dlsym(handle_, "fake_nvml_users"));
    reset(2, 0);
    set(0, 1000000, 300000, 0, 0);
    set(1, 5000, 90000, 3, 0);  // no counter: a virtual GPU
  }
  void TearDown() override {
    EXPECT_EQ(users(), 0) << "nvmlShutdown for each nvmlInit";
    ::dlclose(handle_);
  }
  Meters open(std::optional<std::string> visible = std::nullopt) {
    return open_nvml(f.machine, {MOLEN_FAKE_NVML, std::move(visible), Seconds(0.1)});
  }

  void (*set)(unsigned, unsigned long long, unsigned, int, int) = nullptr;
  void (*reset)(unsigned, int) = nullptr;
  void (*model)(const char*) = nullptr;
  void (*mig)(unsigned) = nullptr;
  void (*clock)(unsigned, unsigned, unsigned long long) = nullptr;
  void (*power_now)(unsigned, unsigned, unsigned) = nullptr;
  int (*users)() = nullptr;
  FakeMachine f;
  void* handle_ = nullptr;
};

TEST_F(Nvml, CounterThenPower) {
  const Meters m = open();
  ASSERT_EQ(m.meters.size(), 2u);
  EXPECT_EQ(m.meters[0]->info().source, Source::kCounter);
  EXPECT_EQ(m.meters[1]->info().source, Source::kPower);
  set(0, 1250000, 300000, 0, 0);
  EXPECT_DOUBLE_EQ(m.meters[0]->read().value().total.value, 250.0);
  f.time += 0.5;
  set(1, 0, 110000, 3, 0);
  EXPECT_DOUBLE_EQ(m.meters[1]->read().value().total.value, 0.5 * (90 + 110) / 2) << "trapezoid over the measured time";
  f.time += 5;
  const auto gap = m.meters[1]->read();
  EXPECT_EQ(gap.value().gaps, 1);
  EXPECT_DOUBLE_EQ(gap.value().total.value, 50.0) << "nothing is made up for the silence";
}

TEST_F(Nvml, FailuresAreReasons) {
  Meters m = open();
  set(0, 0, 0, 9, 9);
  EXPECT_NE(m.meters[0]->read().reason().find("Driver Not Loaded"), std::string::npos);
  set(0, 10, 0, 0, 0);  // the counter decreased: driver reloaded
  EXPECT_NE(m.meters[0]->read().reason().find("went back"), std::string::npos);
  set(1, 0, 0, 3, 4);
  m = open();
  ASSERT_EQ(m.meters.size(), 1u);
  ASSERT_EQ(m.unavailable.size(), 1u);
  EXPECT_EQ(m.unavailable[0].scope, "gpu1");
  EXPECT_NE(m.unavailable[0].reason.find("Not Supported"), std::string::npos);
  EXPECT_NE(m.unavailable[0].reason.find("Insufficient Permissions"), std::string::npos);
  m = {};
  reset(2, 9);
  EXPECT_NE(open().unavailable.at(0).reason.find("nvmlInit: Driver Not Loaded"), std::string::npos);
  EXPECT_NE(open_nvml(f.machine, {"libno-such-library.so.1", {}, Seconds(0.1)})
                .unavailable.at(0)
                .reason.find("libno-such-library"),
            std::string::npos);
  reset(0, 0);
  EXPECT_NE(open().unavailable.at(0).reason.find("no GPU"), std::string::npos);
}

TEST_F(Nvml, OnlyVisibleDevices) {
  reset(3, 0);
  for (unsigned i = 0; i < 3; ++i) set(i, 1, 1, 0, 0);
  const auto names = [&](const char* visible) {
    std::string text;
    const Meters m = open(visible);
    for (const auto& meter : m.meters) text += meter->info().scope + "=" + meter->info().detail.substr(13, 1) + " ";
    for (const auto& u : m.unavailable) text += u.scope + "! ";
    return text;
  };
  EXPECT_EQ(names("2,0"), "gpu0=c gpu1=a ");
  EXPECT_EQ(names("GPU-b"), "gpu0=b ");
  EXPECT_EQ(names(""), "gpu! ");
  EXPECT_EQ(names("-1"), "gpu! ");
  EXPECT_EQ(names("1,-1,2"), "gpu0=b ");
  EXPECT_EQ(names("7"), "gpu0! ");
  EXPECT_EQ(names("GPU-"), "gpu0! ") << "ambiguous";
  EXPECT_EQ(names("MIG-1234,1"), "gpu1=b gpu0! ");
}

// Its counter has the joules of the processor too, which another meter may read as well.
TEST_F(Nvml, TheCounterOfAGraceHopperIsThatOfItsSuperchip) {
  model("NVIDIA GH200 480GB");
  OpenOptions o;
  o.machine = f.machine;
  o.nvml.library = MOLEN_FAKE_NVML;
  o.nvml.visible = "1";
  const auto grow = [&] {
    set(1, static_cast<unsigned long long>(f.time * 1e5), 0, 0, 0);
    f.zone("intel-rapl:1", "package-1", static_cast<std::uint64_t>(f.time * 1e6));
  };
  f.tick = grow;
  grow();
  const Meters m = open_meters({"auto"}, o);
  std::map<std::string, bool> counted;
  for (const auto& meter : m.meters) counted[meter->info().scope] = meter->info().counted;
  EXPECT_EQ(counted, (std::map<std::string, bool>{{"superchip0", true}, {"cpu-package1", false}}));
  set(1, 0, 90000, 3, 0);
  const Meters power = open("1");
  EXPECT_TRUE(power.meters.empty());
  EXPECT_NE(power.unavailable.at(0).reason.find("may include that of the processor"), std::string::npos);
}

TEST_F(Nvml, AGpuThatMigDividesIsNotChargedToOneJob) {
  mig(1);
  const Meters m = open("0");
  EXPECT_TRUE(m.meters.empty());
  EXPECT_EQ(m.unavailable.at(0).scope, "gpu0");
  EXPECT_NE(m.unavailable[0].reason.find("MIG divides this GPU"), std::string::npos);
}

TEST_F(Nvml, AFrozenCounterIsNotBelieved) {
  OpenOptions o;
  o.machine = f.machine;
  o.nvml.library = MOLEN_FAKE_NVML;
  f.tick = [&] { set(0, static_cast<unsigned long long>(f.time * 1e5), 0, 0, 0); };  // GPU 1 integrates its power
  const Meters good = open_meters({"nvml"}, o);
  EXPECT_EQ(good.meters.size(), 2u);
  f.tick = nullptr;
  const Meters m = open_meters({"nvml"}, o);
  ASSERT_EQ(m.meters.size(), 2u);
  EXPECT_EQ(m.meters[0]->info().scope, "gpu1");
  EXPECT_EQ(m.meters[1]->info().name, "null");
  EXPECT_NE(m.meters[1]->read().reason().find("did not change"), std::string::npos);
}

// CrossCheck says when the two contradict each other.
TEST_F(Nvml, ACounterThatContradictsThePowerIsDoubted) {
  model("NVIDIA H100 80GB HBM3");
  set(0, 1000000, 65400, 0, 0);
  set(1, 1000000, 37400, 0, 0);
  const Meters m = open();
  double counter_j = 0.0;
  const auto run = [&](double seconds) {
    for (double t = 0.0; t < seconds - 1e-9; t += 0.1) {
      f.time += 0.1, counter_j += 0.1 * 37.4;
      const auto millijoules = 1000000 + static_cast<unsigned long long>(1e3 * counter_j);
      set(0, millijoules, 65400, 0, 0);
      set(1, millijoules, 37400, 0, 0);
      for (const auto& meter : m.meters) EXPECT_TRUE(meter->read().ok());
    }
  };
  run(5.0);
  EXPECT_EQ(m.meters[0]->doubt(), "");
  run(70.0);
  EXPECT_NE(m.meters[0]->doubt().find(" s the counter rose by 22"), std::string::npos) << m.meters[0]->doubt();
  EXPECT_EQ(m.meters[1]->doubt(), "");
}

// The counter of a superchip has the processor's joules, which the GPU's power has not; and a GPU without a power has
// nothing to compare.
TEST_F(Nvml, WhatTellsNothingIsNotCompared) {
  for (const bool superchip : {true, false}) {
    reset(2, 0);
    model(superchip ? "NVIDIA GH200 480GB" : "NVIDIA H100 80GB HBM3");
    set(0, 1000000, 65400, 0, superchip ? 0 : 9);
    const Meters m = open("0");
    for (int i = 1; i <= 1200; ++i) {
      f.time += 0.1;
      set(0, 1000000 + 50000ULL * static_cast<unsigned>(i), 65400, 0, superchip ? 0 : 9);
      EXPECT_TRUE(m.meters.at(0)->read().ok());
    }
    EXPECT_EQ(m.meters[0]->doubt(), "") << superchip;
  }
}

TEST_F(Nvml, TellsTheClockAndWhatSlowsIt) {
  const Meters m = open();
  const auto of = [&](std::size_t meter, unsigned mhz, unsigned long long reasons) {
    clock(static_cast<unsigned>(meter), mhz, reasons);
    return m.meters.at(meter)->condition();
  };
  EXPECT_EQ(of(0, 0, 0), "") << "not told";
  EXPECT_EQ(of(0, 1980, 0), "1980 of 1980 MHz");
  EXPECT_EQ(of(0, 345, 0x1), "345 of 1980 MHz") << "idle";
  EXPECT_EQ(of(0, 1410, 0x2 | 0x100), "1410 of 1980 MHz") << "as someone asked for";
  EXPECT_EQ(of(0, 1410, 0x4), "1410 of 1980 MHz, slowed by: power limit");
  EXPECT_EQ(of(1, 900, 0x8 | 0x40), "900 of 1980 MHz, slowed by: hardware, heat (hardware)");
  EXPECT_EQ(of(1, 900, 0x10 | 0x20), "900 of 1980 MHz, slowed by: synchronised GPUs, heat (driver)");
  EXPECT_EQ(of(1, 900, 0x80), "900 of 1980 MHz, slowed by: power supply");
  const LiveReading::Line line = LiveReading(open()).next();
  EXPECT_EQ(line.conditions.at("gpu1"), "900 of 1980 MHz, slowed by: power supply");
}

// The fields of power are those of the GPU alone. A driver or a GPU may have neither, or only the present power.
TEST_F(Nvml, TellsThePowerNowAndOnAverage) {
  const Meters m = open();
  const Meter& gpu = *m.meters.at(0);
  power_now(0, 412300, 398600);
  EXPECT_EQ(gpu.condition(), "412 W now, 399 W over a second");
  clock(0, 1410, 0x4);
  EXPECT_EQ(gpu.condition(), "1410 of 1980 MHz, 412 W now, 399 W over a second, slowed by: power limit");
  power_now(0, 412300, 0);
  EXPECT_EQ(gpu.condition(), "1410 of 1980 MHz, 412 W now, slowed by: power limit");
  power_now(0, 0, 398600);
  EXPECT_EQ(gpu.condition(), "1410 of 1980 MHz, 399 W over a second, slowed by: power limit");
  power_now(0, 0, 0);
  EXPECT_EQ(gpu.condition(), "1410 of 1980 MHz, slowed by: power limit");
  power_now(1, 91000, 90000);
  EXPECT_EQ(m.meters.at(1)->condition(), "91 W now, 90 W over a second");
  model("NVIDIA GH200 480GB");
  power_now(0, 412300, 0);
  EXPECT_EQ(open("0").meters.at(0)->condition(), "1410 of 1980 MHz, GPU 412 W now, slowed by: power limit");
}

// Old drivers have another name for the reasons, and no fields of power.
TEST_F(Nvml, AnOldDriverTellsWhatSlowsItToo) {
  void* const old = ::dlopen(MOLEN_FAKE_OLD_NVML, RTLD_NOW);
  ASSERT_NE(old, nullptr) << ::dlerror();
  reinterpret_cast<void (*)(unsigned, unsigned long long, unsigned, int, int)>(::dlsym(old, "fake_nvml_set"))(
      0, 1000, 300000, 0, 0);
  reinterpret_cast<decltype(clock)>(::dlsym(old, "fake_nvml_clock"))(0, 1410, 0x4);
  {
    const Meters m = open_nvml(f.machine, {MOLEN_FAKE_OLD_NVML, "0", Seconds(0.1)});
    EXPECT_EQ(m.meters.at(0)->condition(), "1410 of 1980 MHz, slowed by: power limit");
  }
  ::dlclose(old);
}

TEST_F(Nvml, WhatIsSaidOfEachDevice) {
  set(1, 0, 0, 3, 4);
  const Meters m = open();
  ASSERT_EQ(m.meters.size(), 1u);
  EXPECT_EQ(m.meters[0]->info().detail, "Fake GPU GPU-a0000000 at 0000:10:00.0, energy counter");
  EXPECT_EQ(m.meters[0]->info().read_every.value, 0.0);
  EXPECT_EQ(m.unavailable.at(0).reason,
            "Fake GPU GPU-b0000000 at 0000:11:00.0: energy: Not Supported; power: Insufficient Permissions");
  set(1, 0, 0, 3, 0);
  const Meters power = open("1");
  EXPECT_EQ(power.meters.at(0)->info().detail, "Fake GPU GPU-b0000000 at 0000:11:00.0, power samples");
  EXPECT_EQ(power.meters[0]->info().read_every.value, 0.1);
  const auto why = [&](const char* visible) { return open(visible).unavailable.at(0).reason; };
  EXPECT_EQ(why(""), "none of 2 GPUs is visible");
  EXPECT_EQ(why("2"), "no GPU 2: NVML shows 2");
  EXPECT_EQ(why("GPU-"), "'GPU-' in the visible devices names 2 GPUs");
  EXPECT_EQ(why("GPU-x"), "'GPU-x' in the visible devices names 0 GPUs");
  EXPECT_EQ(why("1x"), "'1x' in the visible devices names 0 GPUs");
  EXPECT_EQ(why("MIG-1"), "MIG-1: a MIG instance has no energy reading, clock or power limit of its own");
  EXPECT_EQ(why((std::string("GPU-") + std::string(80, 'x')).c_str()),
            "'GPU-" + std::string(56, 'x') + "' in the visible devices names 0 GPUs");
  set(0, 0, 0, 9, 9);
  EXPECT_EQ(m.meters[0]->read().reason(), "nvmlDeviceGetTotalEnergyConsumption: Driver Not Loaded");
  set(1, 0, 0, 3, 9);
  EXPECT_EQ(power.meters[0]->read().reason(), "nvmlDeviceGetPowerUsage: Driver Not Loaded");
}

}  // namespace
}  // namespace molen::energy
