// What a sum of joules covers and what it leaves out, so that a total over part of the machine is never taken for the
// whole.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/json.h"
#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

struct Coverage {
  std::int64_t hosts = 0;
  std::map<std::string, std::int64_t> scopes;   // hosts that have a meter for this scope
  std::set<std::string> summed;                 // the scopes that are in the total; others lie within one of these
  std::map<std::string, std::int64_t> missing;  // "cpu", "dram", "gpu", or one scope ("gpu3"): hosts without it

  // Of several hosts together.
  Coverage& operator+=(const Coverage& other);
  // "" for all that is there; else "gpu only", "without cpu-package1, part of gpu", "nothing measured".
  std::string partial() const;
};

// The parts of a machine that a scope holds: "cpu-package0" {cpu}, "psys" {cpu, dram}, "dram0" {dram}, "gpu1" {gpu};
// nothing for a name of another kind.
std::set<std::string> parts_of(const std::string& scope);

// One host. CPU and DRAM are always there, GPUs where `gpus` says so; what has no reading, as a part or as one scope of
// a part that has others, is missing.
Coverage coverage_of(const Meters& meters, bool gpus);

// GPUs that this process may use: NVIDIA's (by the driver's folder in /proc) unless `visible` (as
// CUDA_VISIBLE_DEVICES) hides all; AMD's that are no part of a processor.
bool has_gpus(const Machine& machine, const std::optional<std::string>& visible);

// The text of `partial` for what is summed and what is missing on how many of `hosts`.
std::string partial_text(const std::set<std::string>& summed, const std::map<std::string, std::int64_t>& missing,
                         std::int64_t hosts);

Json to_json(const Coverage& coverage);
// Throws UsageError naming origin and key.
Coverage coverage_from_json(const Json& json, const std::string& origin);

}  // namespace molen::energy
