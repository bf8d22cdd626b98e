// RAPL through perf_event: /sys/bus/event_source/devices/power, one event file per domain with a scale to joules. The
// kernel handles the hardware's wraps; needs kernel.perf_event_paranoid <= 0 or CAP_PERFMON.
#pragma once

#include <cstdint>
#include <memory>

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// The two system calls, so that tests can stand in for the kernel.
class PerfEvents {
 public:
  virtual ~PerfEvents() = default;
  // A descriptor, or -errno.
  virtual int open(std::uint32_t type, std::uint64_t config, int cpu) = 0;
  // 0 and the count, or errno.
  virtual int read(int descriptor, std::uint64_t& count) = 0;
  virtual void close(int descriptor) = 0;
};
std::shared_ptr<PerfEvents> kernel_perf_events();

// Packages, their DRAM, and psys.
Meters open_perf(const Machine& machine, std::shared_ptr<PerfEvents> events = kernel_perf_events());

}  // namespace molen::energy
