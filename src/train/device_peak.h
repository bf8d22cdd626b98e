// The peak of one device in FLOP/s, which MFU and HFU are taken against: measured on a CPU, published on a GPU, and
// absent with its reason where neither is known.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "comm/communicator.h"
#include "plan/resolve.h"

namespace molen::train {

struct DevicePeak {
  std::optional<double> flops_per_s;      // of one device, that is of one rank
  std::string source = "not looked for";  // where the figure is from; without one: why not
};

// Dense peak by the device's name as its driver says it, for GEMMs in `compute` as molen runs them (fp32 without
// TF32). A name or type that is not in the table, or a part of a device (MIG), has none.
DevicePeak published_peak(std::string_view device_name, DType compute);

// The driver's name of the CUDA or ROCm device `index` among the visible ones; empty where no driver answers.
std::string gpu_name(int index);

// One figure for the whole run, the same on every rank. On a CPU all ranks measure at once and the mean counts, and is
// kept (train/rates.h); unless `environment` (environment.json of the attempt that this one continues; absent or
// unreadable: none) holds what was measured under the same conditions, or this machine was measured before. Collective
// over `world`; rank 0 alone has its source.
DevicePeak find_device_peak(const program::Setting& setting, const plan::Machine& machine,
                            const std::optional<std::filesystem::path>& environment, comm::Communicator& world);

// {"flops_per_s": number or null, "source": text}: in environment.json and in the run's start event.
Json to_json(const DevicePeak& peak);

// "2 threads", "1 thread, mean of 3 ranks (3 of a host) at once": under which conditions a CPU is measured.
std::string gemm_conditions(const program::Setting& setting, const plan::Machine& machine);

}  // namespace molen::train
