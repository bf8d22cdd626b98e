// Reads AMD GPUs through the files of their driver, without a library: each has a counter of energy in gpu_metrics, a
// binary table with a version (Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "energy/machine.h"
#include "energy/meter.h"

namespace molen::energy {

// The counter's unit. AMD's libraries report 15.3 uJ, which is 0.27 % more.
inline constexpr double kAmdTick = 1.0 / 65536.0;  // joules

struct GpuMetrics {
  std::optional<std::uint64_t> ticks;  // of energy; absent where the GPU has no counter
  std::optional<double> watts;         // of the socket
  unsigned version = 0;                // of the table: 4 for 1.4
  std::uint64_t time_ns = 0;           // of the driver, when the table was made
};
// Returns a failure for a table of another version than 1.1 to 1.8, or a shorter one than it says.
Result<GpuMetrics> parse_gpu_metrics(std::string_view table);

// Opens the GPUs of ROCm that the job may use. `visible` is as VisibleGpus::amd. Scope gpuN is the N-th of them. An
// MI250X is two GPUs, of which the first one's counter has the energy of both: its scope is gpuN+M, and it is read only
// where the job sees all GPUs of the machine, which tells the pairs, and may use both. Not read are: a GPU that is
// divided into partitions or part of a processor; an MI300A, whose counter includes its processor; models of which it
// is not known that their counter has 64 bits; a counter that falls, or contradicts the GPU's power by a factor of 10.
Meters open_amd(const Machine& machine, const std::optional<std::string>& visible = std::nullopt);

}  // namespace molen::energy
