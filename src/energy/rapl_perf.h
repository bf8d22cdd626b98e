// Reads RAPL through perf_event: /sys/bus/event_source/devices/power has an event file for each domain, with a scale to
// joules. The kernel handles the hardware's wraps. Needs kernel.perf_event_paranoid <= 0 or CAP_PERFMON.
#pragma once

#include <cstdint>
#include <memory>

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// The two system calls, which tests replace.
class PerfEvents {
 public:
  virtual ~PerfEvents() = default;
  // Returns a descriptor, or -errno.
  virtual int open(std::uint32_t type, std::uint64_t config, int cpu) = 0;
  // Returns 0 and stores the count, or returns errno.
  virtual int read(int descriptor, std::uint64_t& count) = 0;
  virtual void close(int descriptor) = 0;
};
std::shared_ptr<PerfEvents> kernel_perf_events();

// Opens the packages, their DRAM, and psys.
Meters open_perf(const Machine& machine, std::shared_ptr<PerfEvents> events = kernel_perf_events());

}  // namespace molen::energy
