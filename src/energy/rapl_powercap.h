// Reads RAPL through the powercap files of sysfs (Linux Documentation/power/powercap): zones intel-rapl:P and
// intel-rapl:P:S with `name`, `energy_uj` and `max_energy_range_uj`. The same files exist on Intel and on AMD Zen.
#pragma once

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// Opens packages, their DRAM, and psys. `core` and `uncore` are inside the package and left out. A zone that appears
// twice (intel-rapl-mmio repeats the packages of intel-rapl) is read once, and the copy is listed with its reason.
Meters open_powercap(const Machine& machine);

}  // namespace molen::energy
