#include "energy/rapl_perf.h"

#include <fcntl.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>

#include "energy/counter.h"

namespace molen::energy {
namespace {

class KernelPerfEvents : public PerfEvents {
 public:
  int open(std::uint32_t type, std::uint64_t config, int cpu) override {
    perf_event_attr attr{};
    attr.size = sizeof attr;
    attr.type = type;
    attr.config = config;
    const long fd = ::syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : static_cast<int>(fd);
  }
  int read(int descriptor, std::uint64_t& count) override {
    const ssize_t n = ::read(descriptor, &count, sizeof count);
    if (n == static_cast<ssize_t>(sizeof count)) return 0;
    return n < 0 ? errno : EIO;
  }
  void close(int descriptor) override { ::close(descriptor); }
};

class PerfMeter : public Meter {
 public:
  PerfMeter(MeterInfo info, std::shared_ptr<PerfEvents> events, int descriptor, double joules_per_count,
            std::function<double()> clock)
      : Meter(std::move(info)),
        events_(std::move(events)),
        descriptor_(descriptor),
        joules_per_count_(joules_per_count),
        clock_(std::move(clock)),
        counter_(0, 0) {}
  ~PerfMeter() override { events_->close(descriptor_); }

  Result<Reading> read() override {
    std::uint64_t count = 0;
    if (const int error = events_->read(descriptor_, count); error != 0)
      return Failure{fmt::format("{}: {}", info().detail, std::strerror(error))};
    return counter_.add(count, clock_(), joules_per_count_);
  }

 private:
  std::shared_ptr<PerfEvents> events_;
  int descriptor_;
  double joules_per_count_;
  std::function<double()> clock_;
  Unwrapper counter_;
};

struct Event {
  std::uint64_t config = 0;
  double scale = 0;
};

// Reads events/NAME "event=0x02", NAME.scale and NAME.unit.
Result<Event> read_event(const fs::path& folder, const std::string& name) {
  const auto text = read_small(folder / name), scale = read_small(folder / (name + ".scale")),
             unit = read_small(folder / (name + ".unit"));
  if (!text) return Failure{text.reason()};
  if (!scale) return Failure{scale.reason()};
  Event event;
  const std::string& t = text.value();
  constexpr std::string_view kPrefix = "event=0x";
  if (t.rfind(kPrefix, 0) != 0)
    return Failure{fmt::format("{}: '{}' is not event=0x..", (folder / name).string(), t.substr(0, 40))};
  const auto [end, error] = std::from_chars(t.data() + kPrefix.size(), t.data() + t.size(), event.config, 16);
  if (error != std::errc() || end != t.data() + t.size())
    return Failure{fmt::format("{}: '{}' is not event=0x..", (folder / name).string(), t.substr(0, 40))};
  const std::string& s = scale.value();
  const auto parsed = std::from_chars(s.data(), s.data() + s.size(), event.scale);
  if (parsed.ec != std::errc() || parsed.ptr != s.data() + s.size() || !std::isfinite(event.scale) || event.scale <= 0)
    return Failure{fmt::format("{}: '{}' is no scale", (folder / (name + ".scale")).string(), s.substr(0, 40))};
  if (unit && unit.value() != "Joules")
    return Failure{
        fmt::format("{}: unit '{}', not Joules", (folder / (name + ".unit")).string(), unit.value().substr(0, 40))};
  return event;
}

std::string open_reason(const Machine& machine, int error) {
  const bool vm = is_virtual(machine);
  if (error == EACCES || error == EPERM) {
    const auto level = read_small(machine.proc / "sys/kernel/perf_event_paranoid");
    return fmt::format(
        "no permission: kernel.perf_event_paranoid is {}; it must be <= 0, or the program needs CAP_PERFMON, or an "
        "administrator runs `molen energy daemon`",
        level ? level.value() : "not readable");
  }
  return fmt::format("perf_event_open: {}{}", std::strerror(error),
                     vm ? "; this is a virtual machine, whose host keeps the counters" : "");
}

// Returns for each CPU the name of its package: "0", or "0-die1" if several CPUs of the mask share a package.
std::map<int, std::string> packages_of(const Machine& machine, const std::vector<int>& cpus) {
  std::map<int, std::uint64_t> package, die;
  std::map<std::uint64_t, int> dies;
  for (std::size_t i = 0; i < cpus.size(); ++i) {
    const fs::path topology = machine.sys / fmt::format("devices/system/cpu/cpu{}/topology", cpus[i]);
    const auto p = read_count(topology / "physical_package_id"), d = read_count(topology / "die_id");
    package[cpus[i]] = p ? p.value() : i;
    die[cpus[i]] = d ? d.value() : i;
    ++dies[package[cpus[i]]];
  }
  std::map<int, std::string> names;
  for (const int cpu : cpus)
    names[cpu] =
        dies[package[cpu]] > 1 ? fmt::format("{}-die{}", package[cpu], die[cpu]) : std::to_string(package[cpu]);
  return names;
}

}  // namespace

std::shared_ptr<PerfEvents> kernel_perf_events() {
  return std::make_shared<KernelPerfEvents>();
}

Meters open_perf(const Machine& machine, std::shared_ptr<PerfEvents> events) {
  Meters found;
  const fs::path device = machine.sys / "bus/event_source/devices/power";
  const auto type = read_count(device / "type");
  const auto mask = read_small(device / "cpumask");
  const auto cpus = mask ? parse_cpu_list(mask.value()) : Result<std::vector<int>>(Failure{mask.reason()});
  if (!type || !cpus) {
    const bool absent = !fs::exists(device);
    found.unavailable.push_back(
        {"rapl-perf", "cpu-package",
         absent ? fmt::format("no {}{}", device.string(),
                              is_virtual(machine) ? "; this is a virtual machine, whose host keeps the counters"
                                                  : "; this CPU or kernel has no RAPL events")
                : fmt::format("{}: {}", device.string(), !type ? type.reason() : cpus.reason())});
    return found;
  }
  const auto packages = packages_of(machine, cpus.value());
  for (const auto& [event_name, scope_name] : {std::pair<std::string, std::string>{"energy-pkg", "cpu-package"},
                                               {"energy-ram", "dram"},
                                               {"energy-psys", "psys"}}) {
    if (!fs::exists(device / "events" / event_name)) {
      if (event_name == "energy-pkg")
        found.unavailable.push_back(
            {"rapl-perf", scope_name,
             fmt::format("no event energy-pkg in {}{}", device.string(),
                         is_virtual(machine) ? "; this is a virtual machine, whose host keeps the counters" : "")});
      continue;
    }
    const auto event = read_event(device / "events", event_name);
    if (!event) {
      found.unavailable.push_back({"rapl-perf", scope_name, event.reason()});
      continue;
    }
    for (const int cpu : cpus.value()) {
      const std::string scope = scope_name == "psys" ? "psys" : scope_name + packages.at(cpu);
      const int descriptor = events->open(static_cast<std::uint32_t>(type.value()), event.value().config, cpu);
      if (descriptor < 0) {
        found.unavailable.push_back({"rapl-perf", scope, open_reason(machine, -descriptor)});
      } else {
        auto meter = std::make_unique<PerfMeter>(
            MeterInfo{"rapl-perf", scope, Source::kCounter, fmt::format("power/{}/ on cpu {}", event_name, cpu),
                      Seconds(0), true, event.value().scale, kRaplChangesEvery},
            events, descriptor, event.value().scale, machine.clock);
        if (const auto first = meter->read(); !first)
          found.unavailable.push_back({"rapl-perf", scope, first.reason()});
        else
          found.meters.push_back(std::move(meter));
      }
      if (scope == "psys") break;  // the whole node: a single reading
    }
  }
  return found;
}

}  // namespace molen::energy
