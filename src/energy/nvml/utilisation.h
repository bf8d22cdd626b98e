// The joules of NVIDIA GPUs that give neither energy nor power, estimated from how busy NVML says they are.
#pragma once

#include <memory>
#include <vector>

#include "energy/nvml/nvml.h"
#include "energy/power_model.h"

namespace molen::energy {

struct GpuParts {
  std::vector<std::unique_ptr<ModelledPart>> parts;
  std::vector<Unavailable> unavailable;
};

// Returns a part for each GPU that the job may use, with scopes "gpu0" and so on, as open_nvml numbers them. Their
// utilisation is the share of the last period (1/6 s to 1 s, by the GPU) in which a kernel ran
// (nvmlDeviceGetUtilizationRates), so it says nothing of how much of the GPU the kernel used.
GpuParts model_gpus(const PartFigures& figures, const NvmlOptions& options);

}  // namespace molen::energy
