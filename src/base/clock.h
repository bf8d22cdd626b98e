// Time: a steady clock for durations, wall time for records.
#pragma once

#include <ctime>

#include <chrono>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/units.h"

namespace molen {

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
inline Seconds now() {
  return Seconds(static_cast<double>(now_ns()) * 1e-9);
}

// Returns the CPU time of the calling thread in ns. It stops while the thread sleeps or another thread has its core.
inline std::int64_t thread_cpu_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Returns the seconds since 1970-01-01 UTC.
inline double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}
// Returns a text such as "2026-11-21T04:02:00Z". `wall` is in seconds since 1970; a time before that, or after year
// 9999, gives "(no date)".
std::string utc_timestamp(double wall);
// Parses a time of ISO 8601, from year 1970 to 9999, to seconds since 1970: "2026-11-21", "2026-11-21T04:02",
// "2026-11-21 04:02:00.5Z", "2026-11-21T05:02+01:00". A time without an offset is UTC. Failures say what is wrong.
Result<double> parse_time(std::string_view text);

}  // namespace molen
