// Reads NVIDIA GPUs through NVML, which is loaded at run time. GPUs since Volta have an energy counter (in mJ since the
// driver was loaded, updated about every 100 ms); for others, power is sampled and integrated.
#pragma once

#include <optional>
#include <string>

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

struct NvmlOptions {
  std::string library = "libnvidia-ml.so.1";
  // Indices or UUIDs, as VisibleGpus::nvidia; absent: all devices. Scope gpuN is the N-th visible device.
  std::optional<std::string> visible;
  Seconds sample_every{0.1};  // of power, when there is no counter
};

// When the library is missing or no device is visible, the result has the reason and no meter. The counter of a GH200
// includes its processor and memory, so its scope is "superchip0" instead of "gpu0".

Meters open_nvml(const Machine& machine, const NvmlOptions& options = {});

}  // namespace molen::energy
