// Chooses the meters that a run reads: by name, with a test before their values are used.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "energy/dcmi.h"
#include "energy/machine.h"
#include "energy/meter.h"
#include "energy/nvml/nvml.h"
#include "energy/rapl_perf.h"
#include "energy/redfish.h"

namespace molen::energy {

struct OpenOptions {
  Machine machine;
  NvmlOptions nvml;
  std::optional<std::string> amd_visible;  // as VisibleGpus::amd
  std::function<Result<std::shared_ptr<IpmiController>>(const Machine&)> ipmi = kernel_ipmi;
  std::function<Result<std::shared_ptr<RedfishService>>(const RedfishUrl&)> redfish = https_redfish;
  std::shared_ptr<PerfEvents> perf = kernel_perf_events();
  // The meters of the node's energy daemon (src/daemon), for "auto" and "daemon"; null: it is not asked.
  std::function<Meters()> daemon = {};
  double settle_s = 0.5;  // longest wait for a counter's first change; a counter that never changes is dropped
};

// Returns the options of this process: it may read the GPUs that its environment shows it (visible.h).
OpenOptions options_of_process();

// Returns the words of energy.meters.
const std::vector<std::string>& meter_names();

// Opens the meters in `names` (energy.meters): "auto" takes all that this machine has; "none"; "rapl" (perf, then
// powercap for scopes that perf lacks), "rapl-perf", "rapl-powercap", "nvml", "amd", "cray", "hwmon", "dcmi",
// "redfish:URL", "daemon", "replay:FILE", "replay-clock:FILE". One reader per node is enough: counters belong to the
// node, not to a rank. Under "auto" a machine without a package counter gets a null meter "cpu-package" with the
// reason. Throws UsageError for an unknown name, and for a meter requested by name that has no reading here (nothing is
// omitted silently).
Meters open_meters(const std::vector<std::string>& names, const OpenOptions& options = {});

}  // namespace molen::energy
