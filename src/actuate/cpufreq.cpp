#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "actuate/sysfs.h"

namespace molen::actuate {
namespace {

// Parses "3400000 2800000 1500000", ascending; empty where the text is anything else.
std::vector<std::int64_t> clocks_in(const std::string& text) {
  std::set<std::int64_t> clocks;
  const char *at = text.data(), *const end = at + text.size();
  while (at != end) {
    std::int64_t clock = 0;
    const auto [next, error] = std::from_chars(at, end, clock);
    if (error != std::errc() || clock <= 0) return {};
    clocks.insert(clock);
    for (at = next; at != end && *at == ' ';) ++at;
    if (next != end && at == next) return {};
  }
  return {clocks.begin(), clocks.end()};
}

// Intel and AMD set clocks by a ratio to 100 MHz (25 MHz on some). A finer clock is rounded by the processor, although
// the file reads back what was written.
constexpr std::int64_t kClockStepKhz = 100'000;

struct Package {
  std::vector<FilePart> files;
  std::optional<std::vector<std::int64_t>> values;  // of all policies; empty where they differ
};

Result<FilePart> policy_part(const fs::path& folder) {
  const auto least = read_value(folder / "cpuinfo_min_freq"), most = read_value(folder / "cpuinfo_max_freq");
  if (!least) return Failure{least.reason()};
  if (!most) return Failure{most.reason()};
  // Below the lower bound that somebody has set, kernels differ in what they do.
  const auto lower = read_value(folder / "scaling_min_freq");
  const std::int64_t bound = lower ? std::max(least.value(), lower.value()) : least.value();
  return FilePart{folder / "scaling_max_freq", {folder.filename().string(), bound, most.value()}};
}

// Returns the number of the package of a policy's first processor.
Result<std::uint64_t> package_of_policy(const energy::Machine& machine, const fs::path& folder) {
  auto text = energy::read_small(folder / "affected_cpus");
  if (!text) return Failure{text.reason()};
  std::string list = text.value();
  std::replace(list.begin(), list.end(), ' ', ',');
  const auto cpus = energy::parse_cpu_list(list);
  if (!cpus) return Failure{fmt::format("{}: {}", (folder / "affected_cpus").string(), cpus.reason())};
  return energy::read_count(machine.sys /
                            fmt::format("devices/system/cpu/cpu{}/topology/physical_package_id", cpus.value().front()));
}

}  // namespace

Actuators open_cpufreq(const energy::Machine& machine) {
  Actuators found;
  const fs::path root = machine.sys / "devices/system/cpu/cpufreq";
  const auto policies = names_in(root, "policy");
  if (policies.empty()) {
    found.unavailable.push_back(
        {"cpufreq", "cpu-package",
         fmt::format("no policies in {}{}", root.string(),
                     virtual_or(machine,
                                "; the kernel has no cpufreq driver for this processor, or it is switched off "
                                "in the firmware"))});
    return found;
  }
  std::map<std::uint64_t, Package> packages;
  for (const std::string& policy : policies) {
    const auto processors = energy::read_small(root / policy / "affected_cpus");
    if (processors && processors.value().empty()) continue;  // all of them are switched off, as without SMT
    const auto number = package_of_policy(machine, root / policy);
    const auto part = number ? policy_part(root / policy) : Result<FilePart>(Failure{number.reason()});
    if (!part) {
      // Without one of its policies, a package would be set in part.
      found.unavailable.push_back({"cpufreq", "cpu-package", part.reason()});
      return found;
    }
    Package& package = packages[number.value()];
    package.files.push_back(part.value());
    const auto listed = energy::read_small(root / policy / "scaling_available_frequencies");
    const auto values = clocks_in(listed ? listed.value() : "");
    if (!package.values) package.values = values;
    if (*package.values != values) package.values->clear();
  }
  for (const auto& [number, package] : packages) {
    ActuatorInfo info;
    info.name = "cpufreq";
    info.scope = fmt::format("cpu-package{}", number);
    info.control = "highest clock of the cores";
    info.kind = Kind::kClock;
    info.values = *package.values;
    info.step = kClockStepKhz;
    info.rounding = kClockStepKhz - 1;
    add_file_actuator(found, std::move(info), package.files);
  }
  return found;
}

Actuators open_uncore(const energy::Machine& machine) {
  Actuators found;
  const fs::path root = machine.sys / "devices/system/cpu/intel_uncore_frequency";
  std::map<std::string, std::vector<FilePart>> packages;  // by number
  for (const std::string& name : names_in(root, "package_")) {
    // "package_01_die_00"
    const std::string rest = name.substr(8);
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc() || std::string(end).rfind("_die_", 0) != 0) continue;
    const std::string scope = fmt::format("cpu-package{}", number);
    const auto least = read_value(root / name / "min_freq_khz"),
               most = read_value(root / name / "initial_max_freq_khz");
    if (!least || !most) {
      found.unavailable.push_back({"uncore", scope, least ? most.reason() : least.reason()});
      return found;
    }
    packages[scope].push_back({root / name / "max_freq_khz", {name, least.value(), most.value()}});
  }
  if (packages.empty() && found.unavailable.empty())
    found.unavailable.push_back(
        {"uncore", "cpu-package",
         fmt::format("no packages in {}{}", root.string(),
                     virtual_or(machine,
                                "; the kernel module intel_uncore_frequency is not loaded, or this processor "
                                "is not one of Intel's for servers"))});
  for (auto& [scope, files] : packages) {
    ActuatorInfo info;
    info.name = "uncore";
    info.scope = scope;
    info.control = "highest clock of the uncore";
    info.kind = Kind::kClock;
    info.step = kClockStepKhz;
    info.rounding = kClockStepKhz - 1;
    add_file_actuator(found, std::move(info), files);
  }
  return found;
}

}  // namespace molen::actuate
