// The parts of a machine that a sum of joules covers and those that it leaves out, so that a partial total is never
// taken for the whole.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/json.h"
#include "energy/machine.h"
#include "energy/meter.h"
#include "energy/scope.h"
#include "energy/visible.h"

namespace molen::energy {

struct Coverage {
  std::int64_t hosts = 0;
  std::map<std::string, std::int64_t> scopes;  // hosts that have a meter for this scope
  std::set<std::string> summed;  // the scopes that the total adds; it leaves out those that lie within them
  std::map<std::string, std::int64_t> missing;  // "cpu", "dram", "gpu", or one scope ("gpu3"): hosts without it

  // Combines the coverage of several hosts.
  Coverage& operator+=(const Coverage& other);
  // Returns "" for complete coverage; else "gpu only", "without cpu-package1, part of gpu", "nothing measured".
  std::string partial() const;
};

// Returns the coverage of one host. A host always has CPU and DRAM, and GPUs if `gpus` is true. A part without a
// reading is missing, and so is a single scope of a part whose other scopes are read.
Coverage coverage_of(const Meters& meters, bool gpus);

// Returns whether this process may use GPUs, which `visible` may hide: NVIDIA's, by the driver's folder in /proc;
// AMD's, unless they are part of a processor.
bool has_gpus(const Machine& machine, const VisibleGpus& visible);

// Returns the text of `partial` for the summed scopes, and for each missing one its number of hosts among `hosts`.
std::string partial_text(const std::set<std::string>& summed, const std::map<std::string, std::int64_t>& missing,
                         std::int64_t hosts);

Json to_json(const Coverage& coverage);
// Throws UsageError naming origin and key.
Coverage coverage_from_json(const Json& json, const std::string& origin);

}  // namespace molen::energy
