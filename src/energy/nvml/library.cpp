#include "energy/nvml/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>

#include "energy/visible.h"

namespace molen::energy {
namespace {

// Returns the GPU that one word of CUDA_VISIBLE_DEVICES names; a UUID may be shortened as long as it matches one
// device.
NvmlGpu pick(const std::vector<NvmlGpu>& gpus, const std::string& word) {
  NvmlGpu none;
  if (word.rfind("MIG-", 0) == 0) {
    none.failure = fmt::format("{}: a MIG instance has no energy reading, clock or power limit of its own", word);
    return none;
  }
  unsigned index = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), index);
  if (error == std::errc() && end == word.data() + word.size()) {
    if (index < gpus.size()) return gpus[index];
    none.failure = fmt::format("no GPU {}: NVML shows {}", index, gpus.size());
    return none;
  }
  std::vector<NvmlGpu> fits;
  for (const NvmlGpu& gpu : gpus)
    if (!word.empty() && gpu.uuid.rfind(word, 0) == 0) fits.push_back(gpu);
  if (fits.size() == 1) return fits[0];
  none.failure = fmt::format("'{}' in the visible devices names {} GPUs", word.substr(0, 60), fits.size());
  return none;
}

}  // namespace

template <class F>
bool NvmlLibrary::get(const char* symbol, F*& function) {
  function = reinterpret_cast<F*>(::dlsym(handle_, symbol));
  return function != nullptr;
}

Result<std::shared_ptr<NvmlLibrary>> NvmlLibrary::load(const std::string& file) {
  void* handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return Failure{fmt::format("no NVIDIA driver library: {}", why != nullptr ? why : file)};
  }
  auto library = std::shared_ptr<NvmlLibrary>(new NvmlLibrary(handle));
  NvmlLibrary& l = *library;
  const bool whole = l.get("nvmlInit_v2", l.init) && l.get("nvmlShutdown", l.shutdown) &&
                     l.get("nvmlDeviceGetCount_v2", l.count) && l.get("nvmlDeviceGetHandleByIndex_v2", l.device) &&
                     l.get("nvmlDeviceGetPowerUsage", l.power);
  l.get("nvmlDeviceGetUUID", l.uuid);
  l.get("nvmlDeviceGetName", l.device_name);
  l.get("nvmlDeviceGetMigMode", l.mig_mode);
  l.get("nvmlDeviceGetPciInfo_v3", l.pci);
  l.get("nvmlDeviceGetTotalEnergyConsumption", l.energy);
  l.get("nvmlDeviceGetUtilizationRates", l.utilisation);
  l.get("nvmlDeviceGetPowerManagementLimit", l.power_limit);
  l.get("nvmlDeviceGetPowerManagementDefaultLimit", l.power_limit_default);
  l.get("nvmlDeviceGetPowerManagementLimitConstraints", l.power_limit_bounds);
  l.get("nvmlDeviceSetPowerManagementLimit", l.set_power_limit);
  l.get("nvmlDeviceGetSupportedMemoryClocks", l.memory_clocks);
  l.get("nvmlDeviceGetSupportedGraphicsClocks", l.graphics_clocks);
  l.get("nvmlDeviceSetGpuLockedClocks", l.lock_clocks);
  l.get("nvmlDeviceResetGpuLockedClocks", l.reset_clocks);
  l.get("nvmlDeviceGetClockInfo", l.clock);
  l.get("nvmlDeviceGetMaxClockInfo", l.highest_clock);
  // The name up to driver 530, which later ones have too, and the present one.
  if (!l.get("nvmlDeviceGetCurrentClocksEventReasons", l.clock_reasons))
    l.get("nvmlDeviceGetCurrentClocksThrottleReasons", l.clock_reasons);
  l.get("nvmlDeviceGetFieldValues", l.fields);
  l.get("nvmlErrorString", l.error_string);
  if (!whole) return Failure{fmt::format("{} lacks functions of NVML 5 or newer", file)};
  if (const int error = l.init(); error != kNvmlSuccess) return Failure{fmt::format("nvmlInit: {}", l.why(error))};
  l.started_ = true;
  return library;
}

NvmlLibrary::~NvmlLibrary() {
  if (started_) shutdown();
  ::dlclose(handle_);
}

std::string NvmlLibrary::why(int error) const {
  const char* text = error_string != nullptr ? error_string(error) : nullptr;
  return text != nullptr ? text : fmt::format("error {}", error);
}

std::optional<double> NvmlLibrary::power_of(NvmlDevice device, unsigned field) const {
  constexpr unsigned kUnsigned = 1;  // NVML_VALUE_TYPE_UNSIGNED_INT
  NvmlField power{};
  power.id = field;  // the scope 0 is the GPU, without the processor of its module
  if (fields == nullptr || fields(device, 1, &power) != kNvmlSuccess || power.error != kNvmlSuccess)
    return std::nullopt;
  if (power.type != kUnsigned) return std::nullopt;
  return 1e-3 * power.value.as_unsigned;
}

bool NvmlLibrary::is_divided(const NvmlGpu& gpu) const {
  unsigned now = 0, later = 0;
  return mig_mode != nullptr && mig_mode(gpu.device, &now, &later) == kNvmlSuccess && now != 0;
}

std::vector<NvmlGpu> NvmlLibrary::all_gpus(unsigned count) const {
  std::vector<NvmlGpu> gpus;
  for (unsigned i = 0; i < count; ++i) {
    NvmlGpu gpu;
    gpu.index = i;
    char text[97] = "";
    if (const int error = device(i, &gpu.device); error != kNvmlSuccess)
      gpu.failure = fmt::format("nvmlDeviceGetHandleByIndex({}): {}", i, why(error));
    if (gpu.failure.empty() && uuid != nullptr && uuid(gpu.device, text, sizeof text - 1) == kNvmlSuccess)
      gpu.uuid = text;
    if (gpu.failure.empty() && device_name != nullptr && device_name(gpu.device, text, sizeof text - 1) == kNvmlSuccess)
      gpu.name = text;
    NvmlPci at{};
    if (gpu.failure.empty() && pci != nullptr && pci(gpu.device, &at) == kNvmlSuccess)
      gpu.address = fmt::format("{:04x}:{:02x}:{:02x}.0", at.domain, at.bus, at.device);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

Result<std::vector<NvmlGpu>> NvmlLibrary::gpus(const std::optional<std::string>& visible) const {
  unsigned shown = 0;
  if (const int error = count(&shown); error != kNvmlSuccess)
    return Failure{fmt::format("nvmlDeviceGetCount: {}", why(error))};
  if (shown == 0) return Failure{"NVML shows no GPU"};
  const auto all = all_gpus(shown);
  if (!visible) return all;
  std::vector<NvmlGpu> chosen;
  for (const std::string& word : visible_words(*visible)) chosen.push_back(pick(all, word));
  if (chosen.empty()) return Failure{fmt::format("none of {} GPUs is visible", shown)};
  return chosen;
}

}  // namespace molen::energy
