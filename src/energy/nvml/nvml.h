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
  // Same form as CUDA_VISIBLE_DEVICES: indices or UUIDs. Scope gpuN is the N-th visible device. Absent: all devices.
  std::optional<std::string> visible;
  Seconds sample_every{0.1};  // of power, when there is no counter
};

// When the library is missing or no device is visible, the result has the reason and no meter. On GH200-class modules
// the counter includes CPU and memory.
Meters open_nvml(const Machine& machine, const NvmlOptions& options = {});

}  // namespace molen::energy
