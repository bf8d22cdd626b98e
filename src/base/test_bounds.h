// For tests: limits on the resources that hostile input may take. They are 256 MiB, and the time of a fixed amount of
// work (1 s on a processor of 2023). A sanitizer slows both down, and its shadow memory counts too.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <string>

#include "base/available_memory.h"
#include "base/test_sanitized.h"

namespace molen {

struct Cost {
  double cpu_s = 0, wall_s = 0;
  double unit_s = 0;       // CPU time of `work_unit` in the same process, before or after the attack: the longer one
  std::int64_t bytes = 0;  // memory above the level before the attack
  bool ended = false;      // false: it was killed, for time or memory
  std::string refusal;     // the error's text; empty if there was no error
};

// Returns the CPU time of this process and of the programs that it ran to their end. The load of other processes does
// not count.
inline double cpu_seconds() {
  double sum = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    ::getrusage(who, &used);
    for (const timeval& t : {used.ru_utime, used.ru_stime})
      sum += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  }
  return sum;
}

// Does a fixed amount of work of the kind that parsers do: it splits, copies and looks up short strings. CPU seconds
// depend on the processor and on other load. The ratio of an attack's time to this work's time depends on neither.
inline std::size_t work_unit() {
  std::map<std::string, std::size_t> counts;
  std::size_t sum = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string line = "buffer b" + std::to_string(i % 5003) + " u8 1";
    for (std::size_t at = 0; at < line.size(); at = line.find(' ', at + 1)) sum += ++counts[line.substr(at)];
  }
  return sum;
}

// Returns the CPU time that `work_unit` takes now: 8 ms on a processor of 2023.
inline double unit_seconds() {
  const double start_s = cpu_seconds();
  return work_unit() > 0 ? cpu_seconds() - start_s : 0;
}
inline constexpr double kMostUnits = 125;

// Runs `attack` in a child process. There it cannot reuse memory that other tests freed, which would hide its use, and
// it can be killed when it does not end.
inline Cost cost_of(const std::function<void()>& attack) {
  struct Measured {
    double cpu_s, wall_s, unit_s;
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
    ::alarm(2 * kMostSeconds);  // an attack that waits takes no processor time
    std::string refusal;
    const double unit_before_s = unit_seconds();
    const double before_s = cpu_seconds();
    const auto begun = std::chrono::steady_clock::now();
    const std::int64_t before = peak_resident().value;
    try {
      attack();
    } catch (const std::exception& error) {
      refusal = error.what();
    }
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begun;
    Measured measured{cpu_seconds() - before_s, wall.count(), 0, peak_resident().value - before};
    measured.unit_s = std::max(unit_before_s, unit_seconds());
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
    cost = {measured.cpu_s, measured.wall_s, measured.unit_s, measured.bytes, true, refusal};
  }
  ::close(ends[0]);
  return cost;
}

// Checks that an attack ends within its limits, whether it is refused or not. Returns the text of its refusal. `shadow`
// is a factor of the limit of memory in a sanitized build, for an attack that the release build limits to 256 MiB.
inline std::string bounded(const std::string& name, const std::function<void()>& attack, int shadow = 1) {
  const Cost cost = cost_of(attack);
  EXPECT_TRUE(cost.ended) << name << ": took all the time and memory there was";
  EXPECT_LT(cost.cpu_s, kMostUnits * cost.unit_s) << name;
  EXPECT_LT(cost.wall_s, 10 + 10 * cost.cpu_s) << name << ": waits";  // other processes may take cores and disk
  EXPECT_LT(cost.bytes, std::int64_t{kSanitized ? shadow : 1} << 28) << name;
  fmt::print("{:<60} {:6.3f} s {:5.1f} units {:5} MiB  {}\n", name, cost.cpu_s, cost.cpu_s / cost.unit_s,
             cost.bytes >> 20, cost.refusal.empty() ? "bounded" : "refused");
  return cost.refusal;
}

}  // namespace molen
