#include "daemon/leases.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "daemon/test_daemon.h"

namespace molen::daemon {
namespace {

const Peer kRoot{0, 0}, kAnn{1001, 1001}, kBob{1002, 1002};

// The clocks of the first package, which take no value while they are stuck, but can still be read.
class StickyClocks : public actuate::Actuator {
 public:
  StickyClocks(const Actuator& like, const actuate::FakeTree& tree, const std::atomic<bool>& stuck)
      : Actuator(like.info(), like.original()), tree_(tree), stuck_(stuck) {}
  Result<State> read() const override { return State{tree_.at(tree_.policy(0)), tree_.at(tree_.policy(1))}; }

 protected:
  Result<actuate::Done> write(std::size_t part, std::int64_t value) override {
    if (stuck_) return Failure{"it is stuck"};
    tree_.number(tree_.policy(static_cast<int>(part)), value);
    return actuate::Done{};
  }

 private:
  const actuate::FakeTree& tree_;
  const std::atomic<bool>& stuck_;
};

class LeasesTest : public DaemonTest {
 protected:
  std::unique_ptr<Leases> leases() { return leases(lease_options()); }
  std::unique_ptr<Leases> leases(LeaseOptions o) {
    o.said = [this](const std::string& s) { words_ += s + "\n"; };
    return std::make_unique<Leases>(std::move(o));
  }
  static Listing listing(Leases& leases, const Peer& peer, const DeviceLease* own = nullptr) {
    Listing listing;
    leases.list(peer, own, listing);
    return listing;
  }
  // Returns the options of a node whose first package may get stuck.
  LeaseOptions sticky_options() {
    LeaseOptions o = lease_options();
    o.open = [this] {
      actuate::Actuators here = actuate::open_cpufreq(tree_.machine);
      auto& first = here.actuators.at(0);
      first = std::make_unique<StickyClocks>(*first, tree_, stuck_);
      ++opened_;
      return here;
    };
    return o;
  }
  // Leaves only this process to restore.
  static void kill_guardians() {
    for (const pid_t guardian : children_of(::getpid())) EXPECT_EQ(::kill(guardian, SIGKILL), 0);
  }
  // Writes what a daemon that was killed with its guardian leaves.
  void leave_journal() {
    actuate::Journal journal;
    journal.owner = store::Owner::self();
    journal.owner.pid = 999999999;
    journal.entries = {{kPackage0, {"policy0", "policy1"}, {3000000, 3000000}, {{1500000, 1500000}}}};
    actuate::make_own_folder(journals());
    actuate::make_own_folder(journals() / "lease-0");
    std::ofstream(actuate::journal_file(journals() / "lease-0", journal.owner)) << actuate::journal_text(journal);
    for (int p = 0; p < 2; ++p) tree_.number(tree_.policy(p), 1500000);
  }
  std::string words_;
  std::atomic<bool> stuck_ = false;
  std::atomic<int> opened_ = 0;
};

TEST_F(LeasesTest, ALeaseSetsWithinBoundsAndRestores) {
  LeaseOptions o = lease_options();
  o.bounds.add_least("cpufreq=1.2 GHz", "--least");
  o.bounds.add_most("cpufreq=2.8 GHz", "--most");
  const auto all = leases(o);
  const Listing before = listing(*all, kAnn);
  ASSERT_EQ(before.settings.size(), 2u);
  EXPECT_EQ(before.settings[0].id, kPackage0);
  EXPECT_EQ(before.settings[0].least, 1200000);
  EXPECT_EQ(before.settings[0].most, 2800000);
  EXPECT_EQ(before.settings[0].present, 3000000);
  auto taken = all->take(kAnn, {kPackage0});
  ASSERT_TRUE(taken.ok()) << taken.reason();
  DeviceLease& lease = *taken.value();
  EXPECT_EQ(lease.set(kPackage0, 1500000).value(), 1500000);
  EXPECT_EQ(tree_.clocks(), kFirstSet);
  EXPECT_EQ(lease.set(kPackage0, 1000000).reason(),
            "cpufreq:cpu-package0: 1 GHz is outside what may be set here, 1.2 GHz to 2.8 GHz");
  EXPECT_FALSE(lease.set(kPackage0, 2900000).ok()) << "the device could";
  EXPECT_EQ(lease.set(kPackage1, 1500000).reason(), "cpufreq:cpu-package1 is not leased by this connection");
  EXPECT_EQ(tree_.clocks(), kFirstSet);
  const Listing meanwhile = listing(*all, kAnn, &lease);
  EXPECT_EQ(meanwhile.settings[0].most, 2800000) << "of what was found";
  EXPECT_EQ(meanwhile.settings[0].present, 1500000);
  EXPECT_EQ(meanwhile.settings[0].holder, "");
  EXPECT_EQ(listing(*all, kBob).settings[0].holder, kAnn.text());
  EXPECT_EQ(lease.end().restored, 2);
  EXPECT_EQ(tree_.clocks(), kAsFound);
  EXPECT_EQ(lease.end().restored, 0);
  EXPECT_FALSE(lease.set(kPackage0, 1500000).ok());
  EXPECT_TRUE(fs::is_empty(journals()));
  EXPECT_EQ(words_, "");
}

TEST_F(LeasesTest, ADeviceIsOnePeersAtATime) {
  const auto all = leases();
  auto first = all->take(kAnn, {kPackage0});
  ASSERT_TRUE(first.ok()) << first.reason();
  EXPECT_EQ(all->take(kBob, {kPackage1, kPackage0}).reason(),
            fmt::format("cpufreq:cpu-package0 is set by {}, and only one job may; wait for it to end", kAnn.text()));
  const auto second = all->take(kBob, {kPackage1});
  ASSERT_TRUE(second.ok()) << second.reason() << ": nothing was kept of the refused lease";
  EXPECT_TRUE(second.value()->set(kPackage1, 1500000).ok());
  EXPECT_TRUE(first.value()->set(kPackage0, 2000000).ok());
  EXPECT_EQ(tree_.clocks(), (State{2000000, 2000000, 1500000, 1500000}));
  std::move(first).value().reset();
  EXPECT_EQ(tree_.clocks(), (State{3000000, 3000000, 1500000, 1500000})) << "nobody else's";
  const auto third = all->take(kBob, {kPackage0});
  EXPECT_TRUE(third.ok()) << third.reason();
}

// A job with rights of its own does not ask the daemon; the kernel's lock keeps them apart.
TEST_F(LeasesTest, AJobOutsideOfTheDaemonExcludesAPeer) {
  const auto all = leases();
  auto session = actuate::Session::open(
      actuate::open_cpufreq(tree_.machine), {kPackage0},
      {tree_.root() / "own", {MOLEN_GUARDIAN, tree_.root().string()}, [](const auto&) {}, Seconds(0.2)});
  ASSERT_TRUE(session.ok()) << session.reason();
  EXPECT_NE(all->take(kAnn, {kPackage0}).reason().find("only one job may"), std::string::npos);
  std::move(session).value().reset();
  EXPECT_TRUE(all->take(kAnn, {kPackage0}).ok());
}

TEST_F(LeasesTest, UnknownSettingsAreRefused) {
  const auto all = leases();
  EXPECT_EQ(
      all->take(kAnn, {"cpufreq:cpu-package9"}).reason(),
      "cpufreq:cpu-package9: this node has no such setting that can be made; did you mean 'cpufreq:cpu-package0'?");
  EXPECT_TRUE(all->take(kAnn, {kPackage0}).ok());
}

TEST_F(LeasesTest, OnlyOwnersGetADevice) {
  fs::create_directories(owners());
  std::ofstream(owners() / "77") << "1001 cpu-package0\n";
  fs::permissions(owners() / "77", fs::perms(0644));
  LeaseOptions o = lease_options();
  o.ownership = Ownership(Ownership::Rule::kGrants, owners());
  const auto all = leases(o);
  EXPECT_EQ(all->take(kBob, {kPackage0}).reason(),
            "cpufreq:cpu-package0: cpu-package0 belongs to no job of user 1002 on this node");
  EXPECT_FALSE(all->take(kAnn, {kPackage0, kPackage1}).ok());
  const Listing listed = listing(*all, kAnn);
  EXPECT_EQ(listed.settings.size(), 1u);
  ASSERT_EQ(listed.withheld.size(), 1u);
  EXPECT_EQ(listed.withheld[0].id, kPackage1);
  auto lease = all->take(kAnn, {kPackage0});
  ASSERT_TRUE(lease.ok()) << lease.reason();
  EXPECT_EQ(lease.value()->why_end(), "");
  fs::remove(owners() / "77");
  EXPECT_EQ(lease.value()->why_end(), "cpu-package0 belongs to no job of user 1001 on this node");
  EXPECT_EQ(lease.value()->set(kPackage0, 1500000).reason(),
            "cpufreq:cpu-package0: cpu-package0 belongs to no job of user 1001 on this node");
  EXPECT_EQ(tree_.clocks(), kAsFound);
  std::ofstream(owners() / "78") << "ann\n";
  EXPECT_FALSE(all->take(kAnn, {kPackage0}).ok());
  EXPECT_FALSE(all->take(kBob, {kPackage0}).ok());
  EXPECT_EQ(words_.find("78:1: must be the number of a user"), (owners() / "").string().size()) << words_;
  EXPECT_EQ(std::count(words_.begin(), words_.end(), '\n'), 1) << "said once";
}

TEST_F(LeasesTest, WithoutARuleNothingIsSet) {
  LeaseOptions o = lease_options();
  o.ownership = Ownership();
  const auto all = leases(o);
  EXPECT_TRUE(listing(*all, kRoot).settings.empty());
  EXPECT_NE(all->take(kRoot, {kPackage0}).reason().find("reads meters only"), std::string::npos);
}

TEST_F(LeasesTest, BoundsThatLeaveNothingWithholdASetting) {
  LeaseOptions o = lease_options();
  o.bounds.add_least("cpufreq=4 GHz", "--least");
  const auto all = leases(o);
  const Listing listed = listing(*all, kAnn);
  ASSERT_EQ(listed.withheld.size(), 2u);
  EXPECT_EQ(listed.withheld[0].reason, "the bounds of the administrator leave nothing to set (4 GHz to 3 GHz)");
}

// A device that refuses to be restored is given to nobody before it is.
TEST_F(LeasesTest, WhatCouldNotBeRestoredIsRestoredBeforeTheNextLease) {
  const auto all = leases();
  const fs::path file = tree_.root() / tree_.policy(1);
  {
    auto lease = all->take(kAnn, {kPackage0});
    ASSERT_TRUE(lease.ok()) << lease.reason();
    ASSERT_TRUE(lease.value()->set(kPackage0, 1500000).ok());
    fs::rename(file, file.string() + ".away");
    fs::create_directory(file);
    EXPECT_GT(lease.value()->end().failed, 0);
  }
  EXPECT_EQ(left().size(), 1u);
  EXPECT_FALSE(all->take(kBob, {kPackage0}).ok());
  EXPECT_TRUE(all->take(kBob, {kPackage1}).ok()) << "another device";
  fs::remove(file);
  fs::rename(file.string() + ".away", file);
  const auto next = all->take(kBob, {kPackage0});
  ASSERT_TRUE(next.ok()) << next.reason();
  EXPECT_EQ(tree_.clocks(), kAsFound);
  EXPECT_TRUE(next.value()->set(kPackage0, 2000000).ok());
}

TEST_F(LeasesTest, AnEarlierDaemonsLeftoversAreRestoredAtTheStart) {
  leave_journal();
  const auto all = leases();
  EXPECT_EQ(tree_.clocks(), kAsFound);
  EXPECT_NE(words_.find("ended without restoring what it had set"), std::string::npos) << words_;
  EXPECT_TRUE(fs::is_empty(journals()));
}

TEST_F(LeasesTest, ATakerThatWaitsGetsNoDeviceThatDidNotComeBack) {
  const auto all = leases(sticky_options());
  const pid_t ended = ::fork();
  if (ended == 0) std::_Exit(0);
  ASSERT_EQ(::waitpid(ended, nullptr, 0), ended);
  auto lease = all->take({1001, 1001, {}, ended}, {kPackage0});
  ASSERT_TRUE(lease.ok()) << lease.reason();
  ASSERT_TRUE(lease.value()->set(kPackage0, 1500000).ok());
  const int opened = opened_;
  std::string refused = "given";
  std::thread taker([&] {
    const auto second = all->take(kBob, {kPackage0});
    if (!second) refused = second.reason();
  });
  ASSERT_TRUE(soon([&] { return opened_ > opened; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it waits for the peer that has ended
  stuck_ = true;
  kill_guardians();
  EXPECT_EQ(lease.value()->end().failed, 2);
  taker.join();
  EXPECT_EQ(refused,
            "an earlier job's settings of this device could not be restored; nothing is set on it until they are");
  EXPECT_EQ(tree_.clocks(), kFirstSet);
  stuck_ = false;
  auto next = all->take(kBob, {kPackage0});
  ASSERT_TRUE(next.ok()) << next.reason();
  EXPECT_EQ(tree_.clocks(), kAsFound) << "and not the lowered value";
}

TEST_F(LeasesTest, WhatIsLeftIsTriedAgainAndSaidOnce) {
  const auto all = leases(sticky_options());
  {
    auto lease = all->take(kAnn, {kPackage0, kPackage1});
    ASSERT_TRUE(lease.ok()) << lease.reason();
    ASSERT_TRUE(lease.value()->set(kPackage0, 1500000).ok());
    ASSERT_TRUE(lease.value()->set(kPackage1, 1500000).ok());
    stuck_ = true;
    kill_guardians();
    EXPECT_EQ(lease.value()->end().failed, 2);
  }
  EXPECT_EQ(tree_.clocks(), kFirstSet) << "the second package came back";
  {
    const auto other = all->take(kBob, {kPackage1});
    ASSERT_TRUE(other.ok()) << other.reason() << ": the stuck device holds up no other one";
    all->retry_left();
    const std::string words = words_;
    EXPECT_NE(words.find("stays until all of it is restored"), std::string::npos) << words;
    for (int i = 0; i < 3; ++i) all->retry_left();
    EXPECT_EQ(words_, words) << "no news";
    ASSERT_EQ(left().size(), 2u);
    EXPECT_EQ(tree_.clocks(), kFirstSet);
    stuck_ = false;
    all->retry_left();
    EXPECT_EQ(tree_.clocks(), kAsFound) << "while somebody has the other device";
    EXPECT_EQ(left().size(), 1u) << "that of the living lease";
  }
  EXPECT_TRUE(fs::is_empty(journals()));
}

TEST_F(LeasesTest, ADeviceThatIsLockedAtTheStartIsRestoredLater) {
  leave_journal();
  actuate::Actuators here = actuate::open_cpufreq(tree_.machine);
  std::optional<actuate::Locks> locks = actuate::Locks::take({here.actuators.at(0).get()}, Seconds(0)).value();
  const auto all = leases();
  EXPECT_EQ(tree_.clocks(), kFirstSet) << "somebody has it";
  const auto recover = [&](bool own_too) {
    return actuate::recover_journals(
        journals() / "lease-0", here, [](const auto&) {}, Seconds(0), {}, own_too);
  };
  EXPECT_TRUE(recover(false)) << "its owner may be alive elsewhere";
  EXPECT_FALSE(recover(true));
  EXPECT_FALSE(all->take(kBob, {kPackage0}).ok());
  locks.reset();
  const auto lease = all->take(kBob, {kPackage0});
  ASSERT_TRUE(lease.ok()) << lease.reason();
  EXPECT_EQ(tree_.clocks(), kAsFound);
}

TEST_F(LeasesTest, AFolderOfOthersIsRefused) {
  fs::create_directories(journals());
  fs::permissions(journals(), fs::perms(0777));
  EXPECT_THROW(leases(), UsageError);
}

}  // namespace
}  // namespace molen::daemon
