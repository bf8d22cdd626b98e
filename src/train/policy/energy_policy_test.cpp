// Tests the energy policy of a job on hosts that are threads, each with a fake tree of the kernel's files.
#include "train/policy/energy_policy.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <map>
#include <thread>

#include "actuate/sysfs.h"
#include "actuate/test_tree.h"
#include "base/clock.h"
#include "base/error.h"
#include "comm/threads/threads.h"
#include "daemon/client.h"
#include "daemon/server.h"

namespace molen::train {
namespace {

using actuate::FakeTree;

class TickingMeter : public energy::Meter {
 public:
  TickingMeter() : Meter({"ticking", "cpu-package0", energy::Source::kCounter, "", Seconds(0), true}) {}
  Result<energy::Reading> read() override { return energy::Reading{Joules(++joules_)}; }

 private:
  double joules_ = 0.0;
};

// A machine whose steps take longer at a lower clock, and less power: 40 W besides 60 W that go with the cube.
policy::StepReading step_at(double hz) {
  const double f = hz / 3e9, seconds = 0.1 * (0.8 + 0.2 / f);
  return {Seconds(seconds), Joules(seconds * (40.0 + 60.0 * f * f * f))};
}

class Policies : public ::testing::Test {
 protected:
  std::map<std::string, FakeTree> trees_;  // by host
  config::Config config_ = config::load(std::nullopt);
  bool metered_ = true;
  std::vector<std::int64_t> program_khz_;
  fs::path daemon_;  // the socket of the energy daemon that the job uses; empty: it has rights of its own
  fs::path journals_ = fs::temp_directory_path() / ("molen_policies_" + std::to_string(::getpid()));

  void SetUp() override { fs::remove_all(journals_); }
  void TearDown() override { fs::remove_all(journals_); }

  EnergyPolicyOptions options_of(const std::string& host) {
    EnergyPolicyOptions o;
    FakeTree& tree = trees_.at(host);
    o.open = [&tree, socket = daemon_] {
      if (socket.empty()) return actuate::open_cpufreq(tree.machine);
      actuate::Actuators without_rights;
      energy::NvmlOptions nvml;
      nvml.library = "libno-such-library.so.1";
      daemon::add_settings(without_rights, socket, nvml);
      return without_rights;
    };
    o.hold = daemon::hold;
    o.session.journals = journals_ / host;
    o.session.guardian = {MOLEN_GUARDIAN, tree.root().string()};
    o.sampling.settle_steps = 0;
    o.sampling.settle_time = Seconds(0.0);
    o.sampling.block_steps = 2;
    o.sampling.block_time = Seconds(0.0);
    return o;
  }

  // Runs `use` on a rank for each host; returns the error of each rank.
  std::vector<std::string> on(const std::vector<std::string>& hosts,
                              const std::function<void(EnergyPolicy*, comm::Communicator&)>& use) {
    for (const std::string& host : hosts)
      if (trees_.try_emplace(host).second) trees_.at(host).cpufreq();
    comm::ThreadWorld world(static_cast<int>(hosts.size()));
    std::vector<std::string> errors(hosts.size());
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < hosts.size(); ++r)
      threads.emplace_back([&, r, c = std::shared_ptr(world.communicator(static_cast<int>(r)))] {
        try {
          const auto open = [&](const auto&) {
            energy::Meters m;
            if (metered_) m.meters.push_back(std::make_unique<TickingMeter>());
            return m;
          };
          JobEnergy job(*c, {hosts[r], hosts[r], {}}, open, [](const auto&) { return false; });
          require_clocks_agree(*c, config_, program_khz_);
          const auto policy = EnergyPolicy::open(*c, job, config_, program_khz_, [&] { return options_of(hosts[r]); });
          use(policy.get(), *c);
        } catch (const UsageError& error) {
          errors[r] = error.what();
        }
      });
    threads.clear();
    return errors;
  }

  // One step, as the trainer's loop makes it.
  static void step(EnergyPolicy& policy, comm::Communicator& world, const policy::StepReading& reading) {
    if (world.rank() == 0) policy.took(reading);
    std::int32_t flags[2] = {policy.wanted(), policy.refused() ? 1 : 0};
    world.all_reduce(flags, 2, DType::kI32, comm::Reduce::kMax);
    policy.set(flags[0], flags[1] != 0);
  }
};

TEST_F(Policies, ABudgetIsAnsweredWithinAStepOnAllHosts) {
  config_.energy.power_budget = Watts(80.0);
  on({"a", "b"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
    ASSERT_NE(policy, nullptr);
    EXPECT_EQ(policy->setting(), 3e9);
    step(*policy, world, {Seconds(1.0), Joules(100.0)});
    EXPECT_LT(*policy->setting(), 3e9);
    world.barrier();
    for (const char* host : {"a", "b"})
      for (const std::int64_t khz : trees_.at(host).clocks())
        EXPECT_EQ(1e3 * static_cast<double>(khz), policy->setting()) << host;
    for (int i = 0; i < 6; ++i) step(*policy, world, step_at(*policy->setting()));
    const auto last = step_at(*policy->setting());
    EXPECT_LE(last.joules->value / last.seconds.value, 80.0);
    EXPECT_GT(*policy->setting(), 2e9) << "no lower than it must be";
    world.barrier();
    policy->end();
    EXPECT_EQ(policy->setting(), std::nullopt);
  });
  for (const char* host : {"a", "b"}) EXPECT_EQ(trees_.at(host).clocks(), actuate::State(4, 3000000)) << host;
}

TEST_F(Policies, MinEnergyChoosesAndMeasuresWhatItSaves) {
  config_.energy.policy = "min_energy";
  config_.energy.slowdown = 0.05;
  Json summary;
  std::vector<std::string> news;
  on({"a"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
    for (int i = 0; i < 600; ++i) step(*policy, world, step_at(*policy->setting()));
    summary = policy->summary();
    news = policy->take_news();
  });
  ASSERT_FALSE(summary["chosen"].is_null()) << summary;
  const double hz = summary["chosen"].get<double>();
  const auto best = step_at(hz), reference = step_at(3e9);
  EXPECT_LE(best.seconds.value, 1.05 * reference.seconds.value);
  EXPECT_LT(best.joules->value, 0.8 * reference.joules->value);
  EXPECT_EQ(summary["unit"], "Hz");
  const Json& saved = summary["savings"]["joules"];
  EXPECT_NEAR(saved["value"].get<double>(), reference.joules->value - best.joules->value, 1e-9);
  EXPECT_GE(saved["pairs"].get<int>(), 2);
  EXPECT_NE(summary["text"].get<std::string>().find("saves"), std::string::npos) << summary["text"];
  ASSERT_FALSE(news.empty());
  EXPECT_TRUE(news.front().starts_with("energy.policy min_energy: ")) << news.front();
  EXPECT_EQ(trees_.at("a").clocks(), actuate::State(4, 3000000)) << "restored when the policy is gone";
}

TEST_F(Policies, ALargerSlowdownPermitsALowerClock) {
  const auto chosen = [&](double slowdown) {
    config_.energy.policy = "min_energy";
    config_.energy.slowdown = slowdown;
    double hz = 0.0;
    on({"a"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
      for (int i = 0; i < 900; ++i) step(*policy, world, step_at(*policy->setting()));
      hz = policy->summary()["chosen"].get<double>();
    });
    return hz;
  };
  EXPECT_LT(chosen(0.15), 0.9 * chosen(0.03));
}

TEST_F(Policies, MinTimeBeginsBelowTheGreatestClock) {
  config_.energy.policy = "min_time";
  on({"a"}, [&](EnergyPolicy* policy, comm::Communicator&) {
    EXPECT_EQ(policy->summary()["settings"][4].get<double>(), *policy->setting());
    EXPECT_EQ(1e3 * static_cast<double>(trees_.at("a").clocks()[0]), *policy->setting());
  });
}

TEST_F(Policies, HostsWithLessGetTheirOwnMost) {
  trees_["small"].cpufreq(800000, 2000000);
  config_.energy.policy = "min_time";
  on({"a", "small"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
    world.barrier();
    EXPECT_LT(*policy->setting(), 3e9);
    EXPECT_GT(*policy->setting(), 2e9);
    EXPECT_EQ(trees_.at("small").clocks()[0], 2000000);
    world.barrier();
  });
}

TEST_F(Policies, ARefusalOnOneHostEndsThePolicyOnAll) {
  config_.energy.power_budget = Watts(50.0);
  on({"a", "b"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
    if (world.rank() == 1) trees_.at("b").number(trees_.at("b").policy(0), 1234000);  // another program's
    world.barrier();
    step(*policy, world, {Seconds(1.0), Joules(100.0)});
    EXPECT_EQ(policy->refused(), world.rank() == 1);
    step(*policy, world, {Seconds(1.0), Joules(100.0)});
    EXPECT_EQ(policy->setting(), std::nullopt);
    const auto news = policy->take_news();
    const auto ends = [](const std::string& text) {
      return text.find("the policy ends, and what was found is restored") != std::string::npos;
    };
    EXPECT_EQ(std::ranges::count_if(news, ends), 1) << "one host refused";
    step(*policy, world, {Seconds(1.0), Joules(100.0)});
  });
  EXPECT_EQ(trees_.at("a").clocks(), actuate::State(4, 3000000));
  EXPECT_EQ(trees_.at("b").clocks()[0], 1234000) << "the value of another program is left alone";
}

TEST_F(Policies, WithoutAMeterOrASettingTheJobIsRefusedOnAllRanks) {
  const auto refused = [&](const std::vector<std::string>& hosts, const std::string& what) {
    const auto errors = on(hosts, [](EnergyPolicy*, comm::Communicator&) { FAIL() << "accepted"; });
    for (const std::string& error : errors) EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  config_.energy.policy = "min_energy";
  metered_ = false;
  refused({"a", "b"},
          "energy.policy: needs the joules of the processors that it sets, and no meter reads them on 2 of 2 hosts");
  metered_ = true;
  trees_.try_emplace("bare");  // without files of cpufreq
  refused({"a", "bare"},
          "energy.policy: no clock and no power limit of the job's devices can be set on all hosts; a can set the "
          "clock; bare can set nothing");
}

TEST_F(Policies, AJobWithoutRightsUsesTheDaemonAndOutlivesIt) {
  FakeTree& tree = trees_["a"];
  tree.cpufreq();
  daemon::ServerOptions served;
  daemon_ = served.socket = tree.root() / "energy.sock";
  served.allowed.users = {::geteuid()};
  served.leases.open = [&tree] { return actuate::open_cpufreq(tree.machine); };
  served.leases.journals = journals_ / "leases";
  served.leases.guardian = {MOLEN_GUARDIAN, tree.root().string()};
  served.leases.ownership = daemon::Ownership(daemon::Ownership::Rule::kAnyone);
  served.clock = [] { return now().value; };
  const Descriptor stop(::eventfd(0, EFD_CLOEXEC));
  auto server = std::make_unique<daemon::Server>(energy::Meters{}, served);
  std::jthread serving([&] { server->run(stop.get()); });
  config_.energy.power_budget = Watts(80.0);
  const auto errors = on({"a"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
    EXPECT_EQ(policy->setting(), 3e9);
    step(*policy, world, {Seconds(1.0), Joules(100.0)});
    EXPECT_LT(*policy->setting(), 3e9);
    EXPECT_EQ(1e3 * static_cast<double>(tree.clocks()[0]), policy->setting());
    ::eventfd_write(stop.get(), 1);
    serving.join();
    server.reset();
    EXPECT_EQ(tree.clocks(), actuate::State(4, 3000000)) << "the daemon has restored";
    for (int i = 0; i < 3; ++i) step(*policy, world, {Seconds(1.0), Joules(100.0)});
    EXPECT_EQ(policy->setting(), std::nullopt);
    const auto news = policy->take_news();
    EXPECT_TRUE(std::ranges::any_of(news, [](const std::string& text) {
      return text.find("the policy ends, and what was found is restored: the energy daemon at ") != std::string::npos &&
             text.find("it is gone") != std::string::npos;
    })) << Json(news);
  });
  EXPECT_EQ(errors[0], "");
  if (serving.joinable()) ::eventfd_write(stop.get(), 1);
}

// In a step that is the program's, its clocks hold; in a step at the reference they do nothing. Here the program's
// clocks take no time and save a tenth.
TEST_F(Policies, SlackLeavesClocksToTheProgramAndMeasuresWhatTheySave) {
  config_.energy.policy = "slack";
  program_khz_ = {2400000, 1500000};
  Json summary;
  std::vector<std::string> news;
  const auto errors = on({"a", "b"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
    FakeTree& tree = trees_.at(world.rank() == 0 ? "a" : "b");
    int programs_own = 0;
    for (int i = 0; i < 200; ++i) {
      const auto setting = policy->setting();
      const bool own = !setting;
      if (!own) {
        EXPECT_EQ(*setting, 3e9);
        EXPECT_EQ(tree.clocks(), actuate::State(4, 3000000)) << i;
      }
      EXPECT_EQ(policy->lowers(), own);
      for (const std::int64_t khz : {2000000, 1500000, 100, 2400000}) {
        policy->set_by_program(khz);
        EXPECT_EQ(tree.clocks(), actuate::State(4, own ? std::max<std::int64_t>(khz, 800000) : 3000000));
      }
      programs_own += own;
      step(*policy, world, {Seconds(0.1), Joules(own ? 9.0 : 10.0)});
    }
    EXPECT_GT(programs_own, 100);
    if (world.rank() == 0) summary = policy->summary(), news = policy->take_news();
    policy->end();
    policy->set_by_program(1500000);
    EXPECT_EQ(tree.clocks(), actuate::State(4, 3000000)) << "restored, and set no more";
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  ASSERT_FALSE(news.empty());
  EXPECT_NE(
      news.front().find("the highest clock of the program, 2.4 GHz, is below that of cpufreq:cpu-package0, 3 GHz"),
      std::string::npos)
      << news.front();
  EXPECT_TRUE(std::ranges::any_of(news, [](const std::string& text) {
    return text.starts_with("energy.policy slack: setting the program's clocks: ");
  })) << Json(news);
  EXPECT_EQ(summary["chosen"], "program");
  EXPECT_EQ(summary["settings"], (Json{3e9, "program"}));
  EXPECT_NEAR(summary["savings"]["joules"]["value"].get<double>(), 1.0, 1e-9);
  EXPECT_NEAR(summary["savings"]["seconds"]["value"].get<double>(), 0.0, 1e-9);
}

TEST_F(Policies, SlackStaysAtTheReferenceWhereTheProgramTakesTooLong) {
  config_.energy.policy = "slack";
  config_.energy.slowdown = 0.02;
  program_khz_ = {2400000, 1500000};
  on({"a"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
    for (int i = 0; i < 200; ++i) {
      const bool own = !policy->setting();
      step(*policy, world, {Seconds(own ? 0.104 : 0.1), Joules(own ? 9.0 : 10.0)});
    }
    EXPECT_EQ(policy->summary()["chosen"].get<double>(), 3e9);
    EXPECT_EQ(policy->setting(), 3e9);
  });
}

TEST_F(Policies, ARefusalWithinAStepEndsSlackOnAllHosts) {
  config_.energy.policy = "slack";
  program_khz_ = {2400000, 1500000};
  on({"a", "b"}, [&](EnergyPolicy* policy, comm::Communicator& world) {
    for (int i = 0; policy->setting() && i < 100; ++i) step(*policy, world, {Seconds(0.1), Joules(10.0)});
    ASSERT_FALSE(policy->setting()) << "the program's turn";
    policy->set_by_program(2000000);
    if (world.rank() == 1) trees_.at("b").number(trees_.at("b").policy(0), 1234000);  // another program's
    policy->set_by_program(1500000);
    EXPECT_EQ(policy->refused(), world.rank() == 1);
    world.barrier();
    step(*policy, world, {Seconds(0.1), Joules(10.0)});
    EXPECT_FALSE(policy->lowers());
    policy->set_by_program(1000000);
  });
  EXPECT_EQ(trees_.at("a").clocks(), actuate::State(4, 3000000));
  EXPECT_EQ(trees_.at("b").clocks()[0], 1234000);
}

TEST_F(Policies, SlackAndTheProgramMustAgree) {
  const auto refused = [&](const std::vector<std::string>& hosts, const std::string& what) {
    for (const std::string& error : on(hosts, [](EnergyPolicy*, comm::Communicator&) { FAIL() << "accepted"; }))
      EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  config_.energy.policy = "slack";
  refused({"a", "b"}, "the program of rank 0 has no op that sets one");
  program_khz_ = {2400000, 1500000};
  refused({"a", "a"}, "energy.policy: 2 ranks run on 1 hosts");
  for (const std::vector<std::int64_t>& khz : {std::vector<std::int64_t>{3000001, 1500000}, {2000000, 799999}}) {
    program_khz_ = khz;
    refused({"a"}, "and cpufreq:cpu-package0 can be set from 0.8 GHz to 3 GHz here");
  }
  for (const char* name : {"none", "monitor", "min_energy"}) {
    config_.energy.policy = name;
    refused({"a"}, "sets clocks (set_clock), which needs energy.policy = \"slack\"");
  }
  config_.energy.policy = "none";
  config_.energy.power_budget = Watts(50.0);
  refused({"a"}, "needs energy.policy = \"slack\" and no energy.power_budget");
}

TEST_F(Policies, NothingIsSetWhereNothingIsAskedFor) {
  for (const char* name : {"none", "monitor"}) {
    config_.energy.policy = name;
    on({"a"}, [](EnergyPolicy* policy, comm::Communicator&) { EXPECT_EQ(policy, nullptr); });
  }
}

TEST_F(Policies, AnotherJobIsRefused) {
  config_.energy.policy = "min_energy";
  on({"a"}, [&](EnergyPolicy* policy, comm::Communicator&) {
    ASSERT_NE(policy, nullptr);
    const auto errors = on({"a"}, [](EnergyPolicy*, comm::Communicator&) { FAIL() << "accepted"; });
    EXPECT_NE(errors[0].find("energy.policy: "), std::string::npos) << errors[0];
  });
}

}  // namespace
}  // namespace molen::train
