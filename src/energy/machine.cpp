#include "energy/machine.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "energy/meter.h"

namespace molen::energy {

const char* name_of(Source source) {
  switch (source) {
    case Source::kCounter:
      return "counter";
    case Source::kPower:
      return "power";
    case Source::kModel:
      return "model";
    case Source::kNone:
      break;
  }
  return "none";
}

Machine::Machine()
    : sys(std::getenv("MOLEN_SYSFS") != nullptr ? std::getenv("MOLEN_SYSFS") : "/sys"),
      clock([] { return now().value; }),
      sleep([](double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }) {}

Result<std::string> read_bytes(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Failure{fmt::format("{}: {}", path.string(), std::strerror(errno))};
  std::string text(4096, '\0');
  const ssize_t n = ::read(fd, text.data(), text.size());
  const int error = errno;
  ::close(fd);
  if (n < 0) return Failure{fmt::format("{}: {}", path.string(), std::strerror(error))};
  text.resize(static_cast<std::size_t>(n));
  return text;
}

Result<std::string> read_small(const fs::path& path) {
  auto bytes = read_bytes(path);
  if (!bytes) return bytes;
  std::string text = std::move(bytes).value();
  while (!text.empty() && std::strchr(" \t\r\n", text.back()) != nullptr) text.pop_back();
  return text;
}

Result<std::uint64_t> read_count(const fs::path& path) {
  const auto text = read_small(path);
  if (!text) return Failure{text.reason()};
  const std::string& s = text.value();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size())
    return Failure{fmt::format("{}: '{}' is no count", path.string(), s.substr(0, 40))};
  return value;
}

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  const Failure bad{fmt::format("'{}' is no list of CPUs", text.substr(0, 40))};
  const char *at = text.data(), *const end = at + text.size();
  while (at != end) {
    int first = 0, last = 0;
    auto parsed = std::from_chars(at, end, first);
    if (parsed.ec != std::errc() || first < 0) return bad;
    last = first;
    if (parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
      if (parsed.ec != std::errc() || last < first || last - first > 65535) return bad;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (cpus.size() > 65536) return bad;
    at = parsed.ptr;
    if (at == end) break;
    if (*at != ',' || ++at == end) return bad;
  }
  if (cpus.empty()) return bad;
  return cpus;
}

bool is_virtual(const Machine& machine) {
  std::string text;
  try {
    text = read_file(machine.proc / "cpuinfo");
  } catch (const Error&) {
    return false;
  }
  const std::size_t flags = text.find("flags");
  if (flags == std::string::npos) return false;
  const std::string line = text.substr(flags, text.find('\n', flags) - flags) + " ";
  return line.find(" hypervisor ") != std::string::npos;
}

}  // namespace molen::energy
