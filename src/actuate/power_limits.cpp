#include <algorithm>
#include <utility>

#include "actuate/sysfs.h"
#include "energy/rapl_powercap.h"

namespace molen::actuate {
namespace {

// The kernel names no least limit for most packages. Below half of its rated power a package throttles so far that no
// policy gains by it, and the node may seem dead.
constexpr double kLeastShare = 0.5;
// RAPL keeps limits in steps of 1/8 W, and amdgpu in whole watts.
constexpr std::int64_t kRaplStepUw = 125'000, kWattUw = 1'000'000;

std::int64_t value_or_zero(const fs::path& file) {
  const auto value = read_value(file);
  return value ? value.value() : 0;
}

// Returns the number of a zone's long-term constraint; -1 where it has none.
int long_term_of(const fs::path& zone) {
  for (int i = 0; i < 8; ++i) {
    const auto name = energy::read_small(zone / fmt::format("constraint_{}_name", i));
    if (name && name.value() == "long_term") return i;
  }
  return -1;
}

// Adds the limit of one zone, or the reason why it has none.
void add_zone(Actuators& found, const fs::path& zone, const std::string& scope) {
  const auto refuse = [&](std::string why) { found.unavailable.push_back({"powercap", scope, std::move(why)}); };
  const int n = long_term_of(zone);
  if (n < 0) return refuse(fmt::format("{} has no long-term limit; this processor has counters only", zone.string()));
  const auto enabled = energy::read_small(zone / "enabled");
  if (enabled && enabled.value() == "0")
    return refuse(fmt::format("{}: the limits of this package are switched off (enabled is 0)", zone.string()));
  const fs::path limit = zone / fmt::format("constraint_{}_power_limit_uw", n);
  const std::int64_t rated = value_or_zero(zone / fmt::format("constraint_{}_max_power_uw", n));
  const std::int64_t named = value_or_zero(zone / fmt::format("constraint_{}_min_power_uw", n));
  const std::int64_t now = value_or_zero(limit);
  const auto share = static_cast<std::int64_t>(kLeastShare * static_cast<double>(rated > 0 ? rated : now));
  ActuatorInfo info;
  info.name = "powercap";
  info.scope = scope;
  info.control = "long-term power limit of the package";
  info.kind = Kind::kPower;
  info.step = info.rounding = kRaplStepUw;
  add_file_actuator(found, std::move(info),
                    {{limit, {zone.filename().string(), named > 0 ? named : share / kRaplStepUw * kRaplStepUw, 0}}});
}

}  // namespace

Actuators open_powercap_limits(const energy::Machine& machine) {
  Actuators found;
  const fs::path root = machine.sys / "class/powercap";
  // The zones of intel-rapl-mmio limit the same packages again; the lower of both limits holds.
  for (const std::string& zone : names_in(root, "intel-rapl:")) {
    const auto name = energy::read_small(root / zone / "name");
    if (!name) continue;
    const std::string number = energy::package_number(name.value());
    if (!number.empty()) add_zone(found, root / zone, "cpu-package" + number);
  }
  if (found.actuators.empty() && found.unavailable.empty())
    found.unavailable.push_back(
        {"powercap", "cpu-package",
         fmt::format(
             "no RAPL zones of packages in {}{}", root.string(),
             virtual_or(machine, "; the kernel module intel_rapl_msr is not loaded, or this processor has none"))});
  return found;
}

Actuators open_amdgpu(const energy::Machine& machine, bool visible) {
  Actuators found;
  const fs::path root = machine.sys / "class/hwmon";
  std::vector<std::pair<std::string, fs::path>> gpus;  // by PCI address
  for (const std::string& name : names_in(root, "hwmon")) {
    const auto driver = energy::read_small(root / name / "name");
    if (!driver || driver.value() != "amdgpu") continue;
    std::error_code error;
    const fs::path device = fs::canonical(root / name / "device", error);
    gpus.emplace_back(error ? name : device.filename().string(), root / name);
  }
  std::sort(gpus.begin(), gpus.end());
  if (gpus.empty()) {
    found.unavailable.push_back({"amdgpu-power", "gpu", fmt::format("no GPU of AMD in {}", root.string())});
    return found;
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto& [address, folder] = gpus[i];
    const std::string scope = fmt::format("gpu{}", i);
    if (visible) {
      found.unavailable.push_back(
          {"amdgpu-power", scope,
           "ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES is set, and the kernel does not tell which of its GPUs these "
           "are; unset both where the job has all GPUs of the node"});
      continue;
    }
    const std::int64_t most = value_or_zero(folder / "power1_cap_max");
    if (most == 0) {
      found.unavailable.push_back(
          {"amdgpu-power", scope,
           fmt::format("{}: no limit of its own (power1_cap_max is 0 or absent), as of the second die of a module",
                       folder.string())});
      continue;
    }
    const std::int64_t named = value_or_zero(folder / "power1_cap_min");
    ActuatorInfo info;
    info.name = "amdgpu-power";
    info.scope = scope;
    info.control = fmt::format("power limit of the GPU at {}", address);
    info.kind = Kind::kPower;
    info.step = info.rounding = kWattUw;
    const auto share = static_cast<std::int64_t>(kLeastShare * static_cast<double>(most)) / kWattUw * kWattUw;
    add_file_actuator(found, std::move(info), {{folder / "power1_cap", {address, named > 0 ? named : share, most}}});
  }
  return found;
}

}  // namespace molen::actuate
