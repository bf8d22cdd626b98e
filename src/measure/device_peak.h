// The peak of one device in FLOP/s, by which MFU and HFU divide. On a CPU it is measured; on a GPU it is the vendor's
// published figure. When there is neither, it is absent and a reason is given.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "comm/communicator.h"
#include "plan/resolve.h"

namespace molen::measure {

struct DevicePeak {
  std::optional<double> flops_per_s;      // of one device, which is one rank's
  std::string source = "not looked for";  // the source of the figure, or why there is none
  std::string conditions{};               // under which this machine was measured; empty where it was not
};

// Returns the dense peak of the device with the name `device_name`, as its driver reports it, for GEMMs in `compute` as
// molen runs them (fp32 without TF32). There is none for a name or type that the table lacks, nor for a part of a
// device (MIG).
DevicePeak published_peak(std::string_view device_name, DType compute);

// Returns the driver's name of visible CUDA or ROCm device `index`; empty when no driver answers.
std::string gpu_name(int index);

// Returns one figure for the whole run, the same on every rank. On a CPU all ranks measure at once; their mean is used
// and kept (measure/rates.h). Nothing is measured when `environment` (environment.json of the attempt that this one
// continues; absent or unreadable: none) holds a figure for the same conditions, or when this machine was measured
// before. Collective over `world`; only rank 0 has the source.
DevicePeak find_device_peak(const program::Setting& setting, const plan::Machine& machine,
                            const std::optional<std::filesystem::path>& environment, comm::Communicator& world);

// Returns {"flops_per_s": number or null, "source": text}, for environment.json and the run's start event.
Json to_json(const DevicePeak& peak);

// Returns the conditions under which a CPU is measured: "2 threads", "1 thread, mean of 3 ranks (3 of a host) at once".
std::string gemm_conditions(const program::Setting& setting, const plan::Machine& machine);

}  // namespace molen::measure
