#include "energy/accountant.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/test_golden.h"
#include "energy/commands.h"
#include "energy/counter.h"
#include "energy/open.h"
#include "energy/replay.h"
#include "energy/test_machine.h"

namespace molen::energy {
namespace {

struct Scripted {
  Result<Reading> reading = Reading{Joules(0), 0};
  int reads = 0;
};

class ScriptedMeter : public Meter {
 public:
  ScriptedMeter(MeterInfo info, Scripted& script) : Meter(std::move(info)), script_(script) {}
  Result<Reading> read() override {
    ++script_.reads;
    return script_.reading;
  }

 private:
  Scripted& script_;
};

class CountingMeter : public Meter {
 public:
  CountingMeter(MeterInfo info, std::atomic<int>& reads) : Meter(std::move(info)), reads_(reads) {}
  Result<Reading> read() override {
    ++reads_;
    return Reading{Joules(1), 0};
  }

 private:
  std::atomic<int>& reads_;
};

class TickingMeter : public Meter {
 public:
  explicit TickingMeter(double age_s = 0.0)
      : Meter({"ticking", "cpu-package0", Source::kCounter, "", Seconds(0), true, 1.0, Seconds(0.001)}),
        age_s_(age_s) {}
  Result<Reading> read() override {
    ++ticks_;
    return Reading{Joules(static_cast<double>(ticks_)), 0, ticks_, age_s_};
  }

 private:
  double age_s_;
  std::int64_t ticks_ = 0;
};

// The thread samples counters while steps read them and samples are taken. No sample is lost, and times increase.
TEST(Accountant, SamplesCountersWhileStepsReadThem) {
  Meters m;
  m.meters.push_back(std::make_unique<TickingMeter>());
  m.meters.push_back(std::make_unique<NullMeter>("gpu0", "none"));
  Accountant accountant(std::move(m), Seconds(0.001));
  std::vector<Sample> all;
  for (int i = 0; i < 5000 && all.size() < 50; ++i) {
    accountant.begin_step();
    (void)accountant.end_step();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto samples = accountant.take_samples();
    ASSERT_EQ(samples.size(), 2U);
    all.insert(all.end(), samples[0].begin(), samples[0].end());
    EXPECT_TRUE(samples[1].empty()) << "no counter";
  }
  ASSERT_GE(all.size(), 50U);
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_GT(all[i].time_s, all[i - 1].time_s);
    EXPECT_GT(all[i].reading.value().ticks, all[i - 1].reading.value().ticks);
  }
}

// A sample has the time at which its counter was read, which may be before the call. `so_far` takes one.
TEST(Accountant, SamplesHaveTheTimeOfTheirReading) {
  double now_s = 10.0;
  Meters m;
  m.meters.push_back(std::make_unique<TickingMeter>(0.25));
  Accountant accountant(std::move(m), Seconds(1e9), [&] { return now_s; });
  now_s = 20.0;
  accountant.begin_step();
  (void)accountant.so_far();
  (void)accountant.so_far();  // at the same time: no sample
  const auto samples = accountant.take_samples();
  ASSERT_EQ(samples[0].size(), 2U);
  EXPECT_EQ(samples[0][0].time_s, 9.75);
  EXPECT_EQ(samples[0][1].time_s, 19.75);
}

// The sink gets what each meter counted since construction: at once, from the thread, and at the ends of steps. A meter
// without a reading has NaN, and one that fails keeps its last value.
TEST(Accountant, TellsASinkWhatItReads) {
  Scripted good{Reading{Joules(40), 0}}, late{Failure{"not yet"}};
  Meters m;
  m.meters.push_back(std::make_unique<ScriptedMeter>(MeterInfo{"a", "cpu-package0", Source::kCounter, ""}, good));
  m.meters.push_back(
      std::make_unique<ScriptedMeter>(MeterInfo{"b", "gpu0", Source::kPower, "", Seconds(0), false}, late));
  Accountant accountant(std::move(m));
  std::vector<double> told;
  double sum = -1.0;
  int calls = 0;
  accountant.on_reading([&](std::span<const double> joules, double counted) {
    told.assign(joules.begin(), joules.end());
    sum = counted;
    ++calls;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(told[0], 0.0);
  EXPECT_TRUE(std::isnan(told[1]));
  good.reading = Reading{Joules(47), 0};
  late.reading = Reading{Joules(3), 0};
  accountant.begin_step();
  EXPECT_EQ(told, (std::vector<double>{7.0, 0.0}));
  late.reading = Reading{Joules(5), 0};
  good.reading = Failure{"gone"};
  (void)accountant.end_step();
  EXPECT_EQ(told, (std::vector<double>{7.0, 2.0}));
  good.reading = Reading{Joules(50), 0};
  (void)accountant.so_far();
  EXPECT_EQ(told, (std::vector<double>{10.0, 2.0}));
  EXPECT_EQ(sum, 10.0) << "the scope of b is a part of another one";
}

// The thread tells the sink between steps too, of counters and of other meters.
TEST(Accountant, TheThreadTellsTheSink) {
  std::atomic<int> reads = 0, calls = 0;
  Meters m;
  m.meters.push_back(std::make_unique<TickingMeter>());
  m.meters.push_back(std::make_unique<CountingMeter>(MeterInfo{"b", "gpu0", Source::kPower, ""}, reads));
  std::atomic<double> told = 0.0;
  Accountant accountant(std::move(m), Seconds(0.001));
  accountant.on_reading([&](std::span<const double> joules, double counted) {
    told = joules[0];
    EXPECT_EQ(counted, joules[0] + joules[1]);
    ++calls;
  });
  for (int i = 0; i < 20000 && (calls < 20 || reads < 20); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(calls, 20);
  EXPECT_GE(reads, 20);
  EXPECT_GE(told, 10.0);
}

// The accountant reads a wrapping counter by itself at the requested rate; it reads other counters only on request.
TEST(Accountant, ReadsInTimeWhatWraps) {
  std::atomic<int> often = 0, never = 0;
  {
    Meters m;
    m.meters.push_back(std::make_unique<CountingMeter>(
        MeterInfo{"fake", "cpu-package0", Source::kCounter, "a", Seconds(0.002), true}, often));
    m.meters.push_back(
        std::make_unique<CountingMeter>(MeterInfo{"fake", "gpu0", Source::kCounter, "b", Seconds(0), true}, never));
    const Accountant accountant(std::move(m));
    for (int i = 0; i < 5000 && often < 5; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GE(often, 5);
  EXPECT_LE(never, 2);
}

Meters scripted(Scripted& cpu, Scripted& gpu, double read_every = 0) {
  Meters m;
  m.meters.push_back(std::make_unique<ScriptedMeter>(
      MeterInfo{"fake", "cpu-package0", Source::kCounter, "a", Seconds(read_every), true}, cpu));
  m.meters.push_back(
      std::make_unique<ScriptedMeter>(MeterInfo{"fake", "gpu0", Source::kPower, "b", Seconds(0), true}, gpu));
  return m;
}

TEST(Accountant, StepsAddUp) {
  Scripted cpu, gpu;
  Accountant a(scripted(cpu, gpu));
  a.begin_step();
  cpu.reading = Reading{Joules(3), 0};
  gpu.reading = Reading{Joules(40), 0};
  StepEnergy step = a.end_step();
  EXPECT_EQ(step.scopes["cpu-package0"].joules, 3.0);
  EXPECT_EQ(step.total_j, 43.0);
  EXPECT_EQ(step.sources(), (std::map<std::string, std::string>{{"cpu-package0", "counter"}, {"gpu0", "power"}}));
  cpu.reading = Reading{Joules(5), 0};
  gpu.reading = Reading{Joules(41), 0};
  EXPECT_EQ(a.end_step().total_j, 3.0);
  EXPECT_EQ(a.since_start().total_j, 46.0);
}

TEST(Accountant, MissingIsNullNeverZero) {
  Scripted cpu, gpu;
  Accountant a(scripted(cpu, gpu));
  cpu.reading = Reading{Joules(3), 0};
  gpu.reading = Failure{"gone"};
  StepEnergy step = a.end_step();
  EXPECT_EQ(step.scopes["gpu0"].joules, std::nullopt);
  EXPECT_EQ(step.scopes["gpu0"].reason, "gone");
  EXPECT_EQ(step.sources()["gpu0"], "none");
  EXPECT_EQ(step.total_j, std::nullopt) << "a sum without a part is no sum";
  EXPECT_EQ(step.total_reason, "gpu0: gone");
  gpu.reading = Reading{Joules(9), 0};
  step = a.end_step();
  EXPECT_EQ(step.scopes["gpu0"].joules, std::nullopt) << "the start of this step was not read";
  EXPECT_EQ(step.scopes["cpu-package0"].joules, std::nullopt)
      << "a counter that stands still is too slow for this step";
  gpu.reading = Reading{Joules(10), 1};
  EXPECT_NE(a.end_step().scopes["gpu0"].reason.find("lost"), std::string::npos);
}

// Steps that are shorter than a counter's updates still add up to what it counts.
TEST(Accountant, ShortStepsAddUp) {
  Scripted cpu, gpu;
  cpu.reading = Reading{Joules(5), 0}, gpu.reading = Reading{Joules(1), 0};
  Accountant a(scripted(cpu, gpu));
  const auto step = [&](double cpu_j, double gpu_j, std::int64_t gaps = 0) {
    a.begin_step();
    cpu.reading = Reading{Joules(cpu_j), 0}, gpu.reading = Reading{Joules(gpu_j), gaps};
    return a.end_step();
  };
  EXPECT_EQ(step(5, 1).added_j, 0.0);
  EXPECT_EQ(step(5, 1).total_j, std::nullopt) << "where each step stands by itself, it has none";
  EXPECT_EQ(step(8, 1).added_j, 3.0);
  EXPECT_EQ(step(8, 4).added_j, 3.0);
  cpu.reading = Reading{Joules(20), 0};
  EXPECT_EQ(step(21, 6).added_j, 3.0) << "not what was counted between the steps";
  EXPECT_EQ(step(22, 7, 1).added_j, std::nullopt) << "a gap";
  EXPECT_EQ(step(23, 9, 1).added_j, 3.0);
}

TEST(Accountant, NoMeterHasNoTotal) {
  Meters m;
  m.meters.push_back(std::make_unique<NullMeter>("cpu-package", "none here"));
  Accountant a(std::move(m));
  const StepEnergy step = a.end_step();
  EXPECT_EQ(step.total_j, std::nullopt);
  EXPECT_EQ(step.joules().at("cpu-package"), std::nullopt);
  EXPECT_EQ(step.scopes.at("cpu-package").reason, "none here");
  EXPECT_EQ(step.total_reason, "no meter");
  EXPECT_EQ(step.added_j, std::nullopt);
}

TEST(Accountant, AThreadReadsWhatMustBeReadOften) {
  Scripted cpu, gpu;
  int reads = 0;
  {
    Accountant a(scripted(cpu, gpu, 0.005));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  reads = cpu.reads;
  EXPECT_GE(reads, 5);
  EXPECT_EQ(gpu.reads, 1);
}

TEST(Replay, InterpolatesAndEnds) {
  FakeMachine f;
  f.write("r.jsonl",
          "{\"time_s\":10,\"energy_j\":{\"cpu-package0\":100,\"gpu0\":null}}\n{\"time_s\":12,\"energy_j\":{\"cpu-"
          "package0\":300,\"gpu0\":5}}\n");
  Accountant a(open_replay(f.machine, f.root() / "r.jsonl"));
  f.time += 0.5;
  const StepEnergy step = a.end_step();
  EXPECT_EQ(step.scopes.at("cpu-package0").joules, 50.0);
  EXPECT_EQ(step.scopes.at("gpu0").joules, std::nullopt);
  f.time += 1.5;
  EXPECT_EQ(a.end_step().scopes.at("cpu-package0").joules, 150.0);
  f.time += 0.1;
  EXPECT_NE(a.end_step().scopes.at("cpu-package0").reason.find("ends at 12 s"), std::string::npos);
}

TEST(Replay, RefusesHostileFiles) {
  FakeMachine f;
  const std::string good = "{\"time_s\":1,\"energy_j\":{\"a\":1}}\n";
  for (const std::string& bad :
       {std::string(), std::string("x"), std::string("[]"), std::string("{\"time_s\":1}"),
        std::string("{\"time_s\":\"1\",\"energy_j\":{\"a\":1}}"), std::string("{\"time_s\":1,\"energy_j\":{}}"),
        std::string("{\"time_s\":1,\"energy_j\":{\"a\":-1}}"), std::string("{\"time_s\":1,\"energy_j\":{\"a\":\"2\"}}"),
        good + good, good + "{\"time_s\":2,\"energy_j\":{\"a\":0.5}}", good + "{\"time_s\":2,\"energy_j\":{\"b\":2}}",
        good + "{\"time_s\":2,\"energy_j\":{\"a\":2,\"b\":2}}", good + "{\"time_s\":2,\"ene"}) {
    f.write("r.jsonl", bad);
    EXPECT_NOTED((void)open_replay(f.machine, f.root() / "r.jsonl"), UsageError) << bad;
  }
  EXPECT_NOTED((void)open_replay(f.machine, f.root() / "nowhere"), UsageError);
  f.write("r.jsonl", good + "{\"time_s\":2,\"energy_j\":{\"a\":0.5}}");
  try {
    (void)open_replay(f.machine, f.root() / "r.jsonl");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("a goes back from 1 to 0.5"), std::string::npos) << error.what();
  }
}

class FrozenPerf : public PerfEvents {
 public:
  int open(std::uint32_t, std::uint64_t, int) override { return 3; }
  int read(int, std::uint64_t& count) override { return count = 0, 0; }
  void close(int) override {}
};

OpenOptions bare(const FakeMachine& f) {
  OpenOptions o;
  o.machine = f.machine;
  o.nvml.library = "libno-such-library.so.1";
  o.perf = std::make_shared<FrozenPerf>();
  return o;
}

// On Firecracker, for example, perf offers energy-psys, which can be opened but always reads 0.
TEST(Open, ACounterThatStandsStillIsNotBelieved) {
  FakeMachine f;
  const std::string d = "sys/bus/event_source/devices/power/";
  f.write(d + "type", "9\n");
  f.write(d + "cpumask", "0\n");
  f.write(d + "events/energy-psys", "event=0x05\n");
  f.write(d + "events/energy-psys.scale", "2.3e-10\n");
  f.write("proc/cpuinfo", "flags : hypervisor\n");
  Accountant a(open_meters({"auto"}, bare(f)));
  const StepEnergy step = a.end_step();
  ASSERT_EQ(step.scopes.size(), 1u);
  EXPECT_EQ(step.joules().at("cpu-package"), std::nullopt);
  EXPECT_NE(step.scopes.at("cpu-package").reason.find("virtual machine"), std::string::npos);
  const Json j = a.describe();
  EXPECT_TRUE(j["available"].empty());
  EXPECT_NE(j["unavailable"]["rapl-perf psys"].get<std::string>().find("did not change"), std::string::npos);
  EXPECT_NE(list_text(a.meters()).find("no energy meter"), std::string::npos);
}

// A reading that failed first is no evidence that the counter moves.
TEST(Open, ACounterThatFailsOnceAndStandsStillIsNotBelieved) {
  FakeMachine f;
  f.zone("intel-rapl:0", "package-0", 7);
  int sleeps = 0;
  f.tick = [&] { f.zone("intel-rapl:0", "package-0", 7, ++sleeps); };
  f.write("sys/class/powercap/intel-rapl:0/energy_uj", "7\n");
  OpenOptions o = bare(f);
  o.machine.clock = [&, looks = 0]() mutable {  // the second look at the file finds it empty
    f.write("sys/class/powercap/intel-rapl:0/energy_uj", ++looks == 1 ? "\n" : "7\n");
    return f.time;
  };
  const Meters m = open_meters({"auto"}, o);
  for (const auto& meter : m.meters) EXPECT_EQ(meter->info().source, Source::kNone) << meter->info().scope;
}

TEST(Open, FallsBackToPowercapAndCountsPsysOnce) {
  FakeMachine f;
  std::uint64_t uj = 1000;
  const auto grow = [&] {
    uj += 1000;
    f.zone("intel-rapl:0", "package-0", uj);
    f.zone("intel-rapl:0:0", "dram", uj);
    f.zone("intel-rapl:1", "psys", uj);
  };
  grow();
  f.tick = grow;
  Accountant a(open_meters({"auto"}, bare(f)));
  grow();
  f.time += 0.1;
  const StepEnergy step = a.end_step();
  ASSERT_EQ(step.scopes.size(), 3u);
  EXPECT_NEAR(*step.scopes.at("psys").joules, 0.001, 1e-12);
  EXPECT_NEAR(*step.total_j, 0.002, 1e-12) << "package and dram; psys holds them";
  EXPECT_NE(list_text(a.meters()).find("not summed"), std::string::npos);
}

TEST(Open, AScopeIsReadByOneMeter) {
  FakeMachine f;
  const auto recorded = [&](const char* name, int watts) {
    f.write(name, fmt::format("{{\"time_s\": 0, \"energy_j\": {{\"cpu-package0\": 0}}}}\n"
                              "{{\"time_s\": 10, \"energy_j\": {{\"cpu-package0\": {}}}}}\n",
                              10 * watts));
    return "replay:" + (f.root() / name).string();
  };
  const Meters all = open_meters({recorded("a", 3), recorded("b", 5)}, bare(f));
  ASSERT_EQ(all.meters.size(), 1u);
  EXPECT_EQ(all.meters[0]->info().scope, "cpu-package0");
  ASSERT_EQ(all.unavailable.size(), 1u);
  EXPECT_EQ(all.unavailable[0].scope, "cpu-package0");
  EXPECT_EQ(all.unavailable[0].reason, "read by another meter already");
}

TEST(Open, NamesAreChecked) {
  const GoldenMessages golden;
  FakeMachine f;
  EXPECT_TRUE(open_meters({"none"}, bare(f)).meters.empty());
  EXPECT_NOTED((void)open_meters({"none", "auto"}, bare(f)), UsageError);
  EXPECT_NOTED((void)open_meters({"nvml"}, bare(f)), UsageError) << "asked for by name, and not there";
  EXPECT_NOTED((void)open_meters({"rapl"}, bare(f)), UsageError);
  try {
    (void)open_meters({"rapl-pref"}, bare(f));
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("rapl-perf"), std::string::npos);
  }
}

// Meters are read in turn: the first readings take 0.5 s each, as those of a service processor may, and the second
// none.
TEST(Accountant, TimesOfAScopeAreThoseOfItsOwnReadings) {
  class SlowMeter : public Meter {
   public:
    SlowMeter(const std::string& scope, double& time) : Meter({"slow", scope, Source::kCounter, ""}), time_(time) {}
    Result<Reading> read() override {
      time_ += reads_++ == 0 ? 0.5 : 0.0;
      return Reading{Joules(100.0 * time_), 0};
    }

   private:
    double& time_;
    int reads_ = 0;
  };
  double time = 7.0;
  Meters m;
  m.meters.push_back(std::make_unique<SlowMeter>("cpu-package0", time));
  m.meters.push_back(std::make_unique<SlowMeter>("gpu0", time));
  Accountant accountant(std::move(m), Seconds(0), [&] { return time; });  // reads at 7.5 and at 8
  time = 10.0;
  LiveReading::Line line{.seconds = 3.0, .energy = accountant.end_step()};
  EXPECT_DOUBLE_EQ(line.energy.scopes.at("cpu-package0").seconds, 2.5);
  EXPECT_DOUBLE_EQ(line.energy.scopes.at("gpu0").seconds, 2.0);
  EXPECT_DOUBLE_EQ(live_json(line)["power_w"]["cpu-package0"].get<double>(), 100.0);
  EXPECT_DOUBLE_EQ(live_json(line)["power_w"]["gpu0"].get<double>(), 100.0);
  EXPECT_NE(live_text(line).find("cpu-package0 100.0 W  gpu0 100.0 W"), std::string::npos) << live_text(line);
}

TEST(Live, PrintsWattsOrTheReason) {
  LiveReading::Line line;
  line.seconds = 2;
  line.energy.scopes["gpu0"] = {100.0, Source::kCounter, "", false, {}, 2.0};
  line.energy.scopes["cpu-package"] = {std::nullopt, Source::kNone, "no permission"};
  line.energy.total_j = 100.0;
  EXPECT_EQ(live_text(line), "cpu-package -  gpu0 50.0 W  total 50.0 W");
  const Json j = live_json(line);
  EXPECT_EQ(j["energy_j"], (Json{{"cpu-package", nullptr}, {"gpu0", 100.0}}));
  EXPECT_EQ(j["power_w"], (Json{{"cpu-package", nullptr}, {"gpu0", 50.0}}));
  EXPECT_EQ(j["reason"], (Json{{"cpu-package", "no permission"}}));
  EXPECT_EQ(j["seconds"], 2.0);
}

// gpu0 changes with every second period, as a counter of 100 ms does in periods of 50 ms.
TEST(Live, ATableHasWattsSinceTheLastChange) {
  Scripted cpu, gpu;
  const Meters meters = scripted(cpu, gpu);
  LiveTable table(meters);
  const auto add = [&](double seconds, double cpu_j, std::optional<double> gpu_j, const std::string& reason = "") {
    LiveReading::Line line;
    line.seconds = seconds;
    line.energy.scopes["cpu-package0"] = {cpu_j, Source::kCounter, "", false, {}, seconds};
    line.energy.scopes["gpu0"] = {gpu_j,  gpu_j ? Source::kPower : Source::kNone, reason, !gpu_j && reason.empty(), {},
                                  seconds};
    table.add(line);
  };
  for (int i = 0; i < 3; ++i) {
    add(0.5, 10.0, std::nullopt);
    add(0.5, 20.0, 60.0);
  }
  EXPECT_EQ(table.text(100, 10),
            "scope                     W   mean W           J\n"
            "cpu-package0           40.0     30.0        90.0  counter\n"
            "gpu0                   60.0     60.0       180.0  power\n"
            "sum                   100.0     90.0       270.0  \n");
  // A device's condition has a line of its own.
  LiveReading::Line slowed;
  slowed.seconds = 1.0;
  slowed.energy.scopes["gpu0"] = {60.0, Source::kPower, "", false, {}, 1.0};
  slowed.energy.total_j = 60.0;
  slowed.conditions["gpu0"] = "1410 of 1980 MHz, slowed by: power limit";
  LiveTable of_gpu(meters);
  of_gpu.add(slowed);
  EXPECT_NE(of_gpu.text(80, 10).find("60.0  power\n  1410 of 1980 MHz, slowed by: power limit\n"), std::string::npos)
      << of_gpu.text(80, 10);
  EXPECT_EQ(live_text(slowed), "gpu0 60.0 W (1410 of 1980 MHz, slowed by: power limit)  total 60.0 W");
  EXPECT_EQ(live_json(slowed)["condition"]["gpu0"], slowed.conditions["gpu0"]);
  slowed.conditions.clear();
  of_gpu.add(slowed);
  EXPECT_EQ(of_gpu.text(80, 10).find("1410"), std::string::npos) << of_gpu.text(80, 10);
  add(1.0, 10.0, std::nullopt, "lost \x1b[31m from the bus");
  const std::string text = table.text(60, 10);
  EXPECT_NE(text.find("gpu0                      -     60.0       180.0  lost \\x1b["), std::string::npos) << text;
  EXPECT_NE(text.find("sum                       -     85.0       280.0  gpu0 has "), std::string::npos) << text;
  for (const auto& line : {text.substr(0, text.find('\n'))}) EXPECT_LE(line.size(), 60u);
  EXPECT_EQ(table.text(100, 3), "scope                     W   mean W           J\n(2 more scopes)\n" +
                                    table.text(100, 9).substr(table.text(100, 9).rfind("sum")));
}

TEST(Unwrapper, AClockThatGoesBackIsAGap) {
  Unwrapper counter(1000, 10);
  EXPECT_EQ(counter.add(5, 100, 1.0).value().gaps, 0);
  const auto back = counter.add(9, 99, 1.0);
  ASSERT_FALSE(back);
  EXPECT_NE(back.reason().find("went back by 1.000 s"), std::string::npos);
  EXPECT_EQ(counter.add(12, 100, 1.0).value().total.value, 3.0);
  EXPECT_EQ(counter.add(12, 101, 1.0).value().gaps, 1);
}

// On any machine each scope has joules or a reason.
TEST(ThisMachine, ReadsOrSaysWhy) {
  Accountant a(open_meters({"auto"}));
  volatile double x = 1;
  for (int i = 0; i < 20000000; ++i) x = x * 1.0000001;
  const StepEnergy step = a.end_step();
  EXPECT_FALSE(step.scopes.empty());
  for (const auto& [scope, e] : step.scopes) {
    EXPECT_TRUE(e.joules.has_value() != !e.reason.empty()) << scope;
    if (e.joules) {
      EXPECT_GT(*e.joules, 0.0) << scope;
    }
  }
}

TEST(Replay, MessagesInFull) {
  const GoldenMessages golden;
  FakeMachine f;
  const auto why = [&](const std::string& text) -> std::string {
    try {
      (void)parse_replay(f.machine, text, "r");
    } catch (const UsageError& error) {
      return GoldenMessages::note(error.what());
    }
    return "";
  };
  const std::string good = "{\"time_s\":1,\"energy_j\":{\"a\":1,\"b\":2}}\n";
  const auto then = [&](const std::string& energy) { return why(good + "{\"time_s\":2,\"energy_j\":" + energy + "}"); };
  EXPECT_EQ(then("{\"a\":1,\"b\":2}"), "") << "nothing was spent";
  EXPECT_EQ(then("{\"a\":1,\"c\":2}"), "r:2: energy_j: scope 'c' is not in the lines before");
  EXPECT_EQ(then("{\"a\":1}"), "r:2: energy_j has 1 scopes, the lines before have 2");
  EXPECT_EQ(then("{\"a\":1,\"b\":1.5}"), "r:2: energy_j: b goes back from 2 to 1.5");
  EXPECT_EQ(then("{\"a\":-1,\"b\":2}"), "r:2: energy_j: a must be joules >= 0 or null");
  EXPECT_EQ(then("{\"a\":\"1\",\"b\":2}"), "r:2: energy_j: a must be joules >= 0 or null");
  EXPECT_EQ(then("[]"), "r:2: energy_j must name at least one scope");
  EXPECT_EQ(then("{}"), "r:2: energy_j must name at least one scope");
  EXPECT_EQ(why(good + good), "r:2: time_s 1 is not after 1");
  EXPECT_EQ(why("\n\n" + good + "{\"time_s\":0.5,\"energy_j\":{\"a\":1,\"b\":2}}"), "r:4: time_s 0.5 is not after 1");
  EXPECT_EQ(why("{\"time_s\":null,\"energy_j\":{\"a\":1}}"), "r:1: time_s is no number");
  EXPECT_EQ(why("\n\n"), "r: no readings");
  // A counter that decreased across a gap still counts as going back.
  EXPECT_EQ(
      why(good + "{\"time_s\":2,\"energy_j\":{\"a\":null,\"b\":2}}\n{\"time_s\":3,\"energy_j\":{\"a\":0.5,\"b\":2}}"),
      "r:3: energy_j: a goes back from 1 to 0.5");
  EXPECT_EQ(why("{\"time_s\":-1,\"energy_j\":{\"a\":0}}"), "");
}

TEST(Replay, ReadsBetweenItsPoints) {
  FakeMachine f;
  const Meters m = parse_replay(f.machine,
                                "{\"time_s\":10,\"energy_j\":{\"a\":4}}\n{\"time_s\":12,\"energy_j\":{\"a\":8}}\n"
                                "{\"time_s\":14,\"energy_j\":{\"a\":null}}\n{\"time_s\":16,\"energy_j\":{\"a\":12}}\n",
                                "r.jsonl");
  ASSERT_EQ(m.meters.size(), 1u);
  EXPECT_EQ(m.meters[0]->info().detail, "r.jsonl");
  EXPECT_EQ(m.meters[0]->info().scope, "a");
  const auto at = [&](double seconds) {
    f.time = 100 + seconds;
    return m.meters[0]->read();
  };
  EXPECT_EQ(at(0).value().total.value, 4.0);
  EXPECT_EQ(at(0.5).value().total.value, 5.0);
  EXPECT_EQ(at(2).value().total.value, 8.0) << "the point itself, beside one without a reading";
  EXPECT_EQ(at(2.5).reason(), "r.jsonl: nothing was recorded at 12.500 s");
  EXPECT_EQ(at(5).reason(), "r.jsonl: nothing was recorded at 15.000 s");
  EXPECT_EQ(at(6).value().total.value, 12.0);
  EXPECT_EQ(at(6.5).reason(), "r.jsonl: the recording ends at 16 s");
}

TEST(Replay, OfTheClockGoesOnBetweenAttempts) {
  FakeMachine f;
  f.write("r.jsonl", "{\"time_s\":101,\"energy_j\":{\"a\":4}}\n{\"time_s\":111,\"energy_j\":{\"a\":24}}\n");
  const std::vector<std::string> names{"replay-clock:" + (f.root() / "r.jsonl").string()};
  OpenOptions options;
  options.machine = f.machine;
  const auto read = [&](double time) {
    f.time = time;
    return open_meters(names, options).meters.at(0)->read();
  };
  EXPECT_NE(read(100.5).reason().find("the recording begins at 101 s"), std::string::npos);
  EXPECT_EQ(read(101).value().total.value, 4.0);
  EXPECT_EQ(read(106).value().total.value, 14.0);
  EXPECT_EQ(read(111).value().total.value, 24.0);
  EXPECT_NE(read(111.5).reason().find("ends at 111 s"), std::string::npos);
}

}  // namespace
}  // namespace molen::energy
