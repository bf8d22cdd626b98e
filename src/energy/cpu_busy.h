// How busy processors are, as the kernel counts it in /proc/stat.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "energy/machine.h"

namespace molen::energy {

// The time that processors spent since the machine started, in ticks of the kernel's clock, added up over processors.
struct CpuTimes {
  double busy = 0;  // user, nice, system, irq and softirq; guests count as user
  double all = 0;   // and idle, iowait, and what the host of a virtual machine gave to others (steal)
};

// Returns the numbers of the processors that this process may use (Cpus_allowed_list of /proc/self/status), as the
// kernel writes them: "0-3,8".
Result<std::string> allowed_cpus(const Machine& machine);
// Returns the number of processors of the machine that are online.
Result<int> count_cpus(const Machine& machine);
// Returns the model of the processor, by /proc/cpuinfo; "" where it names none.
std::string processor_of(const Machine& machine);

// Returns the times of these processors. A failure if one of them is not online, or if the kernel counts nothing, as in
// some sandboxes.
Result<CpuTimes> read_cpu_times(const Machine& machine, const std::vector<int>& cpus);

}  // namespace molen::energy
