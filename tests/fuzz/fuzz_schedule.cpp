// Pipeline schedules: refused with a UsageError, or unchanged after being written and read again; they then have slots
// and times.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "program/schedule/schedule.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen::program;
  try {
    const Schedule s = parse_schedule({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (parse_schedule(print_schedule(s), "again") != s) std::abort();
    const double idle = idle_share(simulate(s, uniform_costs(s, 1, 1, 1)));
    if (!(idle >= 0.0 && idle < 1.0)) std::abort();
  } catch (const molen::UsageError&) {
  }
  return 0;
}
