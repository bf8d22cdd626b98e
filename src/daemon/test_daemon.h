// A daemon in a process of its own, on a fake tree of the kernel's files, and peers that are other users.
#pragma once

#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "actuate/locks.h"
#include "actuate/sysfs.h"
#include "actuate/test_tree.h"
#include "base/clock.h"
#include "daemon/client.h"
#include "daemon/server.h"

namespace molen::daemon {

using actuate::State;
inline const State kAsFound{3000000, 3000000, 3000000, 3000000};
inline const State kFirstSet{1500000, 1500000, 3000000, 3000000};
inline constexpr const char* kPackage0 = "cpufreq:cpu-package0";
inline constexpr const char* kPackage1 = "cpufreq:cpu-package1";
inline constexpr std::uint32_t kNobody = 65534;

// Counts a joule at each reading.
class CountingMeter : public energy::Meter {
 public:
  explicit CountingMeter(const std::string& scope = "cpu-package0", double first_j = 100.0,
                         Seconds read_every = Seconds(0))
      : Meter({"counting", scope, energy::Source::kCounter, "each reading", read_every, true, 1.0, Seconds(0)}),
        joules_(first_j) {}
  Result<energy::Reading> read() override {
    joules_ += 1.0;
    return energy::Reading{Joules(joules_), 0, static_cast<std::int64_t>(joules_)};
  }

 private:
  double joules_;
};

class DaemonTest : public ::testing::Test {
 protected:
  DaemonTest() {
    tree_.cpufreq();
    fs::permissions(tree_.root(), fs::perms(0755));
  }
  ~DaemonTest() override {
    for (const pid_t pid : daemons_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    (void)soon([&] { return left().empty(); });  // guardians write into the tree
  }

  fs::path socket() const { return tree_.root() / "energy.sock"; }
  fs::path journals() const { return tree_.root() / "journals"; }
  fs::path owners() const { return tree_.root() / "owners"; }
  // The journals that are left.
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    std::error_code gone;
    for (fs::recursive_directory_iterator it(journals(), gone), end; !gone && it != end; it.increment(gone))
      if (actuate::is_journal_name(it->path().filename().string())) names.push_back(it->path().string());
    return names;
  }
  LeaseOptions lease_options() {
    LeaseOptions o;
    o.open = [this] { return actuate::open_cpufreq(tree_.machine); };
    o.journals = journals();
    o.guardian = {MOLEN_GUARDIAN, tree_.root().string()};
    o.patience = Seconds(20);
    o.ownership = Ownership(Ownership::Rule::kAnyone);
    return o;
  }
  ServerOptions options() {
    ServerOptions o;
    o.socket = socket();
    o.allowed.users = {::geteuid()};
    o.leases = lease_options();
    o.limits.look_s = 0.05;
    o.clock = [] { return now().value; };
    o.say = [file = tree_.root() / "said"](const std::string& text) {
      std::ofstream(file, std::ios::app) << text << "\n";
    };
    return o;
  }
  std::string said() const {
    std::ifstream file(tree_.root() / "said");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // Starts a daemon that serves until SIGTERM; returns its process once it listens.
  pid_t start(const ServerOptions& o) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      static int stop[2];
      EXPECT_EQ(::pipe(stop), 0);
      ::signal(SIGTERM, [](int) { (void)!::write(stop[1], "", 1); });
      try {
        energy::Meters meters;
        meters.meters.push_back(std::make_unique<CountingMeter>());
        Server server(std::move(meters), o);
        (void)!::write(ready[1], "y", 1);
        server.run(stop[0]);
      } catch (const std::exception& error) {
        o.say(error.what());
        std::_Exit(1);
      }
      std::_Exit(0);
    }
    ::close(ready[1]);
    char ok = 0;
    EXPECT_EQ(::read(ready[0], &ok, 1), 1) << said();
    ::close(ready[0]);
    daemons_.push_back(pid);
    return pid;
  }
  pid_t start() { return start(options()); }
  // Ends a daemon with a signal; returns its status.
  int finish(pid_t pid, int signal) {
    int status = -1;
    EXPECT_EQ(::kill(pid, signal), 0);
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    std::erase(daemons_, pid);
    return status;
  }
  std::unique_ptr<Client> client() {
    auto connected = Client::connect(socket());
    EXPECT_TRUE(connected.ok()) << connected.reason();
    return connected ? std::move(connected).value() : nullptr;
  }

  // Runs `use` in a child that is another user, whose groups are these only, and `meanwhile` beside it; returns what
  // `use` returned. Returns "no other user" where this process may not become one.
  static std::string as_user(std::uint32_t uid, std::uint32_t gid, const std::vector<gid_t>& groups,
                             const std::function<std::string()>& use, const std::function<void()>& meanwhile = {}) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::string text = "no other user";
      if (::setgroups(groups.size(), groups.data()) == 0 && ::setgid(gid) == 0 && ::setuid(uid) == 0) text = use();
      (void)!::write(ends[1], text.data(), text.size());
      std::_Exit(0);
    }
    ::close(ends[1]);
    if (meanwhile) meanwhile();
    std::string text;
    char bytes[4096];
    for (ssize_t got; (got = ::read(ends[0], bytes, sizeof bytes)) > 0;)
      text.append(bytes, static_cast<std::size_t>(got));
    ::close(ends[0]);
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
    return text;
  }
  static bool may_become_another_user() {
    return as_user(kNobody, kNobody, {}, [] { return std::string("yes"); }) == "yes";
  }
  // Starts a job in a child that leases the first package and sets 1.5 GHz, then runs `then`, by default for ever.
  pid_t start_job(const std::function<void(Client&)>& then = [](Client&) { ::pause(); }) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      auto connected = Client::connect(socket());
      char ok = 'n';
      if (connected &&
          connected.value()->ask({Request::Kind::kLease, {kPackage0}}, Answer::Kind::kLeased, Seconds(60)) &&
          connected.value()->ask({Request::Kind::kSet, {kPackage0}, 1500000}, Answer::Kind::kSet, Seconds(60)))
        ok = 'y';
      (void)!::write(ends[1], &ok, 1);
      if (ok == 'y') then(*connected.value());
      std::_Exit(0);
    }
    char ok = 0;
    EXPECT_EQ(::read(ends[0], &ok, 1), 1);
    EXPECT_EQ(ok, 'y') << said();
    ::close(ends[0]);
    ::close(ends[1]);
    return pid;
  }
  static void kill_job(pid_t pid) {
    EXPECT_EQ(::kill(pid, SIGKILL), 0);
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  }

  // Waits until a condition holds, at most 20 s.
  template <class Condition>
  static bool soon(Condition condition) {
    for (const Seconds until = now() + Seconds(20); now() < until;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return condition();
  }
  // The processes whose parent is this one.
  static std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> children;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const auto stat = energy::read_small(entry.path() / "stat");
      const std::size_t name_end = stat ? stat.value().rfind(") ") : std::string::npos;
      int of = 0;
      if (name_end != std::string::npos && std::sscanf(stat.value().c_str() + name_end + 4, "%d", &of) == 1 &&
          of == parent)
        children.push_back(std::atoi(entry.path().filename().c_str()));
    }
    return children;
  }

  actuate::FakeTree tree_;
  std::vector<pid_t> daemons_;
};

}  // namespace molen::daemon
