#include "energy/nvml/nvml.h"

#include <algorithm>
#include <cmath>

#include "energy/counter.h"
#include "energy/nvml/library.h"
#include "energy/power.h"

namespace molen::energy {
namespace {

constexpr double kMillijoule = 1e-3;  // joules of nvmlDeviceGetTotalEnergyConsumption
// On boards for data centres (NV_REG_STR_RM_RUSD_POLLING_INTERVAL_TESLA in NVIDIA's open kernel modules).
constexpr Seconds kNvmlChangesEvery{0.1};

class CounterMeter : public Meter {
 public:
  CounterMeter(MeterInfo info, std::shared_ptr<NvmlLibrary> library, NvmlDevice device, std::function<double()> clock)
      : Meter(std::move(info)),
        library_(std::move(library)),
        device_(device),
        clock_(std::move(clock)),
        counter_(0, 0) {}

  Result<Reading> read() override {
    unsigned long long millijoules = 0;
    if (const int error = library_->energy(device_, &millijoules); error != kNvmlSuccess)
      return Failure{fmt::format("nvmlDeviceGetTotalEnergyConsumption: {}", library_->why(error))};
    return counter_.add(millijoules, clock_(), kMillijoule);
  }

 private:
  std::shared_ptr<NvmlLibrary> library_;
  NvmlDevice device_;
  std::function<double()> clock_;
  Unwrapper counter_;
};

class PowerMeter : public Meter {
 public:
  PowerMeter(MeterInfo info, std::shared_ptr<NvmlLibrary> library, NvmlDevice device, std::function<double()> clock)
      : Meter(std::move(info)),
        library_(std::move(library)),
        device_(device),
        clock_(std::move(clock)),
        integral_(std::max(1.0, 10 * this->info().read_every.value)) {}

  Result<Reading> read() override {
    unsigned milliwatts = 0;
    if (const int error = library_->power(device_, &milliwatts); error != kNvmlSuccess)
      return Failure{fmt::format("nvmlDeviceGetPowerUsage: {}", library_->why(error))};
    return integral_.add(milliwatts * 1e-3, clock_());
  }

 private:
  std::shared_ptr<NvmlLibrary> library_;
  NvmlDevice device_;
  std::function<double()> clock_;
  PowerIntegral integral_;
};

// The energy counter of Grace Hopper covers the whole superchip, with the processor (Zeus, issue 172).
bool is_superchip(const NvmlGpu& gpu) {
  return gpu.name.find("GH200") != std::string::npos;
}

// Returns why the counter of a GPU is not that of this process; empty if it may be.
std::string shared_reason(const NvmlLibrary& library, const NvmlGpu& gpu) {
  return library.is_divided(gpu) ? "MIG divides this GPU, and an instance has no energy reading of its own" : "";
}

}  // namespace

Meters open_nvml(const Machine& machine, const NvmlOptions& options) {
  Meters found;
  auto loaded = NvmlLibrary::load(options.library);
  if (!loaded) {
    found.unavailable.push_back({"nvml", "gpu", loaded.reason()});
    return found;
  }
  const auto& library = loaded.value();
  const auto visible = library->gpus(options.visible);
  if (!visible) {
    found.unavailable.push_back({"nvml", "gpu", visible.reason()});
    return found;
  }
  const auto& gpus = visible.value();
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const NvmlGpu& gpu = gpus[i];
    const std::string scope = fmt::format("gpu{}", i);
    const std::string failure = gpu.failure.empty() ? shared_reason(*library, gpu) : gpu.failure;
    if (!failure.empty()) {
      found.unavailable.push_back({"nvml", scope, failure});
      continue;
    }

    const std::string what = fmt::format("{} {}", gpu.name.empty() ? "GPU" : gpu.name, gpu.uuid);
    unsigned long long millijoules = 0;
    unsigned milliwatts = 0;
    const int no_counter = library->energy == nullptr ? -1 : library->energy(gpu.device, &millijoules);
    const int no_power = library->power(gpu.device, &milliwatts);
    std::unique_ptr<Meter> meter;
    if (no_counter == kNvmlSuccess) {
      meter = std::make_unique<CounterMeter>(
          MeterInfo{"nvml", is_superchip(gpu) ? fmt::format("superchip{}", i) : scope, Source::kCounter,
                    what + ", energy counter", Seconds(0), true, kMillijoule, kNvmlChangesEvery},
          library, gpu.device, machine.clock);
    } else if (no_power == kNvmlSuccess && is_superchip(gpu)) {
      found.unavailable.push_back(
          {"nvml", scope, fmt::format("{}: no energy counter, and its power may include that of the processor", what)});
      continue;
    } else if (no_power == kNvmlSuccess) {
      meter = std::make_unique<PowerMeter>(
          MeterInfo{"nvml", scope, Source::kPower, what + ", power samples", options.sample_every, true}, library,
          gpu.device, machine.clock);
    } else {
      found.unavailable.push_back(
          {"nvml", scope,
           fmt::format("{}: energy: {}; power: {}", what,
                       no_counter < 0 ? "not in this driver" : library->why(no_counter), library->why(no_power))});
      continue;
    }
    if (const auto first = meter->read(); !first)
      found.unavailable.push_back({"nvml", scope, first.reason()});
    else
      found.meters.push_back(std::move(meter));
  }
  return found;
}

}  // namespace molen::energy
