// The machine as meters see it: the location of the kernel's files, and time. Tests substitute a fake tree and a fake
// clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "base/units.h"

namespace molen::energy {

struct Machine {
  fs::path sys, proc = "/proc", dev = "/dev";
  std::function<double()> clock;      // seconds, monotonic
  std::function<void(double)> sleep;  // seconds

  // This machine. MOLEN_SYSFS names the folder where /sys is, for containers that have the host's elsewhere.
  Machine();
};

// Returns whether the CPU has the flag "hypervisor". The host of a virtual machine usually does not pass on the energy
// counters.
bool is_virtual(const Machine& machine);

// Returns the first 4096 bytes of a kernel file as they are: one read, so that the kernel writes all of them at once.
Result<std::string> read_bytes(const fs::path& path);
// Returns the content of a small kernel file without its trailing white space; a failure gives the reason ("FILE:
// Permission denied").
Result<std::string> read_small(const fs::path& path);
// Reads a small kernel file that holds an unsigned decimal number; any other content is a failure.
Result<std::uint64_t> read_count(const fs::path& path);
// Parses a list such as "0,18-19" to {0, 18, 19}. Returns a failure for anything else, or for more than 65536 CPUs.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

}  // namespace molen::energy
