// The highest clock and the power limit of NVIDIA GPUs, through NVML.
#pragma once

#include "actuate/actuator.h"
#include "energy/machine.h"
#include "energy/nvml/nvml.h"

namespace molen::actuate {

// Returns the settings of the GPUs that the job may use, or the reasons. A GPU that MIG divides is not set. NVML does
// not tell whether clocks are locked, so restoring unlocks them, also where an administrator had locked them.
Actuators open_nvml_settings(const energy::Machine& machine, const energy::NvmlOptions& options = {});

}  // namespace molen::actuate
