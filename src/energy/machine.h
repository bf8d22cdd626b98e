// The machine as meters see it: where the kernel's files are, and time. Tests put a fake tree and a fake clock here.
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
  fs::path sys = "/sys", proc = "/proc";
  std::function<double()> clock;      // seconds, monotonic
  std::function<void(double)> sleep;  // seconds

  Machine();  // this machine
};

// The CPU flag "hypervisor": a virtual machine, whose host usually keeps the energy counters.
bool is_virtual(const Machine& machine);

// A small kernel file without its trailing white space, or why it cannot be read ("FILE: Permission denied").
Result<std::string> read_small(const fs::path& path);
// The same as an unsigned decimal number; anything else in the file is a reason.
Result<std::uint64_t> read_count(const fs::path& path);
// "0,18-19" -> {0, 18, 19}; a reason for anything else, or for more than 65536 CPUs.
Result<std::vector<int>> parse_cpu_list(std::string_view text);

}  // namespace molen::energy
