#include "energy/rapl_powercap.h"

#include <algorithm>
#include <set>

#include "energy/counter.h"

namespace molen::energy {
namespace {

constexpr double kMicrojoule = 1e-6;

// Returns the watts beyond which a scope does not draw power: a package or its memory, or a whole node with eight GPUs.
double most_watts(const std::string& scope) {
  return scope == "psys" ? 15000.0 : 1000.0;
}

// Returns the shortest time in which a counter can count to the end of its range; 0 for an unknown range.
Seconds wraps_after(const std::string& scope, std::uint64_t range_uj) {
  return Seconds(static_cast<double>(range_uj) * kMicrojoule / most_watts(scope));
}

class PowercapMeter : public Meter {
 public:
  PowercapMeter(MeterInfo info, fs::path file, std::uint64_t range_uj, std::function<double()> clock)
      : Meter(std::move(info)),
        file_(std::move(file)),
        clock_(std::move(clock)),
        counter_(range_uj, wraps_after(this->info().scope, range_uj).value) {}

  Result<Reading> read() override {
    const auto uj = read_count(file_);
    if (!uj) return Failure{uj.reason()};
    return counter_.add(uj.value(), clock_(), kMicrojoule);
  }

 private:
  fs::path file_;
  std::function<double()> clock_;
  Unwrapper counter_;
};

// Returns the scope of a zone, or "" for a zone that is not read.
std::string scope_of(const fs::path& root, const std::string& zone, const std::string& name) {
  if (name == "psys") return "psys";
  if (const std::string package = package_number(name); !package.empty()) return "cpu-package" + package;
  if (name != "dram") return "";
  const std::string parent = zone.substr(0, zone.rfind(':'));
  const auto parent_name = read_small(root / parent / "name");
  const std::string package = parent_name ? package_number(parent_name.value()) : "";
  return "dram" + (package.empty() ? parent.substr(parent.find(':') + 1) : package);
}

std::vector<std::string> zones_in(const fs::path& root) {
  std::vector<std::string> plain, mmio;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind("intel-rapl:", 0) == 0) plain.push_back(name);
    if (name.rfind("intel-rapl-mmio:", 0) == 0) mmio.push_back(name);
  }
  std::sort(plain.begin(), plain.end());
  std::sort(mmio.begin(), mmio.end());
  plain.insert(plain.end(), mmio.begin(), mmio.end());  // copies come last and are dropped
  return plain;
}

std::string advice(const std::string& reason) {
  if (reason.find("Permission denied") == std::string::npos) return reason;
  return reason +
         " (readable by root only since Linux 5.10; let your group read it with a udev rule, or allow perf: "
         "kernel.perf_event_paranoid <= 0; or run `molen energy daemon`)";
}

}  // namespace

std::string package_number(const std::string& zone_name) {
  if (zone_name.rfind("package-", 0) != 0) return "";
  std::string rest = zone_name.substr(8);
  if (const auto die = rest.find("-die-"); die != std::string::npos)
    rest = rest.substr(0, die) + "-die" + rest.substr(die + 5);
  const bool plain = !rest.empty() && std::all_of(rest.begin(), rest.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-';
  });
  return plain ? rest : "";
}

Meters open_powercap(const Machine& machine) {
  Meters found;
  const fs::path root = machine.sys / "class" / "powercap";
  const auto zones = zones_in(root);
  if (zones.empty()) {
    found.unavailable.push_back(
        {"rapl-powercap", "cpu-package",
         fmt::format("no RAPL zones in {}{}", root.string(),
                     is_virtual(machine) ? "; this is a virtual machine, whose host keeps them"
                                         : "; the kernel module intel_rapl_msr is not loaded, or this CPU has none")});
    return found;
  }
  std::set<std::string> seen;
  for (const std::string& zone : zones) {
    const auto name = read_small(root / zone / "name");
    if (!name) {
      found.unavailable.push_back({"rapl-powercap", zone, name.reason()});
      continue;
    }
    const std::string scope = scope_of(root, zone, name.value());
    if (scope.empty()) continue;
    if (seen.contains(scope)) {
      found.unavailable.push_back(
          {"rapl-powercap", scope, fmt::format("zone {} shows a scope that is read already", zone)});
      continue;
    }
    const auto range = read_count(root / zone / "max_energy_range_uj");
    const std::uint64_t range_uj = range ? range.value() : 0;
    const Seconds read_every(wraps_after(scope, range_uj).value / 2);
    const fs::path file = root / zone / "energy_uj";
    auto meter = std::make_unique<PowercapMeter>(MeterInfo{"rapl-powercap", scope, Source::kCounter, file.string(),
                                                           read_every, true, kMicrojoule, kRaplChangesEvery},
                                                 file, range_uj, machine.clock);
    if (const auto first = meter->read(); !first) {
      found.unavailable.push_back({"rapl-powercap", scope, advice(first.reason())});
      continue;
    }
    seen.insert(scope);
    found.meters.push_back(std::move(meter));
  }
  return found;
}

}  // namespace molen::energy
