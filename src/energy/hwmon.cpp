#include "energy/hwmon.h"

#include <algorithm>

#include "base/utf8.h"
#include "energy/power.h"

namespace molen::energy {
namespace {

constexpr double kReadEveryS = 0.1;
// Samples that are further apart say nothing of the time between; power1_average_interval is at most 1 s on Grace.
constexpr double kLongestS = 2.0;
// No module takes so much. Firmware that has no reading gives 0xFFFFFFFF mW (ACPI, _PMM).
constexpr double kMostModuleWatts = 1e5;

class HwmonMeter : public Meter {
 public:
  HwmonMeter(MeterInfo info, fs::path file, std::function<double()> clock)
      : Meter(std::move(info)), file_(std::move(file)), clock_(std::move(clock)), integral_(kLongestS) {}

  Result<Reading> read() override {
    const auto microwatts = read_count(file_);
    if (!microwatts) return Failure{microwatts.reason()};
    const double watts = static_cast<double>(microwatts.value()) * 1e-6;
    if (watts > kMostModuleWatts)
      return Failure{fmt::format("{}: {:.4g} W is no power of a module", file_.string(), watts)};
    return integral_.add(watts, clock_());
  }

 private:
  fs::path file_;
  std::function<double()> clock_;
  PowerIntegral integral_;
};

// Returns what a meter reads: the file, and the time over which the firmware averages.
std::string detail_of(const fs::path& folder) {
  const auto interval = read_count(folder / "power1_average_interval");
  return (folder / "power1_average").string() + (interval ? fmt::format(", averages of {} ms", interval.value()) : "");
}

// Returns the scope of a meter by its description: "cpu-package1" for "CPU Power Socket 1"; "" for another text.
std::string scope_described(const std::string& text) {
  for (const auto& [words, scope] : {std::pair{"Module Power Socket ", "module"},
                                     {"Grace Power Socket ", "grace"},
                                     {"CPU Power Socket ", "cpu-package"},
                                     {"SysIO Power Socket ", "sysio"}}) {
    if (text.rfind(words, 0) != 0) continue;
    const std::string socket = text.substr(std::string_view(words).size());
    if (socket.size() == 1 && socket[0] >= '0' && socket[0] <= '9') return scope + socket;
  }
  return "";
}

// Removes the meters of modules where several sockets have meters of their own: firmware differs in which sockets a
// module's power then covers.
void leave_modules(Meters& found) {
  const auto is = [](const std::unique_ptr<Meter>& m, const char* kind) { return m->info().scope.rfind(kind, 0) == 0; };
  if (std::count_if(found.meters.begin(), found.meters.end(), [&](const auto& m) { return is(m, "grace"); }) < 2)
    return;
  for (const auto& m : found.meters)
    if (is(m, "module"))
      found.unavailable.push_back(
          {"hwmon", m->info().scope, "on several sockets it is not known which of them this power covers"});
  std::erase_if(found.meters, [&](const auto& m) { return is(m, "module"); });
}

}  // namespace

Meters open_hwmon(const Machine& machine) {
  Meters found;
  const fs::path root = machine.sys / "class/hwmon";
  std::vector<fs::path> devices;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const auto name = read_small(it->path() / "name");
    if (name && name.value() == "power_meter") devices.push_back(it->path());
  }
  std::sort(devices.begin(), devices.end());
  if (devices.empty())
    found.unavailable.push_back({"hwmon", "module", fmt::format("no power meter of ACPI in {}", root.string())});
  for (const fs::path& device : devices) {
    // Older kernels keep the attributes beside the device that the hwmon entry links to.
    const fs::path folder = fs::exists(device / "power1_average", error) ? device : device / "device";
    const auto described = read_small(folder / "power1_oem_info");
    const std::string scope = described ? scope_described(described.value()) : "";
    if (scope.empty()) {
      found.unavailable.push_back(
          {"hwmon", device.filename().string(),
           described
               ? fmt::format("'{}' in power1_oem_info names no part of a Grace module", printable(described.value()))
               : fmt::format("a power meter that does not say what it measures ({})", described.reason())});
      continue;
    }
    const fs::path file = folder / "power1_average";
    auto meter = std::make_unique<HwmonMeter>(
        MeterInfo{"hwmon", scope, Source::kPower, detail_of(folder), Seconds(kReadEveryS), true}, file, machine.clock);
    if (const auto first = meter->read(); !first)
      found.unavailable.push_back({"hwmon", scope, first.reason()});
    else
      found.meters.push_back(std::move(meter));
  }
  leave_modules(found);
  return found;
}

}  // namespace molen::energy
