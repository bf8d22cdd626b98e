// Which meters a run reads: chosen by name, tried, and tested before they are believed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "energy/machine.h"
#include "energy/meter.h"
#include "energy/nvml/nvml.h"
#include "energy/rapl_perf.h"

namespace molen::energy {

struct OpenOptions {
  Machine machine;
  NvmlOptions nvml;
  std::shared_ptr<PerfEvents> perf = kernel_perf_events();
  double settle_s = 0.5;  // longest wait for a counter's first change; one that stands still is not believed
};

// `names` (energy.meters): "auto" takes what this machine has; "none"; "rapl" (perf, then powercap for scopes that perf
// lacks), "rapl-perf", "rapl-powercap", "nvml", "replay:FILE". One reader a node is enough: counters are the node's,
// not a rank's. Under "auto" a machine without a package counter gets a null meter "cpu-package" that says why. Throws
// UsageError for an unknown name, and for a meter asked for by name that has no reading here (nothing is quietly left
// out).
Meters open_meters(const std::vector<std::string>& names, const OpenOptions& options = {});

}  // namespace molen::energy
