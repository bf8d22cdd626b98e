#include "data/process.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"

namespace molen::data {
namespace {

// The messages of other programs are in English, which molen reads, whatever the user's language.
TEST(Process, SpeaksEnglish) {
  const char* before = std::getenv("LC_ALL");
  const std::string kept = before ? before : "";
  ::setenv("LC_ALL", "nl_NL.UTF-8", 1);
  ::setenv("LC_ALLOW", "kept", 1);
  const std::string output = run_process({"env"}, "/").output;
  ::unsetenv("LC_ALLOW");
  before ? ::setenv("LC_ALL", kept.c_str(), 1) : ::unsetenv("LC_ALL");
  EXPECT_EQ(output.find("nl_NL"), std::string::npos) << output;
  EXPECT_NE(output.find("LC_ALL=C\n"), std::string::npos) << output;
  EXPECT_NE(output.find("LC_ALLOW=kept\n"), std::string::npos) << output;
}

TEST(Process, OutputAndStatus) {
  EXPECT_EQ(run_process({"sh", "-c", "pwd; exit 3"}, "/").status, 3);
  EXPECT_EQ(run_process({"sh", "-c", "pwd"}, "/").output, "/\n");
  EXPECT_EQ(run_process({"no-such-program-here"}, "/").status, 127);
  EXPECT_EQ(run_process({"no-such-program-here"}, "/", {}, {0, 1 << 30, 0}).status, 127);
  EXPECT_EQ(run_process({"sh", "-c", "kill -9 $$"}, "/").status, 137);
  const std::string input(300000, 'x');
  EXPECT_EQ(run_process({"wc", "-c"}, "/", input).output, "300000\n");
  EXPECT_EQ(run_process({"true"}, "/", input).status, 0) << "input that nobody reads";
  EXPECT_EQ(run_process({"cat"}, "/").output, "") << "no input is an empty one";
}

// Another child of this process that has ended stays for whoever started it.
TEST(Process, OnlyItsOwnProgramIsWaitedFor) {
  const pid_t other = ::fork();
  if (other == 0) ::_exit(7);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(other), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(run_process({"sh", "-c", "exit 3"}, "/").status, 3);
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

// Without a limit, at least the last 64 KiB of a program's output are kept.
TEST(Process, KeepsTheEndOfALongOutput) {
  const std::string output = run_process({"seq", "100001", "200000"}, "/").output;
  EXPECT_GE(output.size(), std::size_t{64} << 10);
  EXPECT_LE(output.size(), std::size_t{192} << 10);
  std::string all;
  for (int i = 100001; i <= 200000; ++i) all += std::to_string(i) + "\n";
  EXPECT_TRUE(all.ends_with(output));
  EXPECT_EQ(run_process({"seq", "100001", "118000"}, "/").output.size(), 18000u * 7) << "less than that is kept whole";
  EXPECT_EQ(run_process({"seq", "100001", "200000"}, "/", {}, {0, 0, 1 << 20}).output.size(), 700000u);
  EXPECT_EQ(run_process({"no-such-program-here"}, "/").output, "no-such-program-here: no such program");
}

// Runs `sleep` in a process of its own, which is killed when it has slept for so long, and waits up to ten seconds
// until no process has the sleeper's end of a pipe. Returns whether it ended.
bool sleeper_ends_with_its_parent(int signal_at_our_end, std::chrono::microseconds life) {
  std::array<int, 2> held{};
  EXPECT_EQ(::pipe(held.data()), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::close(held[0]);
    ProcessLimits limits;
    limits.signal_at_our_end = signal_at_our_end;
    run_process({"sleep", "15"}, "/", {}, limits);
    ::_exit(0);
  }
  ::close(held[1]);
  std::this_thread::sleep_for(life);
  EXPECT_EQ(::kill(parent, SIGKILL), 0);
  EXPECT_EQ(::waitpid(parent, nullptr, 0), parent);
  pollfd end{held[0], POLLIN, 0};
  const bool ended = ::poll(&end, 1, 10000) == 1;
  ::close(held[0]);
  return ended;
}

// Whenever this process is killed, also while the program is being started, the program ends.
TEST(Process, EndsWithThisProcess) {
  for (int i = 0; i < 60; ++i)
    EXPECT_TRUE(sleeper_ends_with_its_parent(i % 2 == 0 ? SIGKILL : SIGTERM, std::chrono::microseconds(50 * i)))
        << "killed after " << 50 * i << " us";
}

// The program can be asked instead, and may then do what it wants. Without a signal it goes on.
TEST(Process, GetsTheSignalOfOurEnd) {
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen-end-{}", ::getpid());
  make_directories(folder);
  const std::string script = "trap 'echo asked > asked; exit' TERM; echo $$ > begun; while :; do sleep 0.02; done";
  for (const int signal : {SIGTERM, 0}) {
    remove_tree(folder / "begun"), remove_tree(folder / "asked");
    const pid_t parent = ::fork();
    if (parent == 0) {
      ProcessLimits limits;
      limits.signal_at_our_end = signal;
      run_process({"sh", "-c", script}, folder, {}, limits);
      ::_exit(0);
    }
    const auto within = [](const std::function<bool()>& holds, int tries) {
      for (int i = 0; i < tries && !holds(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return holds();
    };
    const auto written = [&](const char* name) {
      return path_exists(folder / name) && !read_file(folder / name).empty();
    };
    ASSERT_TRUE(within([&] { return written("begun"); }, 1000));
    ASSERT_EQ(::kill(parent, SIGKILL), 0);
    ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
    EXPECT_EQ(within([&] { return written("asked"); }, signal != 0 ? 1000 : 30), signal != 0);
    if (signal == 0) ::kill(std::stoi(read_file(folder / "begun")), SIGKILL);
  }
  remove_tree(folder);
}

TEST(Process, LimitsEndIt) {
  EXPECT_EQ(run_process({"sh", "-c", "while :; do :; done"}, "/", {}, {0.1, 0, 0}).status, 137);
  const ProcessResult loud = run_process({"yes"}, "/", {}, {0, 0, 1 << 20});
  EXPECT_EQ(loud.status, 137);
  EXPECT_LE(loud.output.size(), std::size_t{2} << 20);
  // dd allocates its block at once; 32 MiB of memory are enough for a small block.
  EXPECT_EQ(run_process({"dd", "if=/dev/zero", "of=/dev/null", "bs=1K", "count=1"}, "/", {}, {0, 32 << 20, 0}).status,
            0);
  EXPECT_NE(run_process({"dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"}, "/", {}, {0, 32 << 20, 0}).status,
            0);
  EXPECT_EQ(run_process({"sh", "-c", "echo a; sleep 0.2; echo b"}, "/", {}, {0.1, 0, 100}).output, "a\nb\n")
      << "waiting is no CPU time";
}

TEST(Process, TimeByTheClockEndsIt) {
  ProcessLimits limits;
  limits.wall_seconds = 0.2, limits.grace_seconds = 0.2;
  const ProcessResult asked = run_process({"sleep", "30"}, "/", {}, limits);
  EXPECT_EQ(asked.status, 128 + SIGTERM);
  EXPECT_TRUE(asked.timed_out);
  const std::string deaf = "trap '' TERM; while :; do sleep 0.02; done";
  EXPECT_EQ(run_process({"sh", "-c", deaf}, "/", {}, limits).status, 128 + SIGKILL);
  const ProcessResult silent = run_process({"sh", "-c", "exec >&- 2>&-; exec sleep 30"}, "/", {}, limits);
  EXPECT_TRUE(silent.timed_out) << "a program that has closed its output";
  limits.wall_seconds = 30;
  const ProcessResult early = run_process({"sh", "-c", "echo a; exit 4"}, "/", {}, limits);
  EXPECT_EQ(early.status, 4);
  EXPECT_EQ(early.output, "a\n");
  EXPECT_FALSE(early.timed_out);
}

// A pipe that every process of a tree has open, and that ends with the last of them. A guard closes it.
class HeldPipe {
 public:
  HeldPipe() { EXPECT_EQ(::pipe(held_.data()), 0); }
  ~HeldPipe() {
    let_go();
    ::close(held_[0]);
  }
  void let_go() {  // in the process that waits
    if (held_[1] >= 0) ::close(held_[1]);
    held_[1] = -1;
  }
  bool ends(int within_ms = 10000) {
    let_go();
    pollfd end{held_[0], POLLIN, 0};
    return ::poll(&end, 1, within_ms) == 1;
  }

 private:
  std::array<int, 2> held_{};
};

ProcessLimits tree_limits(double grace_s) {
  ProcessLimits limits;
  limits.whole_tree = true, limits.signal_at_our_end = SIGKILL, limits.grace_seconds = grace_s;
  return limits;
}

// A launcher that does not pass on signals, with a child in a session of its own, and one that hears no request.
const std::string kLauncher =
    "setsid sh -c 'sleep 60 & wait' & sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & sleep 60";

TEST(ProcessTree, EndsWithItsProgram) {
  HeldPipe tree;
  const ProcessResult ran =
      run_process({"sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo a; exit 3"}, "/", {}, tree_limits(30));
  EXPECT_EQ(ran.status, 3);
  EXPECT_EQ(ran.output, "a\n");
  EXPECT_TRUE(tree.ends(0)) << "what the program has left behind has ended when run_process returns";
}

TEST(ProcessTree, EndsWhenItsTimeIsOver) {
  HeldPipe tree;
  ProcessLimits limits = tree_limits(0.3);
  limits.wall_seconds = 0.3;
  const ProcessResult ran = run_process({"sh", "-c", kLauncher}, "/", {}, limits);
  EXPECT_TRUE(ran.timed_out);
  EXPECT_EQ(ran.status, 128 + SIGTERM);
  EXPECT_TRUE(tree.ends(0));
}

// Also while it is being started: the first kills come before the guard has begun.
TEST(ProcessTree, EndsWithThisProcess) {
  for (int i = 0; i < 12; ++i) {
    HeldPipe tree;
    const pid_t parent = ::fork();
    if (parent == 0) {
      run_process({"sh", "-c", kLauncher}, "/", {}, tree_limits(0.2));
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(i < 10 ? 200 * i : 200000));
    ASSERT_EQ(::kill(parent, SIGKILL), 0);
    ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
    EXPECT_TRUE(tree.ends()) << "try " << i;
  }
}

// A program that is asked has the time to end what it started; then nothing is killed.
TEST(ProcessTree, LeavesAProgramTheTimeToEnd) {
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen-tree-{}", ::getpid());
  make_directories(folder);
  ProcessLimits limits = tree_limits(30);
  limits.wall_seconds = 2;
  const std::string script =
      "sh -c 'trap \"sleep 0.2; echo ended > ended; exit\" TERM; while :; do sleep 0.02; done' & job=$!\n"
      "trap 'kill $job; wait $job; exit 5' TERM\nwait $job";
  EXPECT_EQ(run_process({"sh", "-c", script}, folder, {}, limits).status, 5);
  EXPECT_EQ(read_file(folder / "ended"), "ended\n");
  remove_tree(folder);
}

// Also when this process is killed: its guard asks the program first.
TEST(ProcessTree, IsAskedWhenThisProcessIsKilled) {
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen-asked-{}", ::getpid());
  make_directories(folder);
  HeldPipe tree;
  const pid_t parent = ::fork();
  if (parent == 0) {
    // Threads of a killed process end one by one, so the signal of its death may come while it still has some.
    std::vector<std::jthread> threads;
    for (int i = 0; i < 50; ++i) threads.emplace_back([] { ::pause(); });
    std::thread([&] {
      run_process({"sh", "-c", "trap 'echo asked > asked; exit' TERM; echo > begun; while :; do sleep 0.02; done"},
                  folder, {}, tree_limits(30));
    }).join();
    ::_exit(0);
  }
  for (int i = 0; i < 1000 && !path_exists(folder / "begun"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_EQ(::kill(parent, SIGKILL), 0);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(tree.ends());
  EXPECT_EQ(read_file(folder / "asked"), "asked\n");
  remove_tree(folder);
}

TEST(ProcessTree, SaysThatAProgramDoesNotExist) {
  const ProcessResult ran = run_process({"no-such-program-here"}, "/", {}, tree_limits(30));
  EXPECT_EQ(ran.status, 127);
  EXPECT_EQ(ran.output, "no-such-program-here: no such program");
}

// A signal to this process goes to each of its programs.
TEST(ProcessTree, SeveralProgramsGetASignal) {
  const fs::path folder = fs::path(::testing::TempDir()) / fmt::format("molen-signals-{}", ::getpid());
  make_directories(folder);
  ProcessLimits limits = tree_limits(30);
  limits.passes_signals = true;
  std::array<ProcessResult, 3> ran{};
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < ran.size(); ++i)
      threads.emplace_back([&, i] {
        const std::string script =
            fmt::format("trap 'exit {}' TERM; echo > {}; while :; do sleep 0.02; done", 10 + i, i);
        ran[i] = run_process({"sh", "-c", script}, folder, {}, limits);
      });
    for (std::size_t i = 0; i < ran.size(); ++i)
      for (int t = 0; t < 1000 && !path_exists(folder / std::to_string(i)); ++t)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  }
  for (std::size_t i = 0; i < ran.size(); ++i) {
    EXPECT_EQ(ran[i].status, 10 + static_cast<int>(i));
    EXPECT_EQ(ran[i].signal, SIGTERM);
  }
  struct sigaction now {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
  remove_tree(folder);
}

}  // namespace
}  // namespace molen::data
