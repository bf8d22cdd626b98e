// The memory that this process can still take, and the most that it took.
#pragma once

#include <string>

#include "base/file.h"
#include "base/units.h"

namespace molen {

struct AvailableMemory {
  Bytes bytes;
  std::string source;  // the file that limits it: /proc/meminfo, or the narrowest limit of a control group
};

// Returns the smallest of these numbers: the host's memory that is available without swapping (MemAvailable) and, for
// each control group around this process (version 1 or 2), the rest below its limit. Memory that a group can reclaim
// from caches counts as available, as in MemAvailable: otherwise a process that read many files would seem to have no
// memory. `root` replaces / in tests. Throws Error for a file that differs from the kernel's documentation.
AvailableMemory available_memory(const fs::path& root = "/");

// Returns the largest number of bytes of this program that were ever resident (VmHWM). getrusage's ru_maxrss would not
// do: it survives exec, so it would show the launcher's peak where that was larger.
Bytes peak_resident();

}  // namespace molen
