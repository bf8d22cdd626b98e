#include "actuate/nvml.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "actuate/sysfs.h"
#include "energy/nvml/library.h"

namespace molen::actuate {
namespace {

using energy::kNvmlSuccess;
using energy::NvmlDevice;
using energy::NvmlLibrary;

constexpr std::int64_t kKhzPerMhz = 1000, kUwPerMw = 1000, kNvmlWattUw = 1'000'000;
constexpr int kCapSysAdmin = 21;  // linux/capability.h
constexpr const char* kNeedsRoot =
    "the driver lets only root set it (CAP_SYS_ADMIN); an administrator can start the job with this right, set it in "
    "the "
    "prolog of the job, or run `molen energy daemon`";

Failure failed(const NvmlLibrary& library, const char* function, int error) {
  const std::string why = library.why(error);
  constexpr int kNoPermission = 4;
  return {error == kNoPermission ? fmt::format("{}: {} ({})", function, why, kNeedsRoot)
                                 : fmt::format("{}: {}", function, why)};
}

class PowerLimit : public Actuator {
 public:
  PowerLimit(ActuatorInfo info, State original, std::shared_ptr<NvmlLibrary> library, NvmlDevice device)
      : Actuator(std::move(info), std::move(original)), library_(std::move(library)), device_(device) {}
  Result<State> read() const override {
    unsigned milliwatts = 0;
    if (const int error = library_->power_limit(device_, &milliwatts); error != kNvmlSuccess)
      return failed(*library_, "nvmlDeviceGetPowerManagementLimit", error);
    return State{std::int64_t{milliwatts} * kUwPerMw};
  }

 protected:
  Result<Done> write(std::size_t, std::int64_t value) override {
    if (const int error = library_->set_power_limit(device_, static_cast<unsigned>(value / kUwPerMw));
        error != kNvmlSuccess)
      return failed(*library_, "nvmlDeviceSetPowerManagementLimit", error);
    return Done{};
  }

 private:
  std::shared_ptr<NvmlLibrary> library_;
  NvmlDevice device_;
};

// The value 0 stands for clocks that are not locked.
class LockedClock : public Actuator {
 public:
  LockedClock(ActuatorInfo info, std::shared_ptr<NvmlLibrary> library, NvmlDevice device)
      : Actuator(std::move(info), State{0}), library_(std::move(library)), device_(device) {}
  Result<State> read() const override {
    return Failure{fmt::format("{} of {}: NVML does not tell whether clocks are locked", info().name, info().scope)};
  }

 protected:
  Result<Done> write(std::size_t, std::int64_t value) override {
    const auto mhz = [](std::int64_t khz) { return static_cast<unsigned>(khz / kKhzPerMhz); };
    const int error =
        value == 0 ? library_->reset_clocks(device_) : library_->lock_clocks(device_, mhz(least()), mhz(value));
    if (error != kNvmlSuccess)
      return failed(*library_, value == 0 ? "nvmlDeviceResetGpuLockedClocks" : "nvmlDeviceSetGpuLockedClocks", error);
    return Done{};
  }

 private:
  std::shared_ptr<NvmlLibrary> library_;
  NvmlDevice device_;
};

// Returns whether the process has the right that NVML asks for; true where the kernel does not say.
bool may_administrate(const energy::Machine& machine) {
  const auto status = energy::read_small(machine.proc / "self/status");
  if (!status) return true;
  constexpr std::string_view kKey = "CapEff:\t";
  const std::size_t at = status.value().find(kKey);
  if (at == std::string::npos) return true;
  std::uint64_t capabilities = 0;
  const char* const begin = status.value().data() + at + kKey.size();
  std::from_chars(begin, status.value().data() + status.value().size(), capabilities, 16);
  return (capabilities >> kCapSysAdmin & 1) != 0;
}

// Returns the clocks that a GPU can be locked to, in kHz, ascending.
Result<std::vector<std::int64_t>> clocks_of(const NvmlLibrary& library, NvmlDevice device) {
  if (library.memory_clocks == nullptr || library.graphics_clocks == nullptr || library.lock_clocks == nullptr ||
      library.reset_clocks == nullptr)
    return Failure{"this driver cannot lock clocks (it is older than NVML 11)"};
  std::vector<unsigned> memory(256), graphics(4096);
  auto count = static_cast<unsigned>(memory.size());
  if (const int error = library.memory_clocks(device, &count, memory.data()); error != kNvmlSuccess)
    return failed(library, "nvmlDeviceGetSupportedMemoryClocks", error);
  memory.resize(std::min<std::size_t>(count, memory.size()));
  if (memory.empty()) return Failure{"nvmlDeviceGetSupportedMemoryClocks: no clock"};
  count = static_cast<unsigned>(graphics.size());
  const unsigned highest = *std::max_element(memory.begin(), memory.end());
  if (const int error = library.graphics_clocks(device, highest, &count, graphics.data()); error != kNvmlSuccess)
    return failed(library, "nvmlDeviceGetSupportedGraphicsClocks", error);
  graphics.resize(std::min<std::size_t>(count, graphics.size()));
  std::erase(graphics, 0U);
  if (graphics.empty()) return Failure{"nvmlDeviceGetSupportedGraphicsClocks: no clock"};
  std::vector<std::int64_t> clocks;
  for (const unsigned mhz : graphics) clocks.push_back(std::int64_t{mhz} * kKhzPerMhz);
  std::sort(clocks.begin(), clocks.end());
  clocks.erase(std::unique(clocks.begin(), clocks.end()), clocks.end());
  return clocks;
}

// Returns the kernel's file of a GPU, which a job locks.
Result<fs::path> lock_of(const energy::Machine& machine, const energy::NvmlGpu& gpu) {
  if (gpu.address.empty()) return Failure{"this driver does not tell PCI addresses"};
  const fs::path file = machine.sys / "bus/pci/devices" / gpu.address / "uevent";
  if (const auto there = energy::read_small(file); !there)
    return Failure{there.reason() + "; without this file two jobs could not exclude each other"};
  return file;
}

ActuatorInfo nvml_info(const char* name, const char* control, Kind kind, const std::string& scope,
                       const energy::NvmlGpu& gpu) {
  ActuatorInfo info;
  info.name = name;
  info.id = fmt::format("{}:{}", name, gpu.uuid);
  info.scope = scope;
  info.control = control;
  info.kind = kind;
  info.detail = fmt::format("{} {}", gpu.name.empty() ? "GPU" : gpu.name, gpu.uuid);
  return info;
}

Result<std::unique_ptr<Actuator>> clock_actuator(const std::shared_ptr<NvmlLibrary>& library, const std::string& scope,
                                                 const energy::NvmlGpu& gpu, const fs::path& lock) {
  auto clocks = clocks_of(*library, gpu.device);
  if (!clocks) return Failure{clocks.reason()};
  ActuatorInfo info = nvml_info("nvml-clock", "highest clock of the GPU", Kind::kClock, scope, gpu);
  info.values = std::move(clocks).value();
  info.readable = false;
  info.parts = {{gpu.uuid, info.values.front(), info.values.back()}};
  info.lock = lock;
  return std::unique_ptr<Actuator>(std::make_unique<LockedClock>(std::move(info), library, gpu.device));
}

Result<std::unique_ptr<Actuator>> power_actuator(const std::shared_ptr<NvmlLibrary>& library, const std::string& scope,
                                                 const energy::NvmlGpu& gpu, const fs::path& lock) {
  if (library->power_limit == nullptr || library->power_limit_bounds == nullptr || library->set_power_limit == nullptr)
    return Failure{"this driver cannot set power limits"};
  unsigned least = 0, most = 0, now = 0;
  if (const int error = library->power_limit_bounds(gpu.device, &least, &most); error != kNvmlSuccess)
    return failed(*library, "nvmlDeviceGetPowerManagementLimitConstraints", error);
  if (const int error = library->power_limit(gpu.device, &now); error != kNvmlSuccess)
    return failed(*library, "nvmlDeviceGetPowerManagementLimit", error);
  if (least == 0 || most < least)
    return Failure{fmt::format("its power limit is said to be between {} and {} mW", least, most)};
  ActuatorInfo info = nvml_info("nvml-power", "power limit of the GPU", Kind::kPower, scope, gpu);
  info.step = info.rounding = kNvmlWattUw;
  info.parts = {{gpu.uuid, std::int64_t{least} * kUwPerMw, std::int64_t{most} * kUwPerMw}};
  info.lock = lock;
  return std::unique_ptr<Actuator>(
      std::make_unique<PowerLimit>(std::move(info), State{std::int64_t{now} * kUwPerMw}, library, gpu.device));
}

// Returns why a GPU is not set at all; empty if it may be.
std::string refusal(const energy::Machine& machine, const NvmlLibrary& library, const energy::NvmlGpu& gpu) {
  if (!gpu.failure.empty()) return gpu.failure;
  if (library.is_divided(gpu)) return "MIG divides this GPU, and its clock and power limit are those of all instances";
  if (gpu.uuid.empty()) return "this driver does not tell its UUID, by which a setting is restored";
  if (!may_administrate(machine)) return kNeedsRoot;
  return "";
}

}  // namespace

Actuators open_nvml_settings(const energy::Machine& machine, const energy::NvmlOptions& options) {
  Actuators found;
  const auto refuse = [&](const char* name, const std::string& scope, std::string why) {
    found.unavailable.push_back({name, scope, std::move(why)});
  };
  const auto loaded = NvmlLibrary::load(options.library);
  if (!loaded) return refuse("nvml", "gpu", loaded.reason()), std::move(found);
  const auto& library = loaded.value();
  const auto gpus = library->gpus(options.visible);
  if (!gpus) return refuse("nvml", "gpu", gpus.reason()), std::move(found);
  for (std::size_t i = 0; i < gpus.value().size(); ++i) {
    const energy::NvmlGpu& gpu = gpus.value()[i];
    const std::string scope = fmt::format("gpu{}", i);
    const std::string why = refusal(machine, *library, gpu);
    const auto lock = why.empty() ? lock_of(machine, gpu) : Result<fs::path>(Failure{why});
    if (!lock) {
      refuse("nvml", scope, lock.reason());
      continue;
    }
    for (const auto& [name, open] : {std::pair{"nvml-clock", &clock_actuator}, {"nvml-power", &power_actuator}}) {
      auto actuator = open(library, scope, gpu, lock.value());
      if (actuator)
        found.actuators.push_back(std::move(actuator).value());
      else
        refuse(name, scope, actuator.reason());
    }
  }
  return found;
}

}  // namespace molen::actuate
