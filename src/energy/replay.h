// Reads energy from a recording: for tests, demonstrations and the study of policies on machines without counters.
#pragma once

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// Opens a recording with one JSON object per line: {"time_s": 0.5, "energy_j": {"cpu-package0": 61.5, "gpu0": null}}.
// Joules count from the recording's start; times increase, joules never decrease, and each line has the same scopes.
// Time runs from the opening of the meters; between lines joules are interpolated. There is no reading between a null
// and the lines beside it, nor after the last line. Throws UsageError naming file, line and key.
Meters open_replay(const Machine& machine, const fs::path& file);
// Parses a recording in memory in the same way; `origin` names it.
Meters parse_replay(const Machine& machine, const std::string& text, const std::string& origin);

}  // namespace molen::energy
