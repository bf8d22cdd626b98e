// Reads the power meters of Grace processors: devices "power_meter" (ACPI000D) of the kernel's hwmon, whose
// power1_oem_info says what each measures. They give power alone, which is integrated.
#pragma once

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// Opens "module0" (Module Power Socket 0: processor, its memory, and the GPU if the module has one), "grace0" (Grace
// Power Socket 0: processor and its memory), "cpu-package0" (CPU Power Socket 0) and "sysio0" (SysIO Power Socket 0). A
// power meter that does not say what it measures is listed as unavailable, because its place on the board is unknown.
// So are modules where several sockets have meters of their own.
Meters open_hwmon(const Machine& machine);

}  // namespace molen::energy
