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
  std::optional<std::uint64_t> ticks;  // of energy since the driver was loaded; absent where the GPU has no counter
  std::optional<double> watts;         // of the socket
  std::uint64_t time_ns = 0;           // of the driver, when the table was made
};
// Returns a failure for a table of another version than 1.1 to 1.8, or a shorter one than it says.
Result<GpuMetrics> parse_gpu_metrics(std::string_view table);

// Opens the GPUs of ROCm that the job may use. `visible` is as in ROCR_VISIBLE_DEVICES; absent: all. Scope gpuN is the
// N-th of them. On an MI250X, which is two GPUs, the first one's counter has the energy of both: its scope is accelN,
// and it is not read unless the job may use both. A GPU that is divided into partitions is not read. A counter whose
// rise contradicts the GPU's power (by a factor of 10 within a tenth of a second) is not read either.
Meters open_amd(const Machine& machine, const std::optional<std::string>& visible = std::nullopt);

}  // namespace molen::energy
