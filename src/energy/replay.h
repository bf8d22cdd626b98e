// Energy read from a recording: for tests, demonstrations and the study of policies on machines without counters.
#pragma once

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// One JSON object a line: {"time_s": 0.5, "energy_j": {"cpu-package0": 61.5, "gpu0": null}}; joules since the
// recording's start, times increasing, joules never decreasing, the same scopes in each line. Time runs from the
// opening of the meters; between lines joules are interpolated. Beside a null, and after the last line, there is no
// reading. Throws UsageError naming file, line and key.
Meters open_replay(const Machine& machine, const fs::path& file);
// The same of a recording in memory; `origin` names it.
Meters parse_replay(const Machine& machine, const std::string& text, const std::string& origin);

}  // namespace molen::energy
