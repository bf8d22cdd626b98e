// NVIDIA GPUs through NVML, loaded at run time: the energy counter (mJ since driver load, Volta and newer, updated
// about every 100 ms), else power integrated from samples.
#pragma once

#include <optional>
#include <string>

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

struct NvmlOptions {
  std::string library = "libnvidia-ml.so.1";
  // As CUDA_VISIBLE_DEVICES: indices or UUIDs. Scope gpuN is the N-th visible device. Absent: all devices.
  std::optional<std::string> visible;
  Seconds sample_every{0.1};  // of power, where there is no counter
};

// Without the library, or with no device that is visible, nothing but the reason. On GH200-class modules the counter
// holds CPU and memory too.
Meters open_nvml(const Machine& machine, const NvmlOptions& options = {});

}  // namespace molen::energy
