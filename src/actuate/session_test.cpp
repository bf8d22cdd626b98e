#include "actuate/session.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "actuate/sysfs.h"
#include "actuate/test_watchdog.h"
#include "base/test_filesystem.h"
#include "base/test_sanitized.h"

namespace molen::actuate {
namespace {

TEST_F(Watchdog, ASessionRestoresAtItsEnd) {
  {
    auto session = open();
    ASSERT_TRUE(session.ok()) << session.reason();
    EXPECT_EQ(left().size(), 1u) << "the journal is there before the first change";
    ASSERT_TRUE(session.value()->set(0, 1500000).ok());
    EXPECT_EQ(tree_.clocks(), kSet);
    ASSERT_TRUE(session.value()->set(0, 2000000).ok());
    const Restoration end = session.value()->end();
    EXPECT_EQ(end.restored, 2);
    EXPECT_FALSE(session.value()->set(0, 2000000).ok()) << "it has ended";
  }
  EXPECT_EQ(tree_.clocks(), kFound);
  EXPECT_TRUE(left().empty());
  EXPECT_EQ(said_, "");
}

// Values that were announced are in the journal, which is written no more for them.
TEST_F(Watchdog, AnnouncedValuesNeedNoFurtherJournal) {
  auto session = open();
  ASSERT_TRUE(session.ok()) << session.reason();
  const auto written = [&] { return fs::last_write_time(journals() / left().at(0)); };
  EXPECT_FALSE(session.value()->announce(0, {1500000, 700000}).ok()) << "below the least one";
  const auto before = written();
  ASSERT_TRUE(session.value()->announce(0, {1500000, 2000000}).ok());
  const auto announced = written();
  EXPECT_NE(announced, before);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(session.value()->set(0, i % 2 == 0 ? 2000000 : 1500000).ok());
  EXPECT_EQ(tree_.clocks(), kSet);
  EXPECT_EQ(written(), announced);
  ASSERT_TRUE(session.value()->set(0, 1800000).ok());
  const auto another = written();
  EXPECT_NE(another, announced);
  ASSERT_TRUE(session.value()->set(0, 1500000).ok());
  EXPECT_EQ(written(), another) << "still announced";
  EXPECT_EQ(session.value()->end().restored, 2);
  EXPECT_FALSE(session.value()->announce(0, {1500000}).ok()) << "it has ended";
}

TEST_F(Watchdog, AnnouncedValuesAreRestoredAfterAKill) {
  const State announced{2000000, 2000000, 3000000, 3000000};
  const Job job = start_job([](Session& session) {
    if (session.announce(0, {2000000, 1500000}) && session.set(0, 2000000)) ::pause();
    std::_Exit(1);
  });
  EXPECT_TRUE(soon([&] { return tree_.clocks() == announced; }));
  finish(job.pid, SIGKILL);
  EXPECT_TRUE(soon([&] { return left().empty(); }));
  EXPECT_EQ(tree_.clocks(), kFound);
}

TEST_F(Watchdog, ASessionRestoresWhenAnExceptionPasses) {
  EXPECT_THROW(
      {
        const auto session = open();
        EXPECT_TRUE(session.value()->set(0, 1500000).ok());
        throw Error("the run fails");
      },
      Error);
  EXPECT_EQ(tree_.clocks(), kFound);
  EXPECT_TRUE(left().empty());
}

TEST_F(Watchdog, TheGuardianRestoresAfterAKill) {
  for (const int signal : {SIGKILL, SIGTERM, SIGABRT}) {
    const Job job = start_job();
    EXPECT_EQ(tree_.clocks(), kSet);
    finish(job.pid, signal);
    EXPECT_TRUE(soon([&] { return left().empty(); })) << signal;
    EXPECT_EQ(tree_.clocks(), kFound) << signal;
  }
}

// A signal to the process group, as a terminal or a launcher sends it, does not reach the guardian.
TEST_F(Watchdog, AKillOfTheProcessGroupSparesTheGuardian) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t leader = ::fork();
  if (leader == 0) {
    ::setpgid(0, 0);
    auto session = open();
    const char ok = session && session.value()->set(0, 1500000) ? 'y' : 'n';
    (void)!::write(ends[1], &ok, 1);
    ::pause();
    std::_Exit(0);
  }
  char ok = 0;
  ASSERT_EQ(::read(ends[0], &ok, 1), 1);
  ASSERT_EQ(ok, 'y');
  ASSERT_EQ(::kill(-leader, SIGKILL), 0);
  finish(leader, 0);
  EXPECT_TRUE(soon([&] { return left().empty(); }));
  EXPECT_EQ(tree_.clocks(), kFound);
  ::close(ends[0]);
  ::close(ends[1]);
}

// A child that the job forked holds its pipe open after the job's death.
TEST_F(Watchdog, AChildOfTheJobDoesNotHoldTheGuardianBack) {
  pid_t child = -1;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Job job = start_job([&](Session&) {
    const pid_t forked = ::fork();
    if (forked == 0) {
      ::pause();
      std::_Exit(0);
    }
    (void)!::write(ends[1], &forked, sizeof forked);
    ::pause();
  });
  ASSERT_EQ(::read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  finish(job.pid, SIGKILL);
  EXPECT_TRUE(soon([&] { return left().empty(); }));
  EXPECT_EQ(tree_.clocks(), kFound);
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

// A peer must see the end of the job's sockets when the job ends, not when its guardian does.
TEST_F(Watchdog, TheGuardianHoldsNothingElseOfTheJobOpen) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);  // without O_CLOEXEC, as libraries open them
  const auto session = open();
  ASSERT_TRUE(session.ok()) << session.reason();
  ::close(ends[1]);
  pollfd end{ends[0], POLLIN, 0};
  EXPECT_EQ(::poll(&end, 1, 5000), 1);
  EXPECT_NE(end.revents & POLLHUP, 0);
  ::close(ends[0]);
}

// Between the death of a job and the restoration by its guardian, no other job may take what it finds for its own.
TEST_F(Watchdog, TheGuardianHoldsTheLockUntilItHasRestored) {
  const Job job = start_job();
  ASSERT_EQ(::kill(job.guardian, SIGSTOP), 0);
  finish(job.pid, SIGKILL);
  SessionOptions hasty = options();
  hasty.patience = Seconds(0.1);
  const auto early = Session::open(open_cpufreq(tree_.machine), {kFirst}, hasty);
  ASSERT_FALSE(early.ok());
  EXPECT_NE(early.reason().find("and only one job may; wait for it to end"), std::string::npos) << early.reason();
  EXPECT_EQ(tree_.clocks(), kSet);
  ASSERT_EQ(::kill(job.guardian, SIGCONT), 0);
  const auto later = open();
  ASSERT_TRUE(later.ok()) << later.reason();
  EXPECT_EQ(later.value()->actuator(0).most(), 3000000);
}

TEST_F(Watchdog, AJobWhoseGuardianWasKilledRestoresItself) {
  auto session = open();
  ASSERT_TRUE(session.ok()) << session.reason();
  ASSERT_TRUE(session.value()->set(0, 1500000).ok());
  const int first = session.value()->guardian_pid();
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  EXPECT_EQ(session.value()->end().restored, 2);
  EXPECT_EQ(tree_.clocks(), kFound);
  EXPECT_TRUE(left().empty());
}

TEST_F(Watchdog, AKilledGuardianIsReplaced) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Job job = start_job([&](Session& session) {
    const int first = session.guardian_pid();
    ::kill(first, SIGKILL);
    while (::waitpid(first, nullptr, WNOHANG) == 0) continue;
    const char ok = session.keep_guarded() && session.guardian_pid() != first ? 'y' : 'n';
    (void)!::write(ends[1], &ok, 1);
    ::pause();
  });
  char ok = 0;
  ASSERT_EQ(::read(ends[0], &ok, 1), 1);
  EXPECT_EQ(ok, 'y');
  finish(job.pid, SIGKILL);
  EXPECT_TRUE(soon([&] { return left().empty(); }));
  EXPECT_EQ(tree_.clocks(), kFound);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(Watchdog, TheNextJobRestoresWhatNobodyCould) {
  const Job job = start_job();
  ASSERT_EQ(::kill(job.guardian, SIGKILL), 0);
  finish(job.pid, SIGKILL);
  ASSERT_TRUE(soon([&] { return !is_running(job.guardian); }));
  EXPECT_EQ(tree_.clocks(), kSet);
  ASSERT_EQ(left().size(), 1u);
  auto session = open();
  ASSERT_TRUE(session.ok()) << session.reason();
  EXPECT_TRUE(said(fmt::format("process {} on ", job.pid))) << said_;
  EXPECT_TRUE(said("ended without restoring what it had set\ncpufreq of cpu-package0: put back to 3 GHz\n")) << said_;
  EXPECT_EQ(tree_.clocks(), kFound);
  EXPECT_EQ(session.value()->actuator(0).most(), 3000000) << "what was found, not what the dead job had set";
  EXPECT_EQ(left().size(), 1u) << "the new one";
}

TEST_F(Watchdog, AnothersChangeIsLeftAloneByTheGuardianToo) {
  const Job job = start_job();
  tree_.number(tree_.policy(0), 1000000);
  finish(job.pid, SIGKILL);
  EXPECT_TRUE(soon([&] { return left().empty(); }));
  EXPECT_EQ(tree_.clocks(), (State{1000000, 3000000, 3000000, 3000000}));
}

TEST_F(Watchdog, TheSecondJobIsRefusedWithTheNameOfTheFirst) {
  const Job job = start_job();
  const auto second = open();
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.reason().find(fmt::format("cpufreq of cpu-package0 is set by process {} (", job.pid)),
            std::string::npos)
      << second.reason();
  EXPECT_NE(second.reason().find(fmt::format(") of {}", ::getpwuid(::getuid())->pw_name)), std::string::npos)
      << second.reason();
  EXPECT_EQ(tree_.clocks(), kSet) << "a living owner is not disturbed";
  auto other = open("cpufreq:cpu-package1");
  ASSERT_TRUE(other.ok()) << other.reason();
  EXPECT_TRUE(other.value()->set(0, 2000000).ok());
  EXPECT_EQ(tree_.clocks(), (State{1500000, 1500000, 2000000, 2000000}));
  finish(job.pid, SIGKILL);
  EXPECT_TRUE(soon([&] { return left().size() == 1; }));
  other.value()->end();
  EXPECT_EQ(tree_.clocks(), kFound);
  EXPECT_TRUE(open().ok()) << "the lock has ended with its owner";
}

TEST_F(Watchdog, NothingIsSetWithoutJournalOrGuardian) {
  SessionOptions without = options();
  without.guardian = {"/no/such/program"};
  const auto unguarded = Session::open(open_cpufreq(tree_.machine), {kFirst}, without);
  EXPECT_EQ(unguarded.reason(),
            "nothing is set without a guardian: /no/such/program: cannot be started as a guardian: No such file or "
            "directory");
  without.guardian = {"/bin/false"};
  EXPECT_EQ(Session::open(open_cpufreq(tree_.machine), {kFirst}, without).reason(),
            "nothing is set without a guardian: the guardian ended before it was ready");
  without.guardian = {MOLEN_GUARDIAN, (tree_.root() / "elsewhere").string()};
  EXPECT_EQ(Session::open(open_cpufreq(tree_.machine), {kFirst}, without).reason(),
            "nothing is set without a guardian: the guardian: it cannot set cpufreq:cpu-package0");
  EXPECT_TRUE(left().empty());
  EXPECT_EQ(open("uncore:cpu-package0").reason().find("uncore:cpu-package0 cannot be set: "), 0u);
  auto session = open();
  ASSERT_TRUE(session.ok()) << session.reason();
  FaultyFileSystem faults(tree_.root());
  const FileSystemOverride replaced(faults);
  faults.fail_from(0, EIO);
  const auto set = session.value()->set(0, 1500000);
  EXPECT_EQ(set.reason().find("nothing is set that could not be restored: "), 0u) << set.reason();
  EXPECT_EQ(tree_.clocks(), kFound);
  EXPECT_FALSE(Session::open(open_cpufreq(tree_.machine), {"cpufreq:cpu-package1"}, options()).ok());
  faults.fail_at(INT64_MAX, 0);
}

// Whichever call fails, the clocks are those that were found once the session and its guardian have ended.
TEST_F(Watchdog, AnyCallMayFail) {
  std::int64_t calls = 0;
  for (std::int64_t failing = -1; failing < calls; ++failing) {
    {
      FaultyFileSystem faults(tree_.root());
      const FileSystemOverride replaced(faults);
      faults.fail_at(failing, EIO);
      auto session = open();
      if (session) {
        (void)session.value()->set(0, 1500000).ok();
        (void)session.value()->set(0, 2000000).ok();
        session.value()->end();
      }
      calls = std::max(calls, faults.calls());
    }
    EXPECT_EQ(tree_.clocks(), kFound) << "call " << failing;
    EXPECT_TRUE(left().empty()) << "call " << failing;
  }
  EXPECT_GT(calls, 15);
}

// A job that changes its setting all the time is killed at a random moment, sometimes after its guardian.
TEST_F(Watchdog, AKillAtAnyMomentIsRestored) {
  const int rounds = kSanitized ? 12 : 40;
  for (int round = 0; round < rounds; ++round) {
    const Job job = start_job([](Session& session) {
      for (std::int64_t i = 0;; ++i) (void)session.set(0, 1000000 + 100000 * (i % 20)).ok();
    });
    std::this_thread::sleep_for(std::chrono::microseconds(517 * round));
    const bool both = round % 3 == 0;
    if (both) EXPECT_EQ(::kill(job.guardian, SIGSTOP), 0);  // it can neither restore nor be replaced
    finish(job.pid, SIGKILL);
    if (both) {
      EXPECT_EQ(::kill(job.guardian, SIGKILL), 0);
      EXPECT_TRUE(soon([&] { return !is_running(job.guardian); }));
      recover();
    }
    ASSERT_TRUE(soon([&] { return left().empty(); })) << round << ": " << left().at(0);
    ASSERT_EQ(tree_.clocks(), kFound) << round;
  }
}

TEST(DefaultJournals, AreThoseOfThisUser) {
  const auto with = [](const char* runtime, const char* temporary) {
    for (const auto& [name, value] : {std::pair{"XDG_RUNTIME_DIR", runtime}, {"TMPDIR", temporary}})
      value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
    return default_journals().string();
  };
  const std::string runtime = std::getenv("XDG_RUNTIME_DIR") ? std::getenv("XDG_RUNTIME_DIR") : "";
  const std::string temporary = std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "";
  EXPECT_EQ(with("/run/user/7", nullptr), "/run/user/7/molen");
  EXPECT_EQ(with("not/absolute", "/"), fmt::format("/molen-{}", ::geteuid()));
  EXPECT_EQ(with(nullptr, "/no/such/folder"), fmt::format("/tmp/molen-{}", ::geteuid()));
  with(runtime.empty() ? nullptr : runtime.c_str(), temporary.empty() ? nullptr : temporary.c_str());
}

TEST(Locks, TheHolderIsFoundInTheKernelsList) {
  const std::string text =
      "1: POSIX  ADVISORY  READ 99 08:01:7 0 EOF\n"
      "2: FLOCK  ADVISORY  WRITE 3417 00:1b:20311 0 EOF\n"
      "2: -> FLOCK  ADVISORY  WRITE 5000 00:1b:20311 0 EOF\n"
      "3: FLOCK  ADVISORY  WRITE 12 fe:00:20311 0 EOF\nnonsense\n4: FLOCK";
  EXPECT_EQ(holder_in(text, (0x00 << 8) | 0x1b, 20311), 3417);
  EXPECT_EQ(holder_in(text, (0xfe << 8) | 0x00, 20311), 12);
  EXPECT_EQ(holder_in(text, 5, 20311), 3417) << "the device may differ";
  EXPECT_EQ(holder_in(text, 0x0801, 7), 0) << "no lock of this kind";
  EXPECT_EQ(holder_in("", 0, 0), 0);
}

}  // namespace
}  // namespace molen::actuate
