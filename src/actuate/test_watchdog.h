// A session on a fake tree, and jobs that a test kills.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actuate/session.h"
#include "actuate/sysfs.h"
#include "actuate/test_tree.h"
#include "base/clock.h"

namespace molen::actuate {

inline const State kFound{3000000, 3000000, 3000000, 3000000};
inline const State kSet{1500000, 1500000, 3000000, 3000000};
inline constexpr const char* kFirst = "cpufreq:cpu-package0";

class Watchdog : public ::testing::Test {
 protected:
  Watchdog() { tree_.cpufreq(); }

  fs::path journals() const { return tree_.root() / "journals"; }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    if (fs::exists(journals()))
      for (const auto& entry : fs::directory_iterator(journals())) names.push_back(entry.path().filename().string());
    return names;
  }
  SessionOptions options() {
    return {journals(),
            {MOLEN_GUARDIAN, tree_.root().string()},
            [this](const std::string& s) { said_ += s + "\n"; },
            Seconds(20)};
  }
  Result<std::unique_ptr<Session>> open(const std::string& id = kFirst) {
    return Session::open(open_cpufreq(tree_.machine), {id}, options());
  }
  void recover() {
    Actuators here = open_cpufreq(tree_.machine);
    recover_journals(
        journals(), here, [this](const std::string& s) { said_ += s + "\n"; }, Seconds(10));
  }
  bool said(const std::string& part) const { return said_.find(part) != std::string::npos; }

  // Waits until a condition holds, at most 20 s.
  template <class Condition>
  static bool soon(Condition condition) {
    for (const Seconds until = now() + Seconds(20); now() < until;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return condition();
  }

  struct Job {
    pid_t pid = -1, guardian = -1;
  };
  // Starts a job that sets 1.5 GHz and then runs `then`, by default for ever.
  Job start_job(const std::function<void(Session&)>& then = [](Session&) { ::pause(); }) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      int guardian = -1;
      auto session = open();
      if (session && session.value()->set(0, 1500000)) guardian = session.value()->guardian_pid();
      (void)!::write(ends[1], &guardian, sizeof guardian);
      if (guardian > 0) then(*session.value());
      std::_Exit(0);
    }
    Job job{pid, -1};
    EXPECT_EQ(::read(ends[0], &job.guardian, sizeof job.guardian), static_cast<ssize_t>(sizeof job.guardian));
    ::close(ends[0]);
    ::close(ends[1]);
    EXPECT_GT(job.guardian, 0);
    return job;
  }
  static void finish(pid_t pid, int signal) {
    if (signal != 0) EXPECT_EQ(::kill(pid, signal), 0);
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  }

  FakeTree tree_;
  std::string said_;
};

}  // namespace molen::actuate
