#include "daemon/leases.h"

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>

#include "base/error.h"
#include "daemon/test_daemon.h"

namespace molen::daemon {
namespace {

const Peer kRoot{0, 0}, kAnn{1001, 1001}, kBob{1002, 1002};

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
  std::string words_;
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
  // What a daemon that was killed with its guardian leaves.
  actuate::Journal journal;
  journal.owner = store::Owner::self();
  journal.owner.pid = 999999999;
  journal.entries = {{kPackage0, {"policy0", "policy1"}, {3000000, 3000000}, {{1500000, 1500000}}}};
  actuate::make_own_folder(journals());
  actuate::make_own_folder(journals() / "lease-0");
  std::ofstream(actuate::journal_file(journals() / "lease-0", journal.owner)) << actuate::journal_text(journal);
  for (int p = 0; p < 2; ++p) tree_.number(tree_.policy(p), 1500000);
  const auto all = leases();
  EXPECT_EQ(tree_.clocks(), kAsFound);
  EXPECT_NE(words_.find("ended without restoring what it had set"), std::string::npos) << words_;
  EXPECT_TRUE(fs::is_empty(journals()));
}

TEST_F(LeasesTest, AFolderOfOthersIsRefused) {
  fs::create_directories(journals());
  fs::permissions(journals(), fs::perms(0777));
  EXPECT_THROW(leases(), UsageError);
}

}  // namespace
}  // namespace molen::daemon
