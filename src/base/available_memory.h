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

// Returns the minimum of the host's memory available without swapping (MemAvailable) and of the rest below the limit of
// each control group around this process, of versions 1 and 2. Memory that a group can reclaim from caches counts as
// available, as in MemAvailable: otherwise a process that read many files would seem to have no memory. `root`: a
// replacement of / for tests. Throws Error for a file that differs from the kernel's documentation.
AvailableMemory available_memory(const fs::path& root = "/");

// Returns the most bytes of this program that were ever resident (VmHWM). getrusage's ru_maxrss survives exec: it would
// be the launcher's when that was larger.
Bytes peak_resident();

}  // namespace molen
