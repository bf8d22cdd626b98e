// The kernel's files of a machine with two packages, as settings see them.
#pragma once

#include <algorithm>
#include <string>

#include "actuate/actuator.h"
#include "energy/test_machine.h"

namespace molen::actuate {

class FakeTree : public energy::FakeMachine {
 public:
  static constexpr const char* kCpu = "sys/devices/system/cpu";

  // Two packages of two policies each.
  void cpufreq(std::int64_t least = 800000, std::int64_t most = 3000000) const {
    for (int p = 0; p < 4; ++p) {
      const std::string folder = fmt::format("{}/cpufreq/policy{}", kCpu, p);
      number(folder + "/cpuinfo_min_freq", least);
      number(folder + "/cpuinfo_max_freq", most);
      number(folder + "/scaling_min_freq", least);
      number(folder + "/scaling_max_freq", most);
      write(folder + "/affected_cpus", fmt::format("{}\n", p));
      number(fmt::format("{}/cpu{}/topology/physical_package_id", kCpu, p), p / 2);
    }
  }
  void uncore() const {
    for (const char* die : {"package_00_die_00", "package_00_die_01", "package_01_die_00"}) {
      const std::string folder = fmt::format("{}/intel_uncore_frequency/{}", kCpu, die);
      number(folder + "/min_freq_khz", 800000);
      number(folder + "/max_freq_khz", 2400000);
      number(folder + "/initial_max_freq_khz", 2500000);
    }
  }
  void powercap() const {
    const std::string zone = "sys/class/powercap/intel-rapl:0";
    write(zone + "/name", "package-0\n");
    write(zone + "/enabled", "1\n");
    write(zone + "/constraint_0_name", "short_term\n");
    number(zone + "/constraint_0_power_limit_uw", 420000000);
    write(zone + "/constraint_1_name", "long_term\n");
    number(zone + "/constraint_1_power_limit_uw", 330000000);
    number(zone + "/constraint_1_max_power_uw", 350000000);
  }
  void amdgpu(int hwmon, const std::string& address, std::int64_t most) const {
    const std::string folder = fmt::format("sys/class/hwmon/hwmon{}", hwmon);
    write(folder + "/name", "amdgpu\n");
    fs::create_directories(root() / "sys/devices/pci" / address);
    fs::create_directory_symlink(root() / "sys/devices/pci" / address, root() / folder / "device");
    number(folder + "/power1_cap", most);
    number(folder + "/power1_cap_max", most);
    number(folder + "/power1_cap_min", 0);
  }
  std::string policy(int p, const std::string& file = "scaling_max_freq") const {
    return fmt::format("{}/cpufreq/policy{}/{}", kCpu, p, file);
  }
  void number(const std::string& file, std::int64_t value) const { write(file, fmt::format("{}\n", value)); }
  std::int64_t at(const std::string& file) const {
    const auto value = energy::read_count(root() / file);
    return value ? static_cast<std::int64_t>(value.value()) : -1;
  }
  // The clocks of all policies.
  State clocks() const { return {at(policy(0)), at(policy(1)), at(policy(2)), at(policy(3))}; }
};

// Returns the setting of a name and scope; null where there is none.
inline Actuator* find_actuator(const Actuators& found, const std::string& name, const std::string& scope) {
  const auto at = std::find_if(found.actuators.begin(), found.actuators.end(),
                               [&](const auto& a) { return a->info().name == name && a->info().scope == scope; });
  return at == found.actuators.end() ? nullptr : at->get();
}
// Returns why a setting cannot be made; "" where it can.
inline std::string why_not(const Actuators& found, const std::string& name, const std::string& scope) {
  for (const auto& u : found.unavailable)
    if (u.meter == name && u.scope == scope) return u.reason;
  return "";
}

}  // namespace molen::actuate
