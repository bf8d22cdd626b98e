// Tests the joules of several hosts. Threads act as ranks on hosts of their own, with recorded meters and one clock.
#include "train/observe/job_energy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <deque>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "comm/threads/threads.h"
#include "energy/open.h"
#include "energy/replay.h"
#include "energy/test_processors.h"

namespace molen::train {
namespace {

using OfHosts = std::map<std::string, energy::HostEnergy>;
using RecordedLines = std::vector<std::string>;  // lines of a recording

// Makes a recording of {scope: watts}, constant for 1000 s.
RecordedLines constant(const std::vector<std::pair<std::string, double>>& watts) {
  RecordedLines lines;
  for (const double t : {0.0, 1000.0}) {
    Json joules = Json::object();
    for (const auto& [scope, w] : watts) joules[scope] = w * t;
    lines.push_back(Json{{"time_s", t}, {"energy_j", joules}}.dump());
  }
  return lines;
}

// 10 W of memory, as samples of power would give it.
class SampledMeter : public energy::Meter {
 public:
  explicit SampledMeter(const std::atomic<double>& time)
      : Meter({"hwmon", "dram0", energy::Source::kPower, "samples", Seconds(0), true}), time_(time) {}
  Result<energy::Reading> read() override { return energy::Reading{Joules(10.0 * time_), 0, 0}; }
  std::string doubt() const override { return time_ > 15 ? "too little" : ""; }

 private:
  const std::atomic<double>& time_;
};

// A controller that is asked over the network.
class RemoteMeter : public energy::Meter {
 public:
  explicit RemoteMeter(const std::string& asked)
      : Meter({"redfish", "node", energy::Source::kPower, asked, Seconds(0), true, 0, Seconds(0), asked}) {}
  Result<energy::Reading> read() override { return energy::Reading{Joules(0), 0, 0}; }
};

class Hosts : public ::testing::Test {
 protected:
  fs::path folder_ = fs::temp_directory_path() / ("molen_job_energy_" + std::to_string(::getpid()));
  std::atomic<double> time_ = 0;
  std::atomic<int> opened_ = 0;
  std::map<std::string, std::string> visible_of_, amd_of_;  // devices that each host's meters were opened for
  std::map<std::string, std::string> asked_of_;             // controllers that hosts ask
  std::mutex mutex_;

  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  void record(const std::string& host, const RecordedLines& lines) {
    std::ofstream out(folder_ / host);
    for (const auto& line : lines) out << line << "\n";
  }

  energy::Meters open(const std::string& host, const energy::VisibleGpus& visible) {
    ++opened_;
    const std::lock_guard lock(mutex_);
    visible_of_[host] = visible.nvidia.value_or("all");
    amd_of_[host] = visible.amd.value_or("all");
    energy::Meters none;
    none.unavailable.push_back({"rapl", "cpu-package", "Permission denied"});
    if (host == "sampled") {  // a power that the test's clock integrates
      energy::Meters sampled;
      sampled.meters.push_back(std::make_unique<SampledMeter>(time_));
      return sampled;
    }
    if (const auto asked = asked_of_.find(host); asked != asked_of_.end()) {
      energy::Meters remote;
      remote.meters.push_back(std::make_unique<RemoteMeter>(asked->second));
      return remote;
    }
    if (!fs::exists(folder_ / host)) return none;
    energy::OpenOptions o;
    o.machine.clock = [this] { return time_.load(); };
    return energy::open_meters({"replay:" + (folder_ / host).string()}, o);
  }

  // Runs `use(job, world)` on one rank for each element of `hosts`; the element is the rank's host.
  void on(const std::vector<EnergyHost>& hosts, const std::function<void(JobEnergy&, comm::Communicator&)>& use,
          Seconds sample_every = Seconds(0), const OpenModel& open_model = {}) {
    comm::ThreadWorld world(static_cast<int>(hosts.size()));
    // The first error is the one reported: the ranks that still wait for the one that fails get errors too.
    std::mutex mutex;
    std::exception_ptr first;
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < hosts.size(); ++r)
        threads.emplace_back([&, r, c = std::shared_ptr(world.communicator(static_cast<int>(r)))] {
          try {
            JobEnergy job(
                *c, hosts[r], [&](const auto& visible) { return open(hosts[r].name, visible); },
                [](const auto&) { return false; }, sample_every, open_model);
            use(job, *c);
          } catch (...) {
            {
              const std::lock_guard lock(mutex);
              if (!first) first = std::current_exception();
            }
            c->abort("failed");
          }
        });
    }
    if (first) std::rethrow_exception(first);
  }

  // Runs one step that takes `seconds`; two other values are summed with its joules.
  energy::StepEnergy step(JobEnergy& job, comm::Communicator& world, double seconds) {
    world.barrier();
    job.begin_step();
    world.barrier();
    if (world.rank() == 0) time_ = time_ + seconds;
    world.barrier();
    std::vector<double> sums{1, 2};
    job.end_step(sums);
    EXPECT_EQ(sums.size(), 2 + job.values());
    world.all_reduce(sums.data(), static_cast<std::int64_t>(sums.size()), DType::kF64, comm::Reduce::kSum);
    EXPECT_EQ(sums[0], world.size());
    return job.step(std::span(sums).subspan(2));
  }
};

EnergyHost at(const std::string& name, std::optional<std::string> visible = {}) {
  return {"boot-" + name, name, {std::move(visible), {}}};
}

TEST_F(Hosts, JoulesOfAStepAreTheSumOverHosts) {
  record("a", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  record("b", constant({{"cpu-package0", 30}, {"dram0", 4}}));
  // Two ranks per host, in mixed order.
  on({at("a"), at("b"), at("b"), at("a")}, [&](JobEnergy& job, comm::Communicator& world) {
    for (const double seconds : {2.0, 0.5}) {
      const auto e = step(job, world, seconds);
      EXPECT_DOUBLE_EQ(e.scopes.at("cpu-package0").joules.value(), 80 * seconds);
      EXPECT_DOUBLE_EQ(e.scopes.at("dram0").joules.value(), 12 * seconds);
      EXPECT_DOUBLE_EQ(e.total_j.value(), 92 * seconds);
      EXPECT_DOUBLE_EQ(e.so_far_j.value(), 92 * (seconds == 2.0 ? 2.0 : 2.5));
      EXPECT_DOUBLE_EQ(e.added_j.value(), 92 * seconds);
      EXPECT_EQ(e.sources().at("dram0"), "counter");
    }
    EXPECT_EQ(job.coverage().hosts, 2);
    EXPECT_EQ(job.coverage().partial(), "");
    EXPECT_TRUE(job.describe()["available"].contains("b: dram0")) << job.describe();
    const auto used = job.so_far();
    EXPECT_DOUBLE_EQ(used.total_j.value(), 92 * 2.5);
    EXPECT_DOUBLE_EQ(used.joules.at("cpu-package0"), 80 * 2.5);
    EXPECT_TRUE(used.lost.empty());
    const std::vector<std::string> both{"cpu-package0", "dram0"};
    const OfHosts hosts{{"a", {58 * 2.5, both, {}}}, {"b", {34 * 2.5, both, {}}}};
    EXPECT_EQ(used.by_host, world.rank() == 0 ? hosts : OfHosts{});
  });
  EXPECT_EQ(opened_, 2) << "one rank a host";
}

// Two nodes that ask one controller would count each joule twice.
TEST_F(Hosts, ThatAskOneControllerAreRefused) {
  asked_of_ = {{"a", "https://bmc/power#/W"}, {"b", "https://bmc/power#/W"}, {"c", "https://c-bmc/power#/W"}};
  std::atomic<int> used = 0;
  on({at("a"), at("a"), at("c")}, [&](JobEnergy&, comm::Communicator& world) { used += world.rank() == 0; });
  EXPECT_EQ(used, 1) << "two ranks of a host ask once";
  try {
    on({at("a"), at("c"), at("b")}, [](JobEnergy&, comm::Communicator&) {});
    ADD_FAILURE() << "two hosts with one controller";
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()),
              "energy.meters: the hosts a and b both ask https://bmc/power#/W, whose joules would count twice; write "
              "{host} in the URL, which stands for the name of each host, as in redfish:https://{host}-bmc");
  }
}

// Two hosts have one name, as containers may, and one has no meter.
TEST_F(Hosts, EachHostIsListedWithTheScopesThatItRead) {
  record("box", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  EnergyHost other = at("box");
  other.id = "other";
  on({at("box"), other, at("c")}, [&](JobEnergy& job, comm::Communicator& world) {
    (void)step(job, world, 2);
    const auto used = job.so_far();
    const energy::HostEnergy box{58 * 2.0, {"cpu-package0", "dram0"}, {}};
    const OfHosts hosts{{"box", box}, {"box'", box}, {"c", {std::nullopt, {}, {}}}};
    EXPECT_EQ(used.by_host, world.rank() == 0 ? hosts : OfHosts{});
  });
}

TEST_F(Hosts, ResolutionsAddUpOverHostsAndOneUnknownMakesTheSumUnknown) {
  record("a", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  record("b", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  constexpr double kTick = 1e-6;
  on({at("a"), at("b")}, [&](JobEnergy& job, comm::Communicator& world) {
    const auto e = step(job, world, 2);
    EXPECT_GT(e.scopes.at("dram0").resolution_j.value(), 2 * kTick) << "that of both";
    EXPECT_GT(e.total_resolution_j.value(), 4 * kTick);
    EXPECT_GT(job.so_far().resolution_j.at("dram0").value(), 2 * kTick);
  });
  on({at("a"), at("sampled")}, [&](JobEnergy& job, comm::Communicator& world) {
    const auto e = step(job, world, 2);
    EXPECT_DOUBLE_EQ(e.scopes.at("dram0").joules.value(), 36.0);
    EXPECT_EQ(e.scopes.at("dram0").resolution_j, std::nullopt);
    EXPECT_EQ(e.total_resolution_j, std::nullopt);
    EXPECT_EQ(job.so_far().resolution_j.at("dram0"), std::nullopt);
    EXPECT_TRUE(job.so_far().resolution_j.at("cpu-package0"));
  });
}

// The account of all hosts adds up to what their counters counted. So few changes of a counter divide nothing among
// phases, which the account says.
TEST_F(Hosts, PhasesAddUpToTheCountersOfAllHosts) {
  record("a", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  record("b", constant({{"cpu-package0", 30}}));
  const Seconds never(1e9);
  const auto use = [&](JobEnergy& job, comm::Communicator& world) {
    EXPECT_FALSE(job.phases_due());
    for (const double seconds : {2.0, 0.5}) step(job, world, seconds);
    const Json phases = job.so_far().phases;
    if (world.rank() != 0) {
      EXPECT_EQ(phases, Json::object());
      return;
    }
    const Json& cpu = phases.at("cpu-package0");
    EXPECT_EQ(cpu["ticks"], 200'000'000);
    EXPECT_EQ(cpu["joules"], 200.0);
    EXPECT_EQ(cpu["hosts"], 2);
    EXPECT_EQ(cpu["entries"]["unattributed"]["ticks"], 200'000'000);
    EXPECT_NE(cpu["not_attributed"]["a"].get<std::string>().find("the lag is estimated from"), std::string::npos);
    EXPECT_EQ(phases.at("dram0")["joules"], 20.0);
    EXPECT_EQ(phases.at("dram0")["hosts"], 1);
    EXPECT_FALSE(phases.at("dram0")["not_attributed"].contains("b"));
  };
  on({at("a"), at("b"), at("b"), at("a")}, use, never);
}

TEST_F(Hosts, WithoutCountersThereAreNoPhases) {
  on(
      {at("a"), at("b")},
      [&](JobEnergy& job, comm::Communicator&) {
        EXPECT_EQ(job.so_far().phases, Json::object());
        EXPECT_FALSE(job.phases_due());
      },
      Seconds(1e9));
}

// Opens models of a package of 40 to 140 W on machines of four processors that are busy all the time.
class ModelHosts : public Hosts {
 protected:
  OpenModel model() {
    return [this](const energy::Meters& measured, bool gpus, const energy::VisibleGpus&,
                  const std::optional<std::string>& cpus) {
      const std::lock_guard lock(mutex_);
      cpus_.push_back(cpus.value_or("unknown"));
      auto& processors = processors_.emplace_back();
      energy::ModelOptions o;
      o.machine = processors.machine.machine;
      o.machine.clock = [this, &processors] {  // the kernel's times pass with the clock of the meters
        processors.pass_to(time_.load(), 1.0);
        return time_.load();
      };
      o.cpus = cpus;
      energy::PowerFigures figures;
      figures.by_cpus.push_back(
          {"cpu-package0", energy::PowerCurve({{0.0, {40, 30, 50}}, {1.0, {140, 120, 160}}}), "test figures"});
      figures.lacking = "test figures would be needed";
      return energy::open_model(figures, measured, gpus, o);
    };
  }
  std::deque<energy::FakeProcessors> processors_;
  std::vector<std::string> cpus_;
};

EnergyHost with_cpus(const std::string& name, const std::string& cpus) {
  EnergyHost host{"boot-" + name, name, {}, {}};
  host.cpus = cpus;
  return host;
}

TEST_F(ModelHosts, WhatNoMeterReadsIsEstimatedBesideWhatIsMeasured) {
  record("a", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  record("b", constant({{"dram0", 4}}));
  const auto use = [&](JobEnergy& job, comm::Communicator& world) {
    const auto e = step(job, world, 2.0);
    ASSERT_EQ(e.modelled.scopes.size(), 1u);
    const energy::Estimate& package = e.modelled.scopes.at("cpu-package0").value();
    EXPECT_DOUBLE_EQ(package.value, 0.75 * 280) << "host b's, of three of its four processors";
    EXPECT_DOUBLE_EQ(package.least, 0.75 * 240);
    EXPECT_DOUBLE_EQ(package.most, 0.75 * 320);
    EXPECT_DOUBLE_EQ(e.modelled.total()->value, 0.75 * 280);
    EXPECT_DOUBLE_EQ(e.scopes.at("dram0").joules.value(), 24.0);
    EXPECT_EQ(e.scopes.at("cpu-package0").joules, std::nullopt) << "an estimate replaces no reading";
    const auto used = job.so_far();
    EXPECT_DOUBLE_EQ(used.modelled.scopes.at("cpu-package0")->value, 0.75 * 280);
    EXPECT_DOUBLE_EQ(used.joules.at("cpu-package0"), 100.0);
    EXPECT_EQ(job.coverage().partial(), "without part of cpu") << "an estimate covers nothing";
    const Json described = job.describe_model();
    EXPECT_EQ(described["scopes"]["cpu-package0"]["hosts"], 1);
    EXPECT_EQ(described["scopes"]["cpu-package0"]["share"], 0.75);
    EXPECT_EQ(described["scopes"]["cpu-package0"]["figures"], "test figures");
  };
  on({with_cpus("a", "0-3"), with_cpus("b", "0"), with_cpus("b", "2-3"), with_cpus("a", "0-3")}, use, Seconds(0),
     model());
  std::sort(cpus_.begin(), cpus_.end());
  EXPECT_EQ(cpus_, (std::vector<std::string>{"0,1,2,3", "0,2,3"})) << "those of all ranks of a host";
}

// All values that metrics, totals, budgets and policies take are the same bits with and without a model.
TEST_F(ModelHosts, MeasuredJoulesAreTheSameBitsWithAndWithoutAModel) {
  record("a", constant({{"dram0", 8.1}, {"gpu0", 301.7}}));
  const auto measured = [&](const OpenModel& open_model) {
    std::vector<std::uint64_t> bits;
    const auto put = [&](const std::optional<double>& value) {
      bits.push_back(value ? std::bit_cast<std::uint64_t>(*value) : 0);
    };
    time_ = 0;
    on(
        {with_cpus("a", "0-3"), with_cpus("a", "0-3")},
        [&](JobEnergy& job, comm::Communicator& world) {
          for (const double seconds : {0.3, 1.7, 0.001}) {
            const auto e = step(job, world, seconds);
            if (world.rank() != 0) continue;
            EXPECT_EQ(e.modelled.scopes.empty(), open_model == nullptr);
            for (const auto& [scope, read] : e.scopes) put(read.joules);
            for (const auto& value : {e.total_j, e.so_far_j, e.added_j}) put(value);
          }
          const auto used = job.so_far();
          if (world.rank() != 0) return;
          put(used.total_j);
          for (const auto& [scope, joules] : used.joules) put(joules);
          const auto totals = energy::add({}, 3, 300, used, job.coverage());
          put(totals.total_j), put(totals.spent_total_j), put(totals.j_per_token());
          EXPECT_EQ(totals.partial(), "dram+gpu only");
        },
        Seconds(0), open_model);
    return bits;
  };
  const auto off = measured({}), with = measured(model());
  EXPECT_EQ(off.size(), 3u * 5 + 6);
  EXPECT_EQ(off, with);
}

TEST_F(ModelHosts, FiguresThatModelNothingStopTheStartOnAllRanks) {
  const OpenModel none = [](const energy::Meters& measured, bool gpus, const auto&, const auto&) {
    energy::PowerFigures figures;
    figures.lacking = "test figures would be needed";
    return energy::open_model(figures, measured, gpus, {});
  };
  record("a", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  const auto nothing = [](JobEnergy&, comm::Communicator&) { FAIL() << "started"; };
  try {
    on({at("a"), at("b")}, nothing, Seconds(0), none);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    const std::string what = error.what();
    for (const char* said : {"b: energy.model", "cpu, dram", "test figures would be needed"})
      EXPECT_NE(what.find(said), std::string::npos) << what;
  }
  on(
      {at("a")}, [](JobEnergy& job, comm::Communicator&) { EXPECT_TRUE(job.describe_model()["scopes"].empty()); },
      Seconds(0), none);
}

TEST_F(Hosts, OneHostWithoutMetersMakesNullWithItsReason) {
  record("a", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  on({at("a"), at("b")}, [&](JobEnergy& job, comm::Communicator& world) {
    const auto e = step(job, world, 2);
    EXPECT_EQ(e.scopes.at("cpu-package0").joules, std::nullopt);
    EXPECT_EQ(e.scopes.at("cpu-package0").reason, "b: no meter");
    EXPECT_EQ(e.sources().at("cpu-package0"), "none");
    EXPECT_EQ(e.total_j, std::nullopt);
    EXPECT_EQ(e.total_reason, "b: no meter");
    EXPECT_EQ(job.coverage().partial(), "without part of cpu, part of dram");
    EXPECT_EQ(job.describe()["unavailable"]["b: rapl cpu-package"], "Permission denied");
    // A run's total includes what could be read; its coverage says what is missing.
    EXPECT_DOUBLE_EQ(job.so_far().total_j.value(), 58 * 2.0);
  });
}

TEST_F(Hosts, AHostWithFewerScopesKeepsTheTotalOfWhatIsSummed) {
  record("a", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  record("b", constant({{"cpu-package0", 30}}));
  on({at("a"), at("b")}, [&](JobEnergy& job, comm::Communicator& world) {
    const auto e = step(job, world, 1);
    EXPECT_DOUBLE_EQ(e.scopes.at("cpu-package0").joules.value(), 80);
    EXPECT_EQ(e.scopes.at("dram0").reason, "b: no meter");
    EXPECT_DOUBLE_EQ(e.total_j.value(), 88);
    EXPECT_EQ(job.coverage().partial(), "without part of dram");
  });
}

TEST_F(Hosts, AReadingThatFailsOnOneHostIsNullInThatStepOnly) {
  record("a", constant({{"cpu-package0", 50}}));
  record("b", {R"({"time_s":0,"energy_j":{"cpu-package0":0}})", R"({"time_s":10,"energy_j":{"cpu-package0":100}})",
               R"({"time_s":11,"energy_j":{"cpu-package0":null}})", R"({"time_s":12,"energy_j":{"cpu-package0":120}})",
               R"({"time_s":50,"energy_j":{"cpu-package0":500}})"});
  on({at("a"), at("b")}, [&](JobEnergy& job, comm::Communicator& world) {
    EXPECT_DOUBLE_EQ(step(job, world, 5).total_j.value(), 300);
    const auto lost = step(job, world, 6);
    EXPECT_EQ(lost.total_j, std::nullopt);
    if (world.rank() == 0)
      EXPECT_EQ(lost.scopes.at("cpu-package0").reason, "no reading in this step on 1 of 2 hosts");
    else
      EXPECT_NE(lost.total_reason.find("nothing was recorded"), std::string::npos) << lost.total_reason;
    (void)step(job, world, 4);
    EXPECT_DOUBLE_EQ(step(job, world, 5).total_j.value(), 300);
  });
}

// A meter that fails at the end has lost what followed its last reading. So many hosts have lost something.
TEST_F(Hosts, LostReadingsAreCountedByHost) {
  const std::vector<std::string> failing{R"({"time_s":0,"energy_j":{"cpu-package0":0,"dram0":0}})",
                                         R"({"time_s":4,"energy_j":{"cpu-package0":40,"dram0":4}})",
                                         R"({"time_s":50,"energy_j":{"cpu-package0":null,"dram0":50}})"};
  for (const char* name : {"a", "b"}) record(name, failing);
  record("c", constant({{"cpu-package0", 50}, {"dram0", 8}}));
  on({at("a"), at("b"), at("c")}, [&](JobEnergy& job, comm::Communicator& world) {
    (void)step(job, world, 2);
    (void)step(job, world, 10);
    const auto used = job.so_far();
    EXPECT_EQ(used.lost, (std::map<std::string, std::int64_t>{{"cpu-package0", 2}}));
    if (world.rank() != 0) return;
    const std::vector<std::string> both{"cpu-package0", "dram0"};
    EXPECT_EQ(used.by_host.at("a").lost, (std::vector<std::string>{"cpu-package0"}));
    EXPECT_EQ(used.by_host.at("a").scopes, both) << "it was read, for a while";
    EXPECT_EQ(used.by_host.at("c"), (energy::HostEnergy{58 * 12.0, both, {}}));
  });
}

// A meter that contradicts itself is named with its host, from when it does.
TEST_F(Hosts, DoubtsOfAMeterNameItsHost) {
  record("a", constant({{"dram0", 8}}));
  on({at("a"), at("sampled")}, [&](JobEnergy& job, comm::Communicator& world) {
    (void)step(job, world, 10);
    EXPECT_TRUE(job.so_far().doubts.empty());
    (void)step(job, world, 10);
    const auto used = job.so_far();
    EXPECT_EQ(used.total_j, 18.0 * 20) << "its joules stay in the sum";
    if (world.rank() == 0) {
      EXPECT_EQ(used.doubts, (std::map<std::string, std::string>{{"dram0", "sampled: too little"}}));
    }
  });
  on({at("sampled")}, [&](JobEnergy& job, comm::Communicator& world) {
    (void)step(job, world, 10);
    EXPECT_EQ(job.so_far().doubts.at("dram0"), "too little") << "there is one host";
  });
  EnergyHost other = at("sampled");
  other.id += "2";  // another machine of that name
  on({at("sampled"), other}, [&](JobEnergy& job, comm::Communicator& world) {
    (void)step(job, world, 10);
    const auto used = job.so_far();
    if (world.rank() == 0) {
      EXPECT_EQ(used.doubts.at("dram0"), "sampled: too little; sampled': too little");
    }
  });
}

// Each host has a file of its own, with the job's sums; the last readings are there without a step or an end. The scope
// of an earlier attempt that nobody reads now is handed on.
TEST_F(Hosts, LastReadingsAreInAFile) {
  record("a", constant({{"cpu-package0", 50}, {"gpu0", 300}}));
  record("b", constant({{"cpu-package0", 70}}));
  const fs::path rings = folder_ / "energy";
  std::vector<std::string> problems;
  on({at("a"), at("a"), at("b")}, [&](JobEnergy& job, comm::Communicator& world) {
    const bool root = world.rank() == 0;  // the other ranks' values are not used
    EXPECT_TRUE(
        job.keep_readings(rings, root ? store::EnergyRingHead{4, 2, 1, {}, {{{"gpu0", 11.0}, {"node", 5.0}}, 16.0}}
                                      : store::EnergyRingHead{9, 9, 9, {}, {{{"gpu0", 9.0}}, 9.0}})
            .empty());
    (void)step(job, world, 3);
    if (root) {
      const auto now = store::read_consumed(rings, problems);
      EXPECT_EQ(now.value().of_attempt.by_scope.at("cpu-package0"), 360.0);
      EXPECT_EQ(now.value().ended_at, -1);
    }
    world.barrier();
    (void)step(job, world, 1);
    job.end(7);
  });
  EXPECT_FALSE(fs::exists(store::energy_ring_file(rings, 4, 1))) << "rank 1 reads no meters";
  const auto consumed = store::read_consumed(rings, problems);
  ASSERT_TRUE(consumed);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(consumed->attempt, 4);
  EXPECT_EQ(consumed->history, 2);
  EXPECT_EQ(consumed->ended_at, 7);
  EXPECT_EQ(consumed->of_attempt.by_scope, (std::map<std::string, double>{{"cpu-package0", 480.0}, {"gpu0", 1200.0}}));
  EXPECT_EQ(consumed->of_attempt.total, 1680.0);
  EXPECT_EQ(consumed->spent.by_scope,
            (std::map<std::string, double>{{"cpu-package0", 480.0}, {"gpu0", 1211.0}, {"node", 5.0}}));
  EXPECT_EQ(consumed->spent.total, 1696.0);
}

// An attempt without meters hands the sums on as well.
TEST_F(Hosts, WithoutMetersTheSumsAreHandedOn) {
  const fs::path rings = folder_ / "energy";
  std::vector<std::string> problems;
  on({at("a"), at("b")}, [&](JobEnergy& job, comm::Communicator&) {
    EXPECT_TRUE(job.keep_readings(rings, {3, 1, 1, {}, {{{"gpu0", 11.0}}, 11.0}}).empty());
    job.end(2);
  });
  const auto consumed = store::read_consumed(rings, problems);
  ASSERT_TRUE(consumed);
  EXPECT_EQ(consumed->attempt, 3);
  EXPECT_EQ(consumed->spent.by_scope, (std::map<std::string, double>{{"gpu0", 11.0}}));
  EXPECT_EQ(consumed->spent.total, 11.0);
  EXPECT_EQ(consumed->of_attempt.total, 0.0);
}

// Readings at 0, 2, 3 and 5 s of the recording; the times of points are those of the steady clock, at which they were
// taken. A counter that did not change makes no point.
TEST_F(Hosts, PowerFollowsTheReadings) {
  record("a", constant({{"cpu-package0", 50}, {"gpu0", 300}}));
  on({at("a")}, [&](JobEnergy& job, comm::Communicator& world) {
    EXPECT_TRUE(job.power_between(0, now_ns()).empty());
    const std::int64_t begun = now_ns();
    (void)job.keep_readings(folder_ / "energy", {});
    std::vector<std::int64_t> read_ns;
    for (const double seconds : {2.0, 1.0, 0.0, 2.0}) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      (void)step(job, world, seconds);
      read_ns.push_back(now_ns());
    }
    const auto points = job.power_between(begun, now_ns());
    ASSERT_EQ(points.size(), 6U) << "three changes of two scopes";
    for (const std::string scope : {"cpu-package0", "gpu0"}) {
      std::vector<JobEnergy::Power> of_scope;
      for (const auto& p : points)
        if (p.scope == scope) of_scope.push_back(p);
      // Each point's power lasts until the next one, so the first two have the joules of 2 s and of 1 s.
      const double watts = scope == "gpu0" ? 300 : 50;
      for (const auto& [i, seconds] : {std::pair{0, 2.0}, {1, 1.0}}) {
        const double lasts = of_scope.at(i + 1).time_s - of_scope.at(i).time_s;
        EXPECT_NEAR(of_scope[i].watts * lasts, watts * seconds, 1e-3 * watts) << scope;  // times are whole ns
      }
    }
    EXPECT_TRUE(job.power_between(now_ns(), now_ns() + 1000).empty());
    // Only what overlaps; a point that began before begins at the start.
    const auto later = job.power_between(read_ns[2], now_ns());
    ASSERT_EQ(later.size(), 2U);
    EXPECT_EQ(later[0].time_s, 0.0);
  });
}

TEST_F(Hosts, AFileThatCannotBeMadeIsSaidOnAllRanks) {
  record("a", constant({{"cpu-package0", 50}}));
  record("b", constant({{"cpu-package0", 50}}));
  std::ofstream(folder_ / "energy") << "in the way";
  on({at("a"), at("b")}, [&](JobEnergy& job, comm::Communicator& world) {
    const auto problems = job.keep_readings(folder_ / "energy", {});
    ASSERT_EQ(problems.size(), 2U);
    EXPECT_TRUE(problems[0].starts_with("a: the readings of the meters")) << problems[0];
    EXPECT_EQ(step(job, world, 2).total_j, 200.0) << "the joules are counted all the same";
  });
}

TEST_F(Hosts, OneHostIsItsAccountant) {
  record("a", constant({{"cpu-package0", 50}, {"gpu0", 300}}));
  on({at("a"), at("a"), at("a")}, [&](JobEnergy& job, comm::Communicator& world) {
    const auto e = step(job, world, 3);
    EXPECT_EQ(e.total_j, 1050.0) << "bit for bit";
    EXPECT_TRUE(job.describe()["available"].contains("gpu0"));
    // The clock does not advance here, so the counters do not change. That must not count as 0 J.
    if (world.rank() == 0)
      EXPECT_EQ(step(job, world, 0).total_reason, "cpu-package0: the counter did not change in this time");
    else
      (void)step(job, world, 0);
    EXPECT_EQ(job.coverage().partial(), "cpu+gpu only");
  });
  EXPECT_EQ(opened_, 1);
}

TEST_F(Hosts, ARankWithDevicesOfItsOwnAddsThemToItsHost) {
  record("a", constant({{"gpu0", 300}}));
  on({at("a", "0,1"), at("b", "2"), at("a", "1,3,-1,5"), at("b")}, [](JobEnergy&, comm::Communicator&) {});
  EXPECT_EQ(visible_of_.at("a"), "0,1,3");
  EXPECT_EQ(visible_of_.at("b"), "all") << "one rank sees all";
  on({at("c", ""), at("c", "-1")}, [](JobEnergy&, comm::Communicator&) {});
  EXPECT_EQ(visible_of_.at("c"), "");
  // A launcher may set the lists of both makers; each is merged by itself.
  EnergyHost first = at("d", "0"), second = at("d", "1");
  first.visible.amd = "4", second.visible.amd = "4,6";
  on({first, second}, [](JobEnergy&, comm::Communicator&) {});
  EXPECT_EQ(visible_of_.at("d"), "0,1");
  EXPECT_EQ(amd_of_.at("d"), "4,6");
}

TEST_F(Hosts, AMeterMissingOnOneHostIsAnErrorOnAll) {
  record("a", constant({{"cpu-package0", 50}}));
  record("b", {"{"});
  comm::ThreadWorld world(2);
  std::vector<std::string> said(2);
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 2; ++r)
      threads.emplace_back([&, r, c = std::shared_ptr(world.communicator(r))] {
        const std::string name = r == 0 ? "a" : "b";
        try {
          JobEnergy job(
              *c, at(name), [&](const auto& v) { return open(name, v); }, [](const auto&) { return false; });
        } catch (const UsageError& e) {
          said[static_cast<std::size_t>(r)] = e.what();
        }
      });
  }
  EXPECT_EQ(said[0].rfind("b: ", 0), 0u) << said[0];
  EXPECT_EQ(said[0], said[1]);
}

}  // namespace
}  // namespace molen::train
