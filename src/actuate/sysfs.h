// Settings in files of the kernel. Each function returns those of this machine that can be written, and for the others
// the reason, with what an administrator must permit.
#pragma once

#include <string>
#include <vector>

#include "actuate/actuator.h"
#include "energy/machine.h"

namespace molen::actuate {

// The highest clock of the cores of a package: scaling_max_freq of each cpufreq policy in it.
Actuators open_cpufreq(const energy::Machine& machine);
// The highest clock of the uncore of a package (Intel): max_freq_khz of each of its dies.
Actuators open_uncore(const energy::Machine& machine);
// The long-term power limit of a package: constraint_N_power_limit_uw of its powercap zone.
Actuators open_powercap_limits(const energy::Machine& machine);
// The power limit of an AMD GPU: power1_cap of its hwmon folder. Scope gpuN is the N-th GPU by its PCI address. Where
// ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES is set (`visible`), no GPU is set: the order of its numbers need not be
// this one.
Actuators open_amdgpu(const energy::Machine& machine, bool visible);

// For the functions above.
struct FilePart {
  fs::path file;
  Part part;
};
// Adds an actuator of these files, or the reason why one of them cannot be read or written.
void add_file_actuator(Actuators& found, ActuatorInfo info, const std::vector<FilePart>& files);
// Reads a file of one number; any other content is a failure.
Result<std::int64_t> read_value(const fs::path& file);
// Returns the names in a folder that begin with `prefix`, in the order of the numbers in them; none if it is absent.
std::vector<std::string> names_in(const fs::path& folder, const std::string& prefix);
// Returns "; this is a virtual machine, whose host keeps ..." where it is one, else `otherwise`.
std::string virtual_or(const energy::Machine& machine, const std::string& otherwise);

}  // namespace molen::actuate
