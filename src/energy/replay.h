// Reads energy from a recording: for tests, demonstrations and the study of policies on machines without counters.
#pragma once

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// This says where the time of a recording begins. With kOpening, the first line is the moment at which the meters are
// opened, so each attempt of a run starts the recording anew. With kClock, the times are those of the machine's
// monotonic clock. All attempts then read one counter, which goes on between them as the counters of machines do.
enum class ReplayTime { kOpening, kClock };

// Opens a recording with one JSON object per line: {"time_s": 0.5, "energy_j": {"cpu-package0": 61.5, "gpu0": null}}.
// Joules count from the recording's start; times increase, joules never decrease, and each line has the same scopes.
// Between lines joules are interpolated. There is no reading between a null and the lines beside it, nor before the
// first line or after the last one. Throws UsageError naming file, line and key.
Meters open_replay(const Machine& machine, const fs::path& file, ReplayTime time = ReplayTime::kOpening);
// Parses a recording in memory in the same way; `origin` names it.
Meters parse_replay(const Machine& machine, const std::string& text, const std::string& origin,
                    ReplayTime time = ReplayTime::kOpening);

}  // namespace molen::energy
