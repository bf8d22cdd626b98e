#include "energy/cpu_busy.h"

#include <array>
#include <charconv>
#include <map>
#include <sstream>

namespace molen::energy {
namespace {

// Returns the times of each processor that is online, by its number. The file has a line of some hundred bytes for each
// processor, so it is larger than a read of read_small.
Result<std::map<int, CpuTimes>> read_stat(const Machine& machine) {
  const fs::path file = machine.proc / "stat";
  std::string text;
  try {
    text = read_file(file);
  } catch (const Error& error) {
    return Failure{error.what()};
  }
  std::map<int, CpuTimes> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    int number = 0;
    if (line.rfind("cpu", 0) != 0 || line.size() < 4 || line[3] < '0' || line[3] > '9') continue;
    std::from_chars(line.data() + 3, line.data() + line.size(), number);
    std::istringstream words(line.substr(line.find(' ')));
    // user nice system idle iowait irq softirq steal; guest and guest_nice, which follow, are part of user and nice
    std::array<double, 8> t{};
    std::size_t known = 0;
    while (known < t.size() && words >> t[known]) ++known;
    if (known < 4) return Failure{fmt::format("{}: '{}' has no times", file.string(), line.substr(0, 40))};
    const double busy = t[0] + t[1] + t[2] + t[5] + t[6];
    all[number] = {busy, busy + t[3] + t[4] + t[7]};
  }
  if (all.empty()) return Failure{fmt::format("{} has no line of a processor", file.string())};
  return all;
}

// Returns the value of the first line "KEY : VALUE" of a file; "" where there is none.
std::string value_in(const fs::path& file, const std::string& key) {
  std::string text;
  try {
    text = read_file(file);
  } catch (const Error&) {
    return "";
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (line.rfind(key, 0) != 0 || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1), end = line.find_last_not_of(" \t\r");
    return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
  }
  return "";
}

}  // namespace

Result<std::string> allowed_cpus(const Machine& machine) {
  const fs::path file = machine.proc / "self/status";
  const std::string list = value_in(file, "Cpus_allowed_list");
  if (list.empty()) return Failure{fmt::format("{} has no Cpus_allowed_list", file.string())};
  if (const auto parsed = parse_cpu_list(list); !parsed)
    return Failure{fmt::format("{}: {}", file.string(), parsed.reason())};
  return list;
}

Result<int> count_cpus(const Machine& machine) {
  const auto all = read_stat(machine);
  if (!all) return Failure{all.reason()};
  return static_cast<int>(all.value().size());
}

std::string processor_of(const Machine& machine) {
  return value_in(machine.proc / "cpuinfo", "model name");
}

Result<CpuTimes> read_cpu_times(const Machine& machine, const std::vector<int>& cpus) {
  const auto all = read_stat(machine);
  if (!all) return Failure{all.reason()};
  CpuTimes sum;
  for (const int cpu : cpus) {
    const auto times = all.value().find(cpu);
    if (times == all.value().end())
      return Failure{fmt::format("{} has no processor {}", (machine.proc / "stat").string(), cpu)};
    sum.busy += times->second.busy, sum.all += times->second.all;
  }
  if (!(sum.all > 0))
    return Failure{fmt::format("{} counts no time of the processors", (machine.proc / "stat").string())};
  return sum;
}

}  // namespace molen::energy
