// The limits of the site's manager: how they are set, how jobs live with them, and how they end.
#include "daemon/power_limits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "daemon/limit_client.h"
#include "daemon/test_daemon.h"

namespace molen::daemon {
namespace {

constexpr const char* kLimit0 = "powercap:cpu-package0";
constexpr const char* kFile = "sys/class/powercap/intel-rapl:0/constraint_1_power_limit_uw";
constexpr std::int64_t kFound = 330000000, kLeast = 175000000;
const Peer kOwner{1001, 1001};

actuate::ActuatorInfo with_lock(actuate::ActuatorInfo info, const fs::path& lock) {
  info.lock = lock;
  return info;
}

// The power limit of a package, of the same device as its clocks, as NVML has both for a GPU.
class LimitOfDevice : public actuate::Actuator {
 public:
  LimitOfDevice(const Actuator& like, const fs::path& lock, const actuate::FakeTree& tree)
      : Actuator(with_lock(like.info(), lock), like.original()), tree_(tree) {}
  Result<State> read() const override { return State{tree_.at(kFile)}; }

 protected:
  Result<actuate::Done> write(std::size_t, std::int64_t value) override {
    tree_.number(kFile, value);
    return actuate::Done{};
  }

 private:
  const actuate::FakeTree& tree_;
};

class PowerLimitsTest : public DaemonTest {
 protected:
  PowerLimitsTest() { tree_.powercap(); }
  LeaseOptions limit_options() {
    LeaseOptions o = lease_options();
    o.open = [this] {
      actuate::Actuators here = actuate::open_cpufreq(tree_.machine);
      const auto limits = actuate::open_powercap_limits(tree_.machine);
      here.actuators.push_back(
          std::make_unique<LimitOfDevice>(*limits.actuators.at(0), here.actuators.at(0)->info().lock, tree_));
      return here;
    };
    o.limit_with = {"powercap"};
    o.said = [this](const std::string& text) { say(text); };
    return o;
  }
  void say(const std::string& text) {
    const std::lock_guard lock(mutex_);
    words_ += text + "\n";
  }
  std::string words() {
    const std::lock_guard lock(mutex_);
    return words_;
  }
  // Serves the limits of some leases by a clock that the test sets.
  struct Running {
    Running(PowerLimitsTest& test, Leases& leases)
        : limits(
              leases, [&test] { return test.time_.load(); }, [&test](const std::string& text) { test.say(text); }),
          thread([this](const std::stop_token& stop) { limits.run(stop, 0.01); }) {}
    PowerLimits limits;
    std::jthread thread;
  };
  std::int64_t limit() const { return tree_.at(kFile); }
  bool comes_to(std::int64_t value) {
    return soon([&] { return limit() == value; });
  }
  ServerOptions limiting_options() {
    ServerOptions o = options();
    o.leases.open = [this] {
      actuate::Actuators here = actuate::open_cpufreq(tree_.machine);
      for (auto& a : actuate::open_powercap_limits(tree_.machine).actuators) here.actuators.push_back(std::move(a));
      return here;
    };
    o.leases.limit_with = {"powercap"};
    o.limiters.users = {::geteuid()};
    return o;
  }
  static Result<Answer> order(Client& client, std::int64_t value, double seconds) {
    return client.ask({Request::Kind::kLimit, {}, 0, {{kLimit0, value}}, seconds}, Answer::Kind::kLimitable,
                      Seconds(60));
  }

  std::atomic<double> time_ = 1000;
  std::mutex mutex_;
  std::string words_;
};

TEST_F(PowerLimitsTest, ALimitHoldsForItsTime) {
  Leases leases(limit_options());
  Running running(*this, leases);
  const Limitable before = running.limits.limitable();
  EXPECT_EQ(before, (Limitable{{{kLimit0, "cpu-package0", kLeast, kFound, kFound}}, 0}));
  ASSERT_TRUE(running.limits.set({{kLimit0, 200000000}}, 60).ok());
  ASSERT_TRUE(comes_to(200000000)) << words();
  const Limitable meanwhile = running.limits.limitable();
  EXPECT_EQ(meanwhile.settings[0].most, kFound) << "of what was found";
  EXPECT_EQ(meanwhile.settings[0].present, 200000000);
  EXPECT_EQ(meanwhile.seconds, 60);
  time_ = 1050;
  ASSERT_TRUE(running.limits.set({{kLimit0, 250000000}}, 60).ok());  // another limit, and more time
  ASSERT_TRUE(comes_to(250000000));
  time_ = 1109;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(limit(), 250000000);
  time_ = 1110;
  EXPECT_TRUE(comes_to(kFound)) << "nobody has renewed it";
  EXPECT_TRUE(soon([&] { return left().empty(); }));
  EXPECT_NE(words().find("nobody has renewed the power limits in time"), std::string::npos) << words();
  ASSERT_TRUE(running.limits.set({{kLimit0, 200000000}}, 60).ok());
  ASSERT_TRUE(comes_to(200000000));
  ASSERT_TRUE(running.limits.set({}, 60).ok());
  EXPECT_TRUE(comes_to(kFound)) << "lifted at once";
}

TEST_F(PowerLimitsTest, ALimitThatAnotherProgramRaisesIsSetAgain) {
  Leases leases(limit_options());
  Running running(*this, leases);
  ASSERT_TRUE(running.limits.set({{kLimit0, 200000000}}, 60).ok());
  ASSERT_TRUE(comes_to(200000000)) << words();
  tree_.number(kFile, kFound);
  EXPECT_TRUE(comes_to(200000000));
  tree_.number(kFile, 180000000);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(limit(), 180000000) << "lower is within the limit";
}

TEST_F(PowerLimitsTest, OnlyWhatTheAdministratorNamedIsLimitedAndWithinTheBounds) {
  LeaseOptions o = limit_options();
  o.bounds.add_least("powercap=190 W", "--least");
  Leases leases(o);
  Running running(*this, leases);
  EXPECT_EQ(running.limits.limitable().settings.at(0).least, 190000000);
  EXPECT_EQ(running.limits.set({{kPackage0, 1500000}}, 60).reason(),
            "cpufreq:cpu-package0: this daemon limits no such setting (--limit-with)");
  EXPECT_EQ(running.limits.set({{kLimit0, 200000000}, {"powercap:cpu-package1", 1}}, 60).reason(),
            "powercap:cpu-package1: this daemon limits no such setting (--limit-with); did you mean "
            "'powercap:cpu-package0'?");
  EXPECT_EQ(running.limits.limitable().seconds, 0) << "a refused order changes nothing";
  ASSERT_TRUE(running.limits.set({{kLimit0, 1}}, 60).ok());
  EXPECT_TRUE(comes_to(190000000)) << "the nearest bound";
  ASSERT_TRUE(running.limits.set({{kLimit0, 200062499}}, 60).ok());
  EXPECT_TRUE(comes_to(200000000)) << "in steps of 1/8 W, and never above";
  LeaseOptions none = lease_options();
  none.journals = tree_.root() / "others";
  none.said = [](const auto&) {};
  Leases without(none);
  PowerLimits nothing(
      without, [] { return 0.0; }, [](const auto&) {});
  EXPECT_TRUE(nothing.limitable().settings.empty());
  EXPECT_FALSE(nothing.set({{kLimit0, 200000000}}, 60).ok());
}

TEST_F(PowerLimitsTest, AJobKeepsItsDeviceAndObeys) {
  Leases leases(limit_options());
  Running running(*this, leases);
  auto taken = leases.take(kOwner, {kPackage0, kLimit0});
  ASSERT_TRUE(taken.ok()) << taken.reason();
  DeviceLease& job = *taken.value();
  ASSERT_TRUE(job.set(kLimit0, 300000000).ok());
  ASSERT_TRUE(running.limits.set({{kLimit0, 200000000}}, 60).ok());
  ASSERT_TRUE(job.obey_limits().ok());
  EXPECT_EQ(limit(), 200000000);
  EXPECT_EQ(job.set(kLimit0, 250000000).reason(),
            "powercap:cpu-package0: 250 W is above the limit of the site's manager, 200 W");
  EXPECT_TRUE(job.set(kPackage0, 1500000).ok()) << "its clocks are its own";
  Listing listing;
  leases.list(kOwner, &job, listing);
  EXPECT_EQ(listing.settings.back().most, 200000000) << "what it may set";
  ASSERT_TRUE(running.limits.set({{kLimit0, 310000000}}, 60).ok());
  ASSERT_TRUE(job.obey_limits().ok());
  EXPECT_EQ(limit(), 300000000) << "what the job has set, where the limit allows it";
  ASSERT_TRUE(job.set(kLimit0, 305000000).ok());
  ASSERT_TRUE(running.limits.set({{kLimit0, 180000000}}, 60).ok());
  ASSERT_TRUE(job.obey_limits().ok());
  EXPECT_EQ(limit(), 180000000);
  std::move(taken).value().reset();
  EXPECT_TRUE(comes_to(180000000)) << "the daemon keeps it after the job";
  EXPECT_EQ(tree_.clocks(), kAsFound);
  ASSERT_TRUE(running.limits.set({}, 0).ok());
  EXPECT_TRUE(comes_to(kFound));
}

// A job that wants the clocks of a device whose power is limited gets them, and the limit stays.
TEST_F(PowerLimitsTest, ALimitedDeviceIsGivenToAJob) {
  Leases leases(limit_options());
  Running running(*this, leases);
  ASSERT_TRUE(running.limits.set({{kLimit0, 200000000}}, 60).ok());
  ASSERT_TRUE(comes_to(200000000));
  Listing listing;
  leases.list(kOwner, nullptr, listing);
  EXPECT_EQ(listing.settings.front().holder, "") << "the daemon lets go of it";
  for (int time = 0; time < 3; ++time) {
    auto taken = leases.take(kOwner, {kPackage0});
    ASSERT_TRUE(taken.ok()) << taken.reason();
    EXPECT_EQ(limit(), 200000000) << "before the job has the lease";
    EXPECT_EQ(taken.value()->set(kLimit0, 180000000).reason(),
              "powercap:cpu-package0 is not leased by this connection");
    ASSERT_TRUE(taken.value()->set(kPackage0, 1500000).ok());
    EXPECT_EQ(
        leases.take(Peer{1002, 1002}, {kPackage0}).reason(),
        fmt::format("cpufreq:cpu-package0 is set by {}, and only one job may; wait for it to end", kOwner.text()));
    std::move(taken).value().reset();
    ASSERT_TRUE(comes_to(200000000));
  }
  EXPECT_EQ(tree_.clocks(), kAsFound);
  running.thread.request_stop();
  running.thread.join();
  EXPECT_EQ(limit(), kFound) << "the daemon ends";
}

// A lease of another device is not affected, and grants of one setting do not need the device's power limit.
TEST_F(PowerLimitsTest, OwnersOfOneSettingKeepTheirLease) {
  const fs::path owners = tree_.root() / "owners";
  fs::create_directory(owners);
  fs::permissions(owners, fs::perms(0755));
  std::ofstream(owners / "77") << kOwner.uid << " " << kPackage0 << "\n";
  LeaseOptions o = limit_options();
  o.ownership = Ownership(Ownership::Rule::kGrants, owners);
  Leases leases(o);
  Running running(*this, leases);
  auto taken = leases.take(kOwner, {kPackage0});
  ASSERT_TRUE(taken.ok()) << taken.reason();
  EXPECT_EQ(taken.value()->why_end(), "");
  ASSERT_TRUE(running.limits.set({{kLimit0, 200000000}}, 60).ok());
  ASSERT_TRUE(taken.value()->obey_limits().ok());
  EXPECT_EQ(limit(), 200000000);
}

TEST_F(PowerLimitsTest, EachEndOfTheDaemonRestores) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    const pid_t daemon = start(limiting_options());
    const auto sender = client();
    const auto answer = order(*sender, 200000000, 600);
    ASSERT_TRUE(answer.ok()) << answer.reason();
    ASSERT_TRUE(comes_to(200000000)) << said();
    finish(daemon, signal);
    EXPECT_TRUE(comes_to(kFound)) << signal;
    EXPECT_TRUE(soon([&] { return left().empty(); })) << signal;
  }
}

// The daemon looks after the lease of a client, which says nothing meanwhile.
TEST_F(PowerLimitsTest, TheLeaseOfAClientMeetsALimit) {
  ServerOptions o = limiting_options();
  o.leases.open = limit_options().open;
  const pid_t daemon = start(o);
  const auto job = client(), sender = client();
  const auto leased = job->ask({Request::Kind::kLease, {kPackage0}}, Answer::Kind::kLeased, Seconds(60));
  ASSERT_TRUE(leased.ok()) << leased.reason();
  ASSERT_TRUE(order(*sender, 200000000, 600).ok());
  EXPECT_TRUE(comes_to(200000000)) << said();
  ASSERT_TRUE(order(*sender, 190000000, 600).ok());
  EXPECT_TRUE(comes_to(190000000)) << said();
  EXPECT_EQ(job->lost(), "");
  finish(daemon, SIGTERM);
  EXPECT_TRUE(comes_to(kFound));
}

TEST_F(PowerLimitsTest, TheEndOfTheSenderEndsNoLimitAndItsTimeDoes) {
  start(limiting_options());
  {
    const auto sender = client();
    ASSERT_TRUE(order(*sender, 200000000, 3).ok());
    ASSERT_TRUE(comes_to(200000000)) << said();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(limit(), 200000000) << "another sender may renew it";
  EXPECT_TRUE(comes_to(kFound)) << said();
  EXPECT_TRUE(soon([&] { return left().empty(); }));
}

TEST_F(PowerLimitsTest, OnlyLimitersMayAsk) {
  if (!may_become_another_user()) GTEST_SKIP() << "only root becomes another user";
  ServerOptions o = limiting_options();
  o.allowed.users.insert(kNobody);
  pid_t daemon = start(o);
  const auto asked = [&] {
    return as_user(kNobody, kNobody, {}, [&] {
      auto peer = Client::connect(socket());
      if (!peer) return peer.reason();
      const auto answer = order(*peer.value(), 200000000, 60);
      return answer ? std::string("limited") : answer.reason();
    });
  };
  EXPECT_EQ(asked(),
            "user 65534 may not limit the power of this node; an administrator allows users with --limit-user");
  EXPECT_EQ(limit(), kFound);
  finish(daemon, SIGTERM);
  o.limiters.users.insert(kNobody);
  start(o);
  EXPECT_EQ(asked(), "limited");
  EXPECT_TRUE(comes_to(200000000));
}

TEST_F(PowerLimitsTest, ASettingThatNoCollectorTakesIsNamed) {
  const LimitableSetting good{"a", "gpu0", 100000000, 200000000, 150000000};
  const LimitableSetting low{"b", "gpu1", 500000, 200000000, {}};
  const LimitableSetting high{"c", "gpu2", 1000000, 2000000000000, {}};
  const collect::Limitable limits = in_watts({good, low, high});
  ASSERT_EQ(limits.settings.size(), 1u);
  EXPECT_EQ(limits.settings[0], (collect::LimitableSetting{"a", "gpu0", 100, 200, 150}));
  EXPECT_EQ(limits.problem,
            "b cannot be limited: its bounds, 0.5 W to 200 W, exceed 1 W to 1e+06 W; c cannot be limited: its bounds, "
            "1 W to 2e+06 W, exceed 1 W to 1e+06 W");
  std::vector<LimitableSetting> many(collect::kMostLimits + 2, good);
  EXPECT_EQ(in_watts(many).settings.size(), collect::kMostLimits);
  EXPECT_EQ(in_watts(many).problem, "2 more settings cannot be limited: a node has 64 at most");
}

// Limits are asked for again before they end, however long the periods of the sender are.
TEST_F(PowerLimitsTest, LimitsAreRenewedBeforeTheyEnd) {
  LimitClient sender(std::nullopt, [](const std::string&) {});
  EXPECT_EQ(sender.ask_after(), kAskAgain);
  sender.keep({{{kLimit0, 200}}, 300});
  EXPECT_EQ(sender.ask_after(), kAskAgain);
  sender.keep({{{kLimit0, 200}}, 4});
  EXPECT_EQ(sender.ask_after(), Seconds(2));
  sender.keep({{{kLimit0, 200}}, 0.1});
  EXPECT_EQ(sender.ask_after(), Seconds(0.5)) << "not without pause";
  sender.keep({});
  EXPECT_EQ(sender.ask_after(), kAskAgain) << "nothing ends";
}

TEST_F(PowerLimitsTest, TheSendersSideAsksAndPassesOn) {
  std::string heard;
  LimitClient none(std::nullopt, [&](const std::string& text) { heard += text + "\n"; });
  EXPECT_NE(none.limitable().problem.find("this node has no energy daemon"), std::string::npos);
  none.keep({{{kLimit0, 200}}, 60});
  EXPECT_NE(heard.find("this node has no energy daemon"), std::string::npos) << heard;
  heard.clear();
  pid_t daemon = start(limiting_options());
  LimitClient sender(socket(), [&](const std::string& text) { heard += text + "\n"; });
  EXPECT_EQ(sender.limitable(), (collect::Limitable{{{kLimit0, "cpu-package0", 175, 330, 330}}, ""}));
  sender.keep({{{kLimit0, 200}}, 60});
  EXPECT_TRUE(comes_to(200000000));
  EXPECT_EQ(sender.limitable().settings.at(0).present_w, 200.0);
  sender.keep({});
  EXPECT_TRUE(comes_to(kFound));
  EXPECT_EQ(heard, "");
  sender.keep({{{"powercap:cpu-package9", 200}}, 60});
  EXPECT_NE(sender.limitable().problem.find("powercap:cpu-package9: this daemon limits no such setting"),
            std::string::npos);
  finish(daemon, SIGTERM);
  EXPECT_NE(sender.limitable().problem.find("the energy daemon at"), std::string::npos);
  start(limiting_options());
  EXPECT_EQ(sender.limitable().settings.size(), 1u) << "it connects again";
}

}  // namespace
}  // namespace molen::daemon
