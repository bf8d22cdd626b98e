// How much memory this process can still take, and the most that it took.
#pragma once

#include <string>

#include "base/file.h"
#include "base/units.h"

namespace molen {

struct AvailableMemory {
  Bytes bytes;
  std::string source;  // the file that says it: /proc/meminfo, or the narrowest limit of a control group
};

// The least of what the host gives without swapping (MemAvailable) and of what each control group around this process,
// of versions 1 and 2, has left below its limit. What a group can take back from caches counts as left, as in
// MemAvailable: else whoever has read many files would seem to have no memory. `root`: where /proc and what is mounted
// there lie, for tests. Throws Error for a file that does not say what the kernel's documentation has it say.
AvailableMemory available_memory(const fs::path& root = "/");

// Most bytes of this program that were ever resident (VmHWM). getrusage's ru_maxrss outlives exec: it would be the
// launcher's where that was larger.
Bytes peak_resident();

}  // namespace molen
