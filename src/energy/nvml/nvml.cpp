#include "energy/nvml/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "energy/counter.h"
#include "energy/power.h"
#include "energy/visible.h"

namespace molen::energy {
namespace {

// The part of NVML's C interface that molen uses. It is the same in nvml.h of every driver since 2017.
using Device = void*;
constexpr int kSuccess = 0;
constexpr double kMillijoule = 1e-3;  // joules of nvmlDeviceGetTotalEnergyConsumption
// On boards for data centres (NV_REG_STR_RM_RUSD_POLLING_INTERVAL_TESLA in NVIDIA's open kernel modules).
constexpr Seconds kNvmlChangesEvery{0.1};

class Library {
 public:
  static Result<std::shared_ptr<Library>> load(const std::string& file) {
    void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = ::dlerror();
      return Failure{fmt::format("no NVIDIA driver library: {}", why != nullptr ? why : file)};
    }
    auto library = std::shared_ptr<Library>(new Library(handle));
    const bool whole = library->get("nvmlInit_v2", library->init) && library->get("nvmlShutdown", library->shutdown) &&
                       library->get("nvmlDeviceGetCount_v2", library->count) &&
                       library->get("nvmlDeviceGetHandleByIndex_v2", library->device) &&
                       library->get("nvmlDeviceGetPowerUsage", library->power);
    library->get("nvmlDeviceGetUUID", library->uuid);
    library->get("nvmlDeviceGetName", library->device_name);
    library->get("nvmlDeviceGetMigMode", library->mig_mode);

    library->get("nvmlDeviceGetTotalEnergyConsumption", library->energy);
    library->get("nvmlErrorString", library->error_string);
    if (!whole) return Failure{fmt::format("{} lacks functions of NVML 5 or newer", file)};
    if (const int error = library->init(); error != kSuccess)
      return Failure{fmt::format("nvmlInit: {}", library->why(error))};
    library->started_ = true;
    return library;
  }
  ~Library() {
    if (started_) shutdown();
    ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::string why(int error) const {
    const char* text = error_string != nullptr ? error_string(error) : nullptr;
    return text != nullptr ? text : fmt::format("error {}", error);
  }

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*uuid)(Device, char*, unsigned) = nullptr;
  int (*device_name)(Device, char*, unsigned) = nullptr;
  int (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;

  int (*energy)(Device, unsigned long long*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;
  const char* (*error_string)(int) = nullptr;

 private:
  explicit Library(void* handle) : handle_(handle) {}
  template <class F>
  bool get(const char* symbol, F*& function) {
    function = reinterpret_cast<F*>(::dlsym(handle_, symbol));
    return function != nullptr;
  }
  void* handle_;
  bool started_ = false;
};

class CounterMeter : public Meter {
 public:
  CounterMeter(MeterInfo info, std::shared_ptr<Library> library, Device device, std::function<double()> clock)
      : Meter(std::move(info)),
        library_(std::move(library)),
        device_(device),
        clock_(std::move(clock)),
        counter_(0, 0) {}

  Result<Reading> read() override {
    unsigned long long millijoules = 0;
    if (const int error = library_->energy(device_, &millijoules); error != kSuccess)
      return Failure{fmt::format("nvmlDeviceGetTotalEnergyConsumption: {}", library_->why(error))};
    return counter_.add(millijoules, clock_(), kMillijoule);
  }

 private:
  std::shared_ptr<Library> library_;
  Device device_;
  std::function<double()> clock_;
  Unwrapper counter_;
};

class PowerMeter : public Meter {
 public:
  PowerMeter(MeterInfo info, std::shared_ptr<Library> library, Device device, std::function<double()> clock)
      : Meter(std::move(info)),
        library_(std::move(library)),
        device_(device),
        clock_(std::move(clock)),
        integral_(std::max(1.0, 10 * this->info().read_every.value)) {}

  Result<Reading> read() override {
    unsigned milliwatts = 0;
    if (const int error = library_->power(device_, &milliwatts); error != kSuccess)
      return Failure{fmt::format("nvmlDeviceGetPowerUsage: {}", library_->why(error))};
    return integral_.add(milliwatts * 1e-3, clock_());
  }

 private:
  std::shared_ptr<Library> library_;
  Device device_;
  std::function<double()> clock_;
  PowerIntegral integral_;
};

struct Gpu {
  Device device = nullptr;
  unsigned index = 0;
  std::string uuid, name, failure;
};

std::vector<Gpu> all_gpus(const Library& library, unsigned count) {
  std::vector<Gpu> gpus;
  for (unsigned i = 0; i < count; ++i) {
    Gpu gpu;
    gpu.index = i;
    char text[97] = "";
    if (const int error = library.device(i, &gpu.device); error != kSuccess)
      gpu.failure = fmt::format("nvmlDeviceGetHandleByIndex({}): {}", i, library.why(error));
    if (gpu.failure.empty() && library.uuid != nullptr && library.uuid(gpu.device, text, sizeof text - 1) == kSuccess)
      gpu.uuid = text;
    if (gpu.failure.empty() && library.device_name != nullptr &&
        library.device_name(gpu.device, text, sizeof text - 1) == kSuccess)
      gpu.name = text;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

// Returns the GPU that one word of CUDA_VISIBLE_DEVICES names; a UUID may be shortened as long as it matches one
// device.
Gpu pick(const std::vector<Gpu>& gpus, const std::string& word) {
  Gpu none;
  if (word.rfind("MIG-", 0) == 0) {
    none.failure = fmt::format("{}: a MIG instance has no energy reading of its own", word);
    return none;
  }
  unsigned index = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), index);
  if (error == std::errc() && end == word.data() + word.size()) {
    if (index < gpus.size()) return gpus[index];
    none.failure = fmt::format("no GPU {}: NVML shows {}", index, gpus.size());
    return none;
  }
  std::vector<Gpu> fits;
  for (const Gpu& gpu : gpus)
    if (!word.empty() && gpu.uuid.rfind(word, 0) == 0) fits.push_back(gpu);
  if (fits.size() == 1) return fits[0];
  none.failure = fmt::format("'{}' in the visible devices names {} GPUs", word.substr(0, 60), fits.size());
  return none;
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus, const std::optional<std::string>& visible) {
  if (!visible) return gpus;
  std::vector<Gpu> chosen;
  for (const std::string& word : visible_words(*visible)) chosen.push_back(pick(gpus, word));
  return chosen;
}

// The energy counter of Grace Hopper covers the whole superchip, with the processor (Zeus, issue 172).
bool is_superchip(const Gpu& gpu) {
  return gpu.name.find("GH200") != std::string::npos;
}

// Returns why the counter of a GPU is not that of this process; empty if it may be.
std::string shared_reason(const Library& library, const Gpu& gpu) {
  unsigned now = 0, later = 0;
  const bool divided =
      library.mig_mode != nullptr && library.mig_mode(gpu.device, &now, &later) == kSuccess && now != 0;
  return divided ? "MIG divides this GPU, and an instance has no energy reading of its own" : "";
}

}  // namespace

Meters open_nvml(const Machine& machine, const NvmlOptions& options) {
  Meters found;
  auto loaded = Library::load(options.library);
  if (!loaded) {
    found.unavailable.push_back({"nvml", "gpu", loaded.reason()});
    return found;
  }
  const auto& library = loaded.value();
  unsigned count = 0;
  if (const int error = library->count(&count); error != kSuccess) {
    found.unavailable.push_back({"nvml", "gpu", fmt::format("nvmlDeviceGetCount: {}", library->why(error))});
    return found;
  }
  const auto gpus = visible_gpus(all_gpus(*library, count), options.visible);
  if (gpus.empty())
    found.unavailable.push_back(
        {"nvml", "gpu",
         count == 0 ? std::string("NVML shows no GPU") : fmt::format("none of {} GPUs is visible", count)});
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const Gpu& gpu = gpus[i];
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
    if (no_counter == kSuccess) {
      meter = std::make_unique<CounterMeter>(
          MeterInfo{"nvml", is_superchip(gpu) ? fmt::format("superchip{}", i) : scope, Source::kCounter,
                    what + ", energy counter", Seconds(0), true, kMillijoule, kNvmlChangesEvery},
          library, gpu.device, machine.clock);
    } else if (no_power == kSuccess && is_superchip(gpu)) {
      found.unavailable.push_back(
          {"nvml", scope, fmt::format("{}: no energy counter, and its power may include that of the processor", what)});
      continue;
    } else if (no_power == kSuccess) {
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
