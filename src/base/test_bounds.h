// Limits on the resources that hostile input may take: a second and 256 MiB. For tests.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <string>

#include "base/available_memory.h"
#include "base/test_sanitized.h"

namespace molen {

struct Cost {
  double cpu_s = 0;
  std::int64_t bytes = 0;  // memory above the level before the attack
  bool ended = false;      // false: it was killed, for time or memory
  std::string refusal;     // the error's text; empty if there was no error
};

// Runs `attack` in a child process: free memory of other tests hides nothing, and an endless attack can be ended.
inline Cost cost_of(const std::function<void()>& attack) {
  struct Measured {
    double cpu_s;
    std::int64_t bytes;
  };
  constexpr rlim_t kMostSeconds = 60;
  int ends[2];
  if (::pipe(ends) != 0) return {};
  ::malloc_trim(0);  // memory that is free here would be free in the child too
  const pid_t pid = ::fork();
  if (pid == 0) {
    const rlimit limit{kMostSeconds, kMostSeconds};
    ::setrlimit(RLIMIT_CPU, &limit);
    const auto cpu_s = [] {
      double sum = 0;
      for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {  // includes programs that it runs
        rusage used{};
        ::getrusage(who, &used);
        for (const timeval& t : {used.ru_utime, used.ru_stime})
          sum += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
      }
      return sum;
    };
    std::string refusal;
    const double before_s = cpu_s();
    const std::int64_t before = peak_resident().value;
    try {
      attack();
    } catch (const std::exception& error) {
      refusal = error.what();
    }
    const Measured measured{cpu_s() - before_s, peak_resident().value - before};
    refusal.resize(std::min<std::size_t>(refusal.size(), 4000));  // a pipe holds that much
    const bool told = ::write(ends[1], &measured, sizeof measured) == sizeof measured &&
                      ::write(ends[1], refusal.data(), refusal.size()) == static_cast<ssize_t>(refusal.size());
    ::_exit(told ? 0 : 1);
  }
  ::close(ends[1]);
  Measured measured{};
  std::string refusal(4000, '\0');
  Cost cost;
  int status = 0;
  if (pid > 0 && ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
      ::read(ends[0], &measured, sizeof measured) == sizeof measured) {
    const ssize_t got = ::read(ends[0], refusal.data(), refusal.size());
    refusal.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    cost = {measured.cpu_s, measured.bytes, true, refusal};
  }
  ::close(ends[0]);
  return cost;
}

// Checks that an attack ends within its limits, whether it is refused or not. Returns the text of its refusal.
inline std::string bounded(const std::string& name, const std::function<void()>& attack) {
  constexpr int kTimes = kSanitized ? 20 : 1, kMore = kSanitized ? 8 : 1;  // unoptimised, and with shadow memory
  const Cost cost = cost_of(attack);
  EXPECT_TRUE(cost.ended) << name << ": took all the time and memory there was";
  EXPECT_LT(cost.cpu_s, 1.0 * kTimes) << name;
  EXPECT_LT(cost.bytes, std::int64_t{kMore} << 28) << name;
  fmt::print("{:<60} {:6.3f} s {:5} MiB  {}\n", name, cost.cpu_s, cost.bytes >> 20,
             cost.refusal.empty() ? "bounded" : "refused");
  return cost.refusal;
}

}  // namespace molen
