#include "daemon/permission.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "daemon/test_daemon.h"

namespace molen::daemon {
namespace {

template <class F>
std::string refusal_by(F f) {
  try {
    f();
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(AllowList, IsOfUsersAndGroups) {
  AllowList list{{7}, {20}};
  EXPECT_TRUE(list.permits({7, 1}));
  EXPECT_TRUE(list.permits({8, 20})) << "its own group";
  EXPECT_TRUE(list.permits({8, 1, {3, 20}})) << "a supplementary group";
  EXPECT_FALSE(list.permits({8, 7, {3, 21}})) << "a group is no user";
  EXPECT_TRUE(list.permits({0, 0})) << "root";
  EXPECT_FALSE(AllowList{}.permits({8, 0})) << "the group of root is not root";
}

TEST(AllowList, TakesNamesAndNumbers) {
  EXPECT_EQ(user_named("root", "--allow-user"), 0u);
  EXPECT_EQ(user_named("1001", "--allow-user"), 1001u);
  EXPECT_EQ(group_named("root", "--allow-group"), 0u);
  EXPECT_EQ(group_named("4294967294", "--allow-group"), 4294967294u);
  EXPECT_EQ(refusal_by([] { user_named("no such user", "--allow-user"); }),
            "--allow-user: this machine knows no user 'no such user'");
  EXPECT_EQ(refusal_by([] { group_named("4294967295", "--allow-group"); }),
            "--allow-group: this machine knows no group '4294967295'");
  EXPECT_NE(refusal_by([] { user_named("-1", "--allow-user"); }), "accepted");
  EXPECT_NE(refusal_by([] { user_named("", "--allow-user"); }), "accepted");
}

TEST(PeerOf, IsWhatTheKernelRecorded) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const auto peer = peer_of(ends[0]);
  ASSERT_TRUE(peer.ok()) << peer.reason();
  EXPECT_EQ(peer.value().uid, ::geteuid());
  EXPECT_EQ(peer.value().gid, ::getegid());
  EXPECT_EQ(peer.value().pid, ::getpid());
  std::vector<gid_t> groups(65536);
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  EXPECT_EQ(peer.value().groups.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(peer.value().numbers(), fmt::format("process {} of user {}", ::getpid(), ::geteuid()));
  EXPECT_EQ((Peer{7, 7}.numbers()), "a process of user 7");
  EXPECT_EQ(peer.value().text().find(fmt::format("process {} of ", ::getpid())), 0u);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_FALSE(peer_of(-1).ok());
}

TEST(Bounds, AreThoseOfTheDeviceAndTheAdministrator) {
  const actuate::FakeTree tree;
  tree.cpufreq();
  tree.powercap();
  tree.number(tree.policy(1, "cpuinfo_min_freq"), 900000);
  const auto clocks = actuate::open_cpufreq(tree.machine), limits = actuate::open_powercap_limits(tree.machine);
  const auto range = [](const Bounds& bounds, const actuate::Actuators& found) {
    const auto r = bounds.range_of(*found.actuators.at(0));
    return std::pair(r.least, r.most);
  };
  Bounds bounds;
  EXPECT_EQ(range(bounds, clocks), std::pair(INT64_C(900000), INT64_C(3000000))) << "what every part can take";
  bounds.add_least("cpufreq=1.2 GHz", "--least");
  bounds.add_most("cpufreq=2600 MHz", "--most");
  bounds.add_most("powercap=200 W", "--most");
  EXPECT_EQ(range(bounds, clocks), std::pair(INT64_C(1200000), INT64_C(2600000)));
  EXPECT_EQ(range(bounds, limits), std::pair(INT64_C(175000000), INT64_C(200000000)));
  bounds.add_most("powercap=1 MW", "--most");
  EXPECT_EQ(range(bounds, limits).second, 330000000) << "no more than what was found";
  bounds.add_least("powercap=400 W", "--least");
  EXPECT_GT(range(bounds, limits).first, range(bounds, limits).second) << "nothing is left";
}

// A GPU that takes every 15th megahertz, and does not tell which.
class SteppedClock : public actuate::Actuator {
 public:
  SteppedClock() : Actuator(stepped(), {0}) {}
  Result<actuate::State> read() const override { return Failure{"it does not tell"}; }

 protected:
  Result<actuate::Done> write(std::size_t, std::int64_t) override { return actuate::Done{}; }

 private:
  static actuate::ActuatorInfo stepped() {
    actuate::ActuatorInfo info;
    info.id = "nvml-clock:GPU-1";
    info.name = "nvml-clock";
    info.parts = {{"GPU-1", 345000, 1980000}};
    for (std::int64_t khz = 345000; khz <= 1980000; khz += 15000) info.values.push_back(khz);
    info.readable = false;
    return info;
  }
};

TEST(Bounds, BetweenTwoValuesOfADeviceAreTheLowerOne) {
  const SteppedClock clock;
  const auto most = [&](const std::string& bound) {
    Bounds bounds;
    bounds.add_most("nvml-clock=" + bound, "--most");
    return bounds.range_of(clock).most;
  };
  EXPECT_EQ(Bounds().range_of(clock).most, 1980000);
  EXPECT_EQ(most("1.4 GHz"), 1395000);
  EXPECT_FALSE(clock.state_for(1400000).ok());
  EXPECT_TRUE(clock.state_for(most("1.4 GHz")).ok()) << "a job begins there";
  EXPECT_EQ(most("1.395 GHz"), 1395000) << "the value itself";
  EXPECT_EQ(most("3 GHz"), 1980000);
  EXPECT_LT(most("344 MHz"), 345000) << "nothing is left";
  Bounds narrow;
  narrow.add_least("nvml-clock=1.396 GHz", "--least");
  narrow.add_most("nvml-clock=1.4 GHz", "--most");
  EXPECT_LT(narrow.range_of(clock).most, narrow.range_of(clock).least) << "no value lies between";
}

TEST(Bounds, OfAnotherFormAreRefused) {
  Bounds bounds;
  const auto least = [&](const std::string& text) { return refusal_by([&] { bounds.add_least(text, "--least"); }); };
  EXPECT_EQ(least("nvml-powr=300 W"),
            "--least: 'nvml-powr=300 W' must be SETTING=VALUE with one of cpufreq, uncore, powercap, amdgpu-power, "
            "nvml-clock, "
            "nvml-power; did you mean 'nvml-power'?");
  EXPECT_EQ(least("nvml-power=1.2 GHz"),
            "--least: 'nvml-power=1.2 GHz': the value must be a power above zero such as \"300 W\"");
  EXPECT_EQ(least("cpufreq=300 W"),
            "--least: 'cpufreq=300 W': the value must be a clock above zero such as \"1.2 GHz\"");
  for (const char* text : {"", "=", "cpufreq", "cpufreq=", "cpufreq=0 GHz", "cpufreq=-1 GHz", "cpufreq=nan GHz",
                           "cpufreq=1e30 GHz", "nvml-power=0 W", "nvml-power=300"})
    EXPECT_EQ(least(text).find("--least: "), 0u) << text;
  bounds.add_most("cpufreq=2 GHz", "--most");
  EXPECT_EQ(least("cpufreq=2.1 GHz"), "--least: 'cpufreq=2.1 GHz' is above the greatest value that may be set");
}

TEST(Grants, AreLinesOfUsersAndDevices) {
  EXPECT_EQ(parse_grants("# job 7\n1001 gpu0  GPU-51af\tcpu-package1\r\n\n 1002 all", "file"),
            (std::vector<Grant>{{1001, {"gpu0", "GPU-51af", "cpu-package1"}}, {1002, {"all"}}}));
  EXPECT_TRUE(parse_grants("", "file").empty());
  for (const char* text : {"ann gpu0", "1001", "-1 gpu0", "4294967295 gpu0", "1e3 gpu0"})
    EXPECT_EQ(refusal_by([&] { parse_grants(std::string("\n") + text, "file"); }),
              "file:2: must be the number of a user and its devices: \"1001 gpu0 cpu-package1\"")
        << text;
}

class Owners : public ::testing::Test {
 protected:
  Owners() { fs::create_directories(folder()); }
  fs::path folder() const { return tree_.root() / "owners"; }
  void grant(const std::string& name, const std::string& text) const {
    std::ofstream(folder() / name) << text;
    fs::permissions(folder() / name, fs::perms(0644));
  }
  static std::string why(const Ownership::Now& now, std::uint32_t uid, const std::string& scope,
                         const std::string& id = "nvml-power:GPU-1") {
    actuate::ActuatorInfo info;
    info.scope = scope;
    info.id = id;
    return now.why_not({uid, uid}, info);
  }
  Ownership of_grants() const { return Ownership(Ownership::Rule::kGrants, folder()); }
  actuate::FakeTree tree_;
};

TEST_F(Owners, MayBeNobodyOrAnyone) {
  const auto nobody = Ownership().now(), anyone = Ownership(Ownership::Rule::kAnyone).now();
  EXPECT_EQ(why(nobody, 0, "gpu0"),
            "this daemon reads meters only: it was started with neither --owners nor --exclusive");
  EXPECT_EQ(why(anyone, 7, "gpu0"), "");
}

TEST_F(Owners, AreWhatTheFilesOfTheFolderSay) {
  grant("77", "1001 gpu0\n");
  grant("78", "1002 GPU-1 cpu-package0\n1003 nvml-power:GPU-1\n1004 all\n");
  grant(".79", "1005 all\n");
  const auto now = of_grants().now();
  EXPECT_TRUE(now.problems().empty());
  EXPECT_EQ(why(now, 1001, "gpu0"), "");
  EXPECT_EQ(why(now, 1001, "gpu1"), "gpu1 belongs to no job of user 1001 on this node");
  EXPECT_EQ(why(now, 1002, "gpu5"), "") << "by its UUID";
  EXPECT_EQ(why(now, 1003, "gpu5"), "") << "by the id of the setting";
  EXPECT_NE(why(now, 1003, "gpu5", "nvml-clock:GPU-1"), "") << "of this setting only";
  EXPECT_EQ(why(now, 1004, "anything"), "");
  EXPECT_NE(why(now, 1005, "gpu0"), "") << "a file that is still written";
  EXPECT_EQ(why(now, 0, "gpu7"), "") << "root";
  fs::remove(folder() / "77");
  EXPECT_NE(why(of_grants().now(), 1001, "gpu0"), "") << "its job has ended";
}

TEST_F(Owners, ThatOthersCouldHaveWrittenGrantNothing) {
  grant("77", "1001 gpu0\n");
  grant("broken", "ann gpu0\n");
  fs::permissions(folder() / "77", fs::perms(0666));
  auto now = of_grants().now();
  EXPECT_NE(why(now, 1001, "gpu0"), "");
  ASSERT_EQ(now.problems().size(), 2u);
  EXPECT_NE(now.problems()[0].find("others may write it (mode 0666): chmod go-w"), std::string::npos)
      << now.problems()[0];
  EXPECT_NE(now.problems()[1].find("broken:1: must be the number"), std::string::npos) << now.problems()[1];
  fs::permissions(folder() / "77", fs::perms(0644));
  fs::permissions(folder(), fs::perms(0777));
  now = of_grants().now();
  EXPECT_NE(why(now, 1001, "gpu0"), "");
  EXPECT_EQ(now.problems().size(), 1u) << "the folder";
  now = Ownership(Ownership::Rule::kGrants, folder() / "none").now();
  EXPECT_NE(why(now, 1001, "gpu0"), "");
  EXPECT_EQ(now.problems().size(), 1u);
  fs::permissions(folder(), fs::perms(0755));
  grant("long", std::string(70000, '#'));
  fs::create_symlink("/dev/zero", folder() / "device");
  now = of_grants().now();
  EXPECT_EQ(now.problems().size(), 3u) << "no endless file is read";
  EXPECT_EQ(why(now, 1001, "gpu0"), "") << "the others hold";
  if (::chown((folder() / "77").c_str(), kNobody, kNobody) != 0)
    GTEST_SKIP() << "only root gives a file to another user";
  now = of_grants().now();
  EXPECT_NE(why(now, 1001, "gpu0"), "");
  EXPECT_NE(now.problems()[0].find("belongs to user 65534, and must be root's"), std::string::npos)
      << now.problems()[0];
}

}  // namespace
}  // namespace molen::daemon
