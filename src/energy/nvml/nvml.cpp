#include "energy/nvml/nvml.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "energy/counter.h"
#include "energy/cross_check.h"
#include "energy/nvml/library.h"
#include "energy/power.h"

namespace molen::energy {
namespace {

constexpr double kMillijoule = 1e-3;  // joules of nvmlDeviceGetTotalEnergyConsumption
// On boards for data centres (NV_REG_STR_RM_RUSD_POLLING_INTERVAL_TESLA in NVIDIA's open kernel modules).
constexpr Seconds kNvmlChangesEvery{0.1};

// Why a GPU's clock is not higher (nvmlClocksEventReasons in nvml.h). Being idle and clocks that someone asked for slow
// no work that somebody waits for, so they are not named.
constexpr std::pair<unsigned long long, const char*> kSlowedBy[] = {
    {0x04, "power limit"},   {0x08, "hardware"},        {0x10, "synchronised GPUs"},
    {0x20, "heat (driver)"}, {0x40, "heat (hardware)"}, {0x80, "power supply"}};

std::string clock_of(const NvmlLibrary& library, NvmlDevice device) {
  unsigned mhz = 0, most = 0;
  if (library.clock == nullptr || library.clock(device, kNvmlSmClock, &mhz) != kNvmlSuccess) return "";
  const bool bounded = library.highest_clock != nullptr &&
                       library.highest_clock(device, kNvmlSmClock, &most) == kNvmlSuccess && most > 0;
  return bounded ? fmt::format("{} of {} MHz", mhz, most) : fmt::format("{} MHz", mhz);
}

std::string power_of(const NvmlLibrary& library, NvmlDevice device) {
  const auto now = library.power_of(device, kNvmlPowerInstant), average = library.power_of(device, kNvmlPowerAverage);
  std::string text = now ? fmt::format("{:.0f} W now", *now) : "";
  if (average) text += fmt::format("{}{:.0f} W over a second", text.empty() ? "" : ", ", *average);
  return text;
}

std::string slowed_by(const NvmlLibrary& library, NvmlDevice device) {
  unsigned long long reasons = 0;
  if (library.clock_reasons == nullptr || library.clock_reasons(device, &reasons) != kNvmlSuccess) return "";
  std::string by;
  for (const auto& [bit, reason] : kSlowedBy)
    if ((reasons & bit) != 0) by += (by.empty() ? "slowed by: " : ", ") + std::string(reason);
  return by;
}

// Returns how a GPU runs at the moment. With `beside`, the meter counts more than the GPU, and the text says that the
// power is the GPU's alone.
std::string condition_of(const NvmlLibrary& library, NvmlDevice device, bool beside) {
  std::string power = power_of(library, device), text;
  if (beside && !power.empty()) power = "GPU " + power;
  for (const std::string& part : {clock_of(library, device), power, slowed_by(library, device)})
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  return text;
}

class CounterMeter : public Meter {
 public:
  // `compared`: the power that the device shows is that of what its counter counts.
  CounterMeter(MeterInfo info, std::shared_ptr<NvmlLibrary> library, NvmlDevice device, std::function<double()> clock,
               bool compared)
      : Meter(std::move(info)),
        library_(std::move(library)),
        device_(device),
        clock_(std::move(clock)),
        counter_(0, 0),
        compared_(compared) {}

  Result<Reading> read() override {
    unsigned long long millijoules = 0;
    if (const int error = library_->energy(device_, &millijoules); error != kNvmlSuccess)
      return Failure{fmt::format("nvmlDeviceGetTotalEnergyConsumption: {}", library_->why(error))};
    const double time_s = clock_();
    auto reading = counter_.add(millijoules, time_s, kMillijoule);
    if (reading && compared_) compare(reading.value().total.value, time_s);
    return reading;
  }
  std::string doubt() const override { return check_.doubt(); }
  std::string condition() const override { return condition_of(*library_, device_, !compared_); }

 private:
  // A call to the library takes time, so the power is not read with each reading of the counter.
  void compare(double joules, double time_s) {
    constexpr double kEvery = 0.5 * CrossCheck::kLongestApart;
    unsigned milliwatts = 0;
    if (time_s - compared_s_ < kEvery || library_->power(device_, &milliwatts) != kNvmlSuccess) return;
    check_.add(joules, milliwatts * 1e-3, time_s);
    compared_s_ = time_s;
  }

  std::shared_ptr<NvmlLibrary> library_;
  NvmlDevice device_;
  std::function<double()> clock_;
  Unwrapper counter_;
  CrossCheck check_;
  bool compared_;
  double compared_s_ = -std::numeric_limits<double>::infinity();
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
  std::string condition() const override { return condition_of(*library_, device_, false); }

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

// Returns a text such as "NVIDIA H100 GPU-4f7c... at 0000:17:00.0".
std::string description_of(const NvmlGpu& gpu) {
  std::string text = gpu.name.empty() ? "GPU" : gpu.name;
  if (!gpu.uuid.empty()) text += " " + gpu.uuid;
  return gpu.address.empty() ? text : text + " at " + gpu.address;
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

    const std::string what = description_of(gpu);
    unsigned long long millijoules = 0;
    unsigned milliwatts = 0;
    const int no_counter = library->energy == nullptr ? -1 : library->energy(gpu.device, &millijoules);
    const int no_power = library->power(gpu.device, &milliwatts);
    std::unique_ptr<Meter> meter;
    if (no_counter == kNvmlSuccess) {
      meter = std::make_unique<CounterMeter>(
          MeterInfo{"nvml", is_superchip(gpu) ? fmt::format("superchip{}", i) : scope, Source::kCounter,
                    what + ", energy counter", Seconds(0), true, kMillijoule, kNvmlChangesEvery},
          library, gpu.device, machine.clock, !is_superchip(gpu));
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
