// Reads RAPL through the powercap files of sysfs (Linux Documentation/power/powercap): zones intel-rapl:P and
// intel-rapl:P:S with `name`, `energy_uj` and `max_energy_range_uj`. The same files exist on Intel and on AMD Zen.
#pragma once

#include <string>

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// Opens packages, their DRAM, and psys. `core` and `uncore` are inside the package and left out. A zone that appears
// twice (intel-rapl-mmio repeats the packages of intel-rapl) is read once, and the copy is listed with its reason.
Meters open_powercap(const Machine& machine);

// Returns "0" for a zone named "package-0" and "0-die1" for "package-0-die-1"; "" for another name.
std::string package_number(const std::string& zone_name);

}  // namespace molen::energy
