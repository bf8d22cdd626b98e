// Reads the counters of HPE Cray nodes (LUMI, Frontier, Perlmutter): files /sys/cray/pm_counters/*_energy, which any
// user may read and which the node's controller updates about ten times a second. `energy` is the whole node's.
#pragma once

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// Opens the scopes "node" (file energy), "cpu" (cpu_energy), "dram" (memory_energy), "cpu-package0" (cpu0_energy) and
// "accel0" (accel0_energy); a file that is not there is no scope. All are read from one scan of the controller, which
// `freshness` numbers. The counters have whole joules.
Meters open_cray(const Machine& machine);

}  // namespace molen::energy
