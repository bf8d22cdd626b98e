// The daemon as peers meet it: other users, hostile ones, slow ones, and the ends of processes.
#include "daemon/server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <fstream>
#include <random>

#include "base/error.h"
#include "base/test_sanitized.h"
#include "collect/address.h"
#include "daemon/conversation.h"
#include "daemon/test_daemon.h"

namespace molen::daemon {
namespace {

Result<int> begin_at(const fs::path& socket) {
  const collect::Address address{"", 0, socket.string()};
  return collect::begin_connection(address, collect::find_endpoints(address).value().front());
}

// A connection that says whatever the test wants.
class RawPeer {
 public:
  explicit RawPeer(const fs::path& socket) : socket_(begin_at(socket).value()) {}
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // Returns the next line; "closed" at the end, "nothing" if none comes.
  std::string line(int wait_ms = 20'000) {
    for (;;) {
      if (const std::size_t end = read_.find('\n'); end != std::string::npos) {
        const std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return line;
      }
      pollfd polled{socket_.get(), POLLIN, 0};
      if (::poll(&polled, 1, wait_ms) <= 0) return "nothing";
      char bytes[4096];
      const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return "closed";
      read_.append(bytes, static_cast<std::size_t>(got));
    }
  }
  bool is_cut() const {
    pollfd polled{socket_.get(), 0, 0};
    return ::poll(&polled, 1, 0) > 0 && (polled.revents & POLLHUP) != 0;
  }
  void shut() { ::shutdown(socket_.get(), SHUT_WR); }

 private:
  Descriptor socket_;
  std::string read_;
};

class Serving : public DaemonTest {
 protected:
  static bool asks_in_time(Client& client) {
    return client.ask({Request::Kind::kRead}, Answer::Kind::kReadings, Seconds(20)).ok();
  }
  static Result<Answer> lease(Client& client, const std::string& id = kPackage0) {
    return client.ask({Request::Kind::kLease, {id}}, Answer::Kind::kLeased, Seconds(60));
  }
  static Result<Answer> set(Client& client, std::int64_t value, const std::string& id = kPackage0) {
    return client.ask({Request::Kind::kSet, {id}, value}, Answer::Kind::kSet, Seconds(60));
  }
};

TEST_F(Serving, ListsReadsSetsAndRestores) {
  const pid_t daemon = start();
  const auto peer = client();
  const auto listed = peer->ask({Request::Kind::kList}, Answer::Kind::kListing);
  ASSERT_TRUE(listed.ok()) << listed.reason();
  EXPECT_EQ(listed.value().listing.meters.at(0).meter, "counting");
  EXPECT_EQ(listed.value().listing.settings.size(), 2u);
  const auto read = peer->ask({Request::Kind::kRead}, Answer::Kind::kReadings);
  EXPECT_GT(read.value().readings.at(0).reading->total.value, 100.0);
  EXPECT_EQ(set(*peer, 1500000).reason(), "this connection has no lease");
  ASSERT_TRUE(lease(*peer).ok());
  EXPECT_EQ(lease(*peer, kPackage1).reason(), "this connection has a lease already; restore it first");
  EXPECT_EQ(set(*peer, 1500000).value().present, 1500000);
  EXPECT_EQ(tree_.clocks(), kFirstSet);
  EXPECT_FALSE(set(*peer, 700000).ok()) << "beyond the device";
  EXPECT_FALSE(set(*peer, 3100000).ok()) << "above what was found";
  const auto restored = peer->ask({Request::Kind::kRestore}, Answer::Kind::kRestored, Seconds(30));
  EXPECT_EQ(restored.value().restoration.restored, 2);
  EXPECT_EQ(tree_.clocks(), kAsFound);
  EXPECT_TRUE(lease(*peer, kPackage1).ok()) << "another lease";
  EXPECT_EQ(peer->lost(), "");
  EXPECT_EQ(finish(daemon, SIGTERM), 0);
  EXPECT_EQ(said(), "");
}

TEST_F(Serving, EachEndOfAPeerRestores) {
  start();
  {
    const auto peer = client();
    ASSERT_TRUE(lease(*peer).ok());
    ASSERT_TRUE(set(*peer, 1500000).ok());
  }
  EXPECT_TRUE(soon([&] { return tree_.clocks() == kAsFound; })) << "it has closed its connection";
  kill_job(start_job());
  EXPECT_TRUE(soon([&] { return tree_.clocks() == kAsFound; })) << "it was killed";
  EXPECT_TRUE(soon([&] { return left().empty(); }));
}

TEST_F(Serving, AChildOfAPeerKeepsNothingSet) {
  start();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t job = start_job([&](Client&) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::pause();
      std::_Exit(0);
    }
    (void)!::write(ends[1], &child, sizeof child);
    ::pause();
  });
  pid_t child = -1;
  ASSERT_EQ(::read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  kill_job(job);
  EXPECT_TRUE(soon([&] { return tree_.clocks() == kAsFound; })) << "the child still has the connection";
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(Serving, EachEndOfTheDaemonRestores) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    const pid_t daemon = start();
    const auto peer = client();
    ASSERT_TRUE(lease(*peer).ok());
    ASSERT_TRUE(set(*peer, 1500000).ok());
    finish(daemon, signal);
    EXPECT_TRUE(soon([&] { return left().empty(); })) << signal;
    EXPECT_EQ(tree_.clocks(), kAsFound) << signal;
    EXPECT_EQ(fs::exists(socket()), signal == SIGKILL);
    EXPECT_EQ(set(*peer, 1500000).reason(), fmt::format("the energy daemon at {}: it is gone", socket().string()));
    EXPECT_NE(peer->lost(), "");
  }
  start();  // on the socket of the one that was killed
  EXPECT_TRUE(asks_in_time(*client()));
}

TEST_F(Serving, TheNextDaemonRestoresWhatNobodyCould) {
  const pid_t daemon = start();
  const auto peer = client();
  ASSERT_TRUE(lease(*peer).ok());
  ASSERT_TRUE(set(*peer, 1500000).ok());
  const auto guardians = children_of(daemon);
  ASSERT_EQ(guardians.size(), 1u);
  ASSERT_EQ(::kill(guardians[0], SIGSTOP), 0);
  finish(daemon, SIGKILL);
  ASSERT_EQ(::kill(guardians[0], SIGKILL), 0);
  ASSERT_TRUE(soon([&] { return !actuate::is_running(guardians[0]); }));
  EXPECT_EQ(tree_.clocks(), kFirstSet);
  start();
  EXPECT_EQ(tree_.clocks(), kAsFound);
  EXPECT_NE(said().find("ended without restoring what it had set"), std::string::npos) << said();
}

// Peers and daemons that are killed at random moments, sometimes with the guardian.
TEST_F(Serving, AKillAtAnyMomentIsRestored) {
  std::mt19937 random(7);
  const int rounds = kSanitized ? 9 : 30;
  pid_t daemon = start();
  for (int round = 0; round < rounds; ++round) {
    const pid_t job = start_job([](Client& peer) {
      for (std::int64_t i = 0;; ++i) (void)set(peer, 1000000 + 100000 * (i % 20)).ok();
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    const bool of_daemon = round % 3 != 0, of_guardian = round % 3 == 2;
    std::vector<pid_t> guardians;
    if (of_guardian) {
      guardians = children_of(daemon);
      for (const pid_t guardian : guardians) EXPECT_EQ(::kill(guardian, SIGSTOP), 0);
    }
    if (of_daemon) finish(daemon, SIGKILL);
    for (const pid_t guardian : guardians) EXPECT_EQ(::kill(guardian, SIGKILL), 0);
    for (const pid_t guardian : guardians) EXPECT_TRUE(soon([&] { return !actuate::is_running(guardian); }));
    kill_job(job);
    if (of_daemon) daemon = start();
    ASSERT_TRUE(soon([&] { return left().empty(); })) << round << ": " << left().at(0) << "\n" << said();
    ASSERT_EQ(tree_.clocks(), kAsFound) << round;
  }
}

TEST_F(Serving, TwoUsersWhoWantTheSameDevice) {
  ServerOptions o = options();
  o.allowed.users.insert(kNobody);
  if (!may_become_another_user()) GTEST_SKIP() << "only root becomes another user";
  start(o);
  const auto attempt = [&] {
    return as_user(kNobody, kNobody, {}, [&] {
      auto peer = Client::connect(socket());
      if (!peer) return peer.reason();
      if (const auto leased = lease(*peer.value()); !leased) return leased.reason();
      const auto done = set(*peer.value(), 1500000);
      return done ? std::string("set") : done.reason();
    });
  };
  const auto first = client();
  ASSERT_TRUE(lease(*first).ok());
  ASSERT_TRUE(set(*first, 2000000).ok());
  EXPECT_EQ(attempt(),
            fmt::format("cpufreq:cpu-package0 is set by process {} of {}, and only one job may; wait for it to end",
                        ::getpid(), Peer{::geteuid(), 0}.text().substr(std::string("a process of ").size())));
  EXPECT_EQ(tree_.clocks(), (State{2000000, 2000000, 3000000, 3000000}));
  ASSERT_TRUE(first->ask({Request::Kind::kRestore}, Answer::Kind::kRestored, Seconds(30)).ok());
  EXPECT_EQ(attempt(), "set");
  EXPECT_TRUE(soon([&] { return tree_.clocks() == kAsFound; }));
}

TEST_F(Serving, OnlyUsersAndGroupsOnTheListAreAnswered) {
  const auto words = [&](const std::vector<gid_t>& groups) {
    return as_user(kNobody, kNobody, groups, [&] {
      const auto peer = Client::connect(socket());
      return peer ? std::string("welcome") : peer.reason();
    });
  };
  if (!may_become_another_user()) GTEST_SKIP() << "only root becomes another user";
  pid_t daemon = start();
  EXPECT_EQ(
      words({}),
      fmt::format("the energy daemon at {}: user 65534 may not use this daemon; an administrator allows users and "
                  "groups with --allow-user and --allow-group",
                  socket().string()));
  EXPECT_NE(said().find("of user 65534 was refused: it is not on the list of this daemon"), std::string::npos)
      << said();
  finish(daemon, SIGTERM);
  ServerOptions o = options();
  o.allowed.groups = {4711};
  daemon = start(o);
  EXPECT_NE(words({}), "welcome");
  EXPECT_EQ(words({4710, 4711}), "welcome") << "by a supplementary group, as the kernel has it";
  finish(daemon, SIGTERM);
  o.allowed.groups = {kNobody};
  start(o);
  EXPECT_EQ(words({}), "welcome") << "by its own group";
}

TEST_F(Serving, ALeaseEndsWithTheOwnership) {
  fs::create_directories(owners());
  std::ofstream(owners() / "77") << kNobody << " cpu-package0\n";
  fs::permissions(owners() / "77", fs::perms(0644));
  ServerOptions o = options();
  o.allowed.users.insert(kNobody);
  o.leases.ownership = Ownership(Ownership::Rule::kGrants, owners());
  start(o);
  if (!may_become_another_user()) GTEST_SKIP() << "only root becomes another user";
  const auto job = [&] {
    auto peer = Client::connect(socket());
    if (!peer) return peer.reason();
    if (lease(*peer.value(), kPackage1)) return std::string("it got a device of nobody's");
    if (const auto leased = lease(*peer.value()); !leased) return leased.reason();
    if (const auto done = set(*peer.value(), 1500000); !done) return done.reason();
    return soon([&] { return !peer.value()->lost().empty(); }) ? peer.value()->lost() : std::string("it went on");
  };
  EXPECT_EQ(as_user(kNobody, kNobody, {}, job,
                    [&] {
                      EXPECT_TRUE(soon([&] { return tree_.clocks() == kFirstSet; })) << said();
                      fs::remove(owners() / "77");
                      EXPECT_TRUE(soon([&] { return tree_.clocks() == kAsFound; })) << said();
                    }),
            fmt::format("the energy daemon at {}: cpu-package0 belongs to no job of user 65534 on this node",
                        socket().string()));
}

TEST_F(Serving, RequestsThatComeTogetherPutOffNoLook) {
  fs::create_directories(owners());
  std::ofstream(owners() / "77") << kNobody << " cpu-package0\n";
  fs::permissions(owners() / "77", fs::perms(0644));
  ServerOptions o = options();
  o.allowed.users.insert(kNobody);
  o.leases.ownership = Ownership(Ownership::Rule::kGrants, owners());
  o.limits.requests_per_s = 1;
  o.limits.burst = 10;
  start(o);
  if (!may_become_another_user()) GTEST_SKIP() << "only root becomes another user";
  const auto job = [&] {
    RawPeer peer(socket());
    peer.line();
    (void)peer.send(request_line({Request::Kind::kLease, {kPackage0}}));
    (void)peer.send(request_line({Request::Kind::kSet, {kPackage0}, 1500000}));
    // The daemon answers these for minutes.
    for (int i = 0; i < 300; ++i) (void)peer.send(request_line({Request::Kind::kRead}));
    std::string last;
    for (std::string line; (line = peer.line()) != "closed" && line != "nothing";) last = line;
    return last;
  };
  EXPECT_EQ(as_user(kNobody, kNobody, {}, job,
                    [&] {
                      EXPECT_TRUE(soon([&] { return tree_.clocks() == kFirstSet; })) << said();
                      fs::remove(owners() / "77");
                      EXPECT_TRUE(soon([&] { return tree_.clocks() == kAsFound; })) << said();
                    }),
            "{\"closing\":\"cpu-package0 belongs to no job of user 65534 on this node\"}");
}

TEST_F(Serving, WhatIsLeftIsRestoredThoughNobodyAsks) {
  ServerOptions o = options();
  o.limits.retry_s = 0.05;
  const pid_t daemon = start(o);
  const fs::path file = tree_.root() / tree_.policy(1);
  {
    const auto peer = client();
    ASSERT_TRUE(lease(*peer).ok());
    ASSERT_TRUE(set(*peer, 1500000).ok());
    fs::rename(file, file.string() + ".away");
    fs::create_directory(file);
  }
  ASSERT_TRUE(soon([&] { return children_of(daemon).empty(); })) << "its guardian has given up";
  EXPECT_EQ(left().size(), 1u);
  fs::remove(file);
  fs::rename(file.string() + ".away", file);
  EXPECT_TRUE(soon([&] { return tree_.clocks() == kAsFound && left().empty(); })) << said();
  EXPECT_EQ(finish(daemon, SIGTERM), 0);
}

TEST_F(Serving, APeerWhoseEndCannotBeWatchedIsCut) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const ServerOptions o = options();
  MeterBoard board({}, Seconds(0.1), o.clock);
  LeaseOptions of_leases = lease_options();
  of_leases.said = [](const auto&) {};
  Leases leases(of_leases);
  Allowances allowances(1e3, 1e3);
  PowerLimits power_limits(leases, o.clock, o.say);
  Conversation conversation({board, leases, allowances, power_limits, o.limiters, o.limits, o.clock, ends[1]}, ends[0],
                            {::geteuid(), ::getegid(), {}, ::getpid()});
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string cut = conversation.run();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(cut, fmt::format("the end of process {} cannot be watched: Too many open files; connect again later",
                             ::getpid()));
  char line[512];
  const ssize_t got = ::recv(ends[1], line, sizeof line, 0);
  ASSERT_GT(got, 0);
  EXPECT_EQ(std::string(line, static_cast<std::size_t>(got)), closing_line(cut));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(Serving, HostileLinesAreRefusedOrCut) {
  ServerOptions o = options();
  o.limits.line_s = 0.2;
  start(o);
  const auto honest = client();
  RawPeer talker(socket());
  EXPECT_EQ(talker.line(), "{\"welcome\":1}");
  for (const std::string& line :
       {std::string("GET / HTTP/1.1\r"), std::string("{}"), std::string("\0\0\xff", 3), std::string(),
        std::string("{\"request\":\"set\",\"setting\":\"../../etc/passwd\",\"value\":1}"),
        "{\"request\":\"list\",\"x\":" + std::string(2000, '[')}) {
    ASSERT_TRUE(talker.send(line + "\n"));
    EXPECT_EQ(talker.line().find("{\"refused\":\""), 0u) << line;
  }
  ASSERT_TRUE(talker.send("{\"request\":\"read\"}\n{\"request\":\"read\"}\n"));
  EXPECT_EQ(talker.line().find("{\"readings\":"), 0u) << "it is served on, and requests may come together";
  EXPECT_EQ(talker.line().find("{\"readings\":"), 0u);
  RawPeer endless(socket());
  endless.line();
  (void)endless.send(std::string(kMostRequestBytes + 100, 'x'));
  EXPECT_EQ(endless.line(), fmt::format("{{\"closing\":\"a request has more than {} bytes\"}}", kMostRequestBytes));
  EXPECT_EQ(endless.line(), "closed");
  RawPeer slow(socket());
  slow.line();
  ASSERT_TRUE(slow.send("{\"request\":"));
  EXPECT_EQ(slow.line(), "{\"closing\":\"a request took more than 0.2 s\"}");
  RawPeer half(socket());
  half.line();
  ASSERT_TRUE(half.send("{\"request\":\"li"));
  half.shut();
  EXPECT_EQ(half.line(), "closed");
  EXPECT_TRUE(asks_in_time(*honest));
  EXPECT_TRUE(soon([&] { return said().find("was cut: a request took more than 0.2 s") != std::string::npos; }))
      << said();
}

TEST_F(Serving, SilentAndDeafPeersHoldNobodyUp) {
  ServerOptions o = options();
  o.limits.answer_s = 0.3;
  o.limits.requests_per_s = o.limits.burst = 1e6;
  start(o);
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(std::make_unique<RawPeer>(socket()));
  for (const auto& peer : silent) ASSERT_TRUE(peer->send("{\"request\":"));
  RawPeer deaf(socket());
  for (int i = 0; i < 20000 && deaf.send("{\"request\":\"list\"}\n"); ++i) continue;
  const auto honest = client();
  const Seconds began = now();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(asks_in_time(*honest));
  EXPECT_LT((now() - began).value, 10.0);
  EXPECT_TRUE(soon([&] { return deaf.is_cut(); })) << "it takes no answer";
}

TEST_F(Serving, ConnectionsAreLimited) {
  ServerOptions o = options();
  o.limits.connections_of_user = 3;
  start(o);
  std::vector<std::unique_ptr<Client>> all;
  for (int i = 0; i < 3; ++i) all.push_back(client());
  EXPECT_EQ(Client::connect(socket()).reason(),
            fmt::format("the energy daemon at {}: user {} has 3 connections already", socket().string(), ::geteuid()));
  EXPECT_TRUE(asks_in_time(*all[0]));
  all.pop_back();
  EXPECT_TRUE(soon([&] { return Client::connect(socket()).ok(); })) << "one has left";
}

TEST_F(Serving, TheWholeDaemonHasALimitToo) {
  ServerOptions o = options();
  o.limits.connections = 2;
  start(o);
  const auto one = client(), two = client();
  EXPECT_NE(Client::connect(socket()).reason().find("this daemon has 2 connections already"), std::string::npos);
}

// Anybody may connect, so the thread that accepts must do the rest of its work meanwhile.
TEST_F(Serving, AFloodOfConnectionsStopsNothing) {
  ServerOptions o = options();
  o.limits.connections_of_user = 2;
  o.limits.retry_s = 0.05;
  const pid_t daemon = start(o);
  const auto first = client(), second = client();
  std::vector<pid_t> flood;
  for (int i = 0; i < 4; ++i) {
    flood.push_back(::fork());
    if (flood.back() == 0)
      for (;;) {
        const auto refused = begin_at(socket());
        if (refused) ::close(refused.value());
      }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(asks_in_time(*first));
  const Seconds began = now();
  EXPECT_EQ(finish(daemon, SIGTERM), 0);
  EXPECT_LT((now() - began).value, 15.0);
  for (const pid_t pid : flood) kill_job(pid);
}

TEST_F(Serving, TheSocketNeedsAFolderThatNoOtherUserCanWrite) {
  const fs::path folder = tree_.root() / "open";
  fs::create_directories(folder);
  ServerOptions o = options();
  o.socket = folder / "energy.sock";
  for (const unsigned mode : {0777U, 01777U, 0775U}) {
    fs::permissions(folder, fs::perms(mode));
    try {
      Server server({}, o);
      ADD_FAILURE() << mode;
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()),
                fmt::format("{}: others may write it (mode {:04o}): chmod go-w; the socket needs a folder that no "
                            "other user can write, such as /run/molen",
                            folder.string(), mode));
    }
    EXPECT_TRUE(fs::is_empty(folder));
  }
  fs::permissions(folder, fs::perms(0755));
  const Server server({}, o);
  struct stat status {};
  ASSERT_EQ(::stat(o.socket.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0666u);
}

TEST(AllowancesOfUsers, AreRequestsPerSecond) {
  Allowances allowances(10.0, 3.0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(allowances.take(7, 100.0), 0.0);
  EXPECT_NEAR(allowances.take(7, 100.0), 0.1, 1e-9);
  EXPECT_NEAR(allowances.take(7, 100.0), 0.2, 1e-9);
  EXPECT_EQ(allowances.take(8, 100.0), 0.0) << "another user";
  EXPECT_EQ(allowances.take(7, 100.5), 0.0);
  EXPECT_EQ(allowances.take(7, 200.0), 0.0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(allowances.take(7, 200.0), 0.0) << "no more than the burst is saved";
  EXPECT_GT(allowances.take(7, 200.0), 0.0);
}

TEST_F(Serving, AUserThatAsksTooOftenWaits) {
  ServerOptions o = options();
  o.limits.requests_per_s = 20;
  o.limits.burst = 5;
  start(o);
  const auto peer = client();
  const Seconds began = now();
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(asks_in_time(*peer));
  EXPECT_GT((now() - began).value, 0.4) << "ten of them at 20 a second";
}

TEST_F(Serving, ASecondDaemonOnTheSameSocketIsRefused) {
  start();
  ServerOptions o = options();
  try {
    Server second({}, o);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_EQ(std::string(error.what()), fmt::format("unix:{}: another process listens there", socket().string()));
  }
  EXPECT_TRUE(fs::exists(socket())) << "the first one's";
  EXPECT_TRUE(asks_in_time(*client()));
}

}  // namespace
}  // namespace molen::daemon
