#include "actuate/sysfs.h"

#include <fcntl.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace molen::actuate {
namespace {

// Opens a file of the kernel for writing; it takes a whole value in one call.
int open_setting(const fs::path& file) {
  int fd = -EINTR;
  while (fd == -EINTR) fd = file_system().open(file, O_WRONLY, 0);
  return fd;
}

std::string not_writable(const fs::path& file, int code) {
  std::string why = fmt::format("{}: {}", file.string(), std::strerror(-code));
  if (code == -EACCES || code == -EPERM)
    return why + fmt::format(
                     " (only root may write it; an administrator can let a group write it, by a udev rule or in the "
                     "prolog of a job: chgrp GROUP {0}; chmod g+w {0}; or run `molen energy daemon`)",
                     file.string());
  if (code == -EROFS) return why + " (this container shows /sys read-only; start it with /sys writable)";
  return why;
}

class FileActuator : public Actuator {
 public:
  FileActuator(ActuatorInfo info, State original, std::vector<fs::path> files)
      : Actuator(std::move(info), std::move(original)), files_(std::move(files)) {}

  Result<State> read() const override {
    State state;
    for (const fs::path& file : files_) {
      const auto value = read_value(file);
      if (!value) return Failure{value.reason()};
      state.push_back(value.value());
    }
    return state;
  }

 protected:
  Result<Done> write(std::size_t part, std::int64_t value) override {
    const fs::path& file = files_[part];
    const int fd = open_setting(file);
    if (fd < 0) return Failure{not_writable(file, fd)};
    const std::string text = std::to_string(value);
    std::int64_t wrote = -EINTR;
    while (wrote == -EINTR) wrote = file_system().write(fd, text.data(), text.size());
    // The kernel's files ignore this; those of tests must end where the new value ends.
    if (wrote == static_cast<std::int64_t>(text.size())) file_system().truncate(fd, wrote);
    const int closed = file_system().close(fd);
    if (wrote < 0) return Failure{not_writable(file, static_cast<int>(wrote))};
    if (wrote != static_cast<std::int64_t>(text.size()))
      return Failure{fmt::format("{}: took {} of {} bytes of {}", file.string(), wrote, text.size(), text)};
    if (closed < 0) return Failure{not_writable(file, closed)};
    return Done{};
  }

 private:
  std::vector<fs::path> files_;
};

// Returns the first number in a name, by which policy10 comes after policy2.
std::uint64_t number_in(const std::string& name) {
  std::size_t at = 0;
  while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) == 0) ++at;
  std::uint64_t number = 0;
  for (; at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) != 0 && number < (1U << 30); ++at)
    number = 10 * number + static_cast<std::uint64_t>(name[at] - '0');
  return number;
}

}  // namespace

Result<std::int64_t> read_value(const fs::path& file) {
  const auto value = energy::read_count(file);
  if (!value) return Failure{value.reason()};
  if (value.value() > static_cast<std::uint64_t>(INT64_MAX))
    return Failure{fmt::format("{}: {} is too large", file.string(), value.value())};
  return static_cast<std::int64_t>(value.value());
}

std::string virtual_or(const energy::Machine& machine, const std::string& otherwise) {
  return energy::is_virtual(machine) ? "; this is a virtual machine, whose host keeps them" : otherwise;
}

std::vector<std::string> names_in(const fs::path& folder, const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.rfind(prefix, 0) == 0) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(number_in(a), a) < std::pair(number_in(b), b);
  });
  return names;
}

void add_file_actuator(Actuators& found, ActuatorInfo info, const std::vector<FilePart>& files) {
  State original;
  std::vector<fs::path> paths;
  const auto refuse = [&](const std::string& why) { found.unavailable.push_back({info.name, info.scope, why}); };
  for (const auto& [file, part] : files) {
    const auto value = read_value(file);
    if (!value) return refuse(value.reason());
    if (part.least <= 0 || (part.most != 0 && part.most < part.least))
      return refuse(fmt::format("{}: {} between {} and {} is no usable range", file.string(), value.value(), part.least,
                                part.most));
    const int fd = open_setting(file);
    if (fd < 0) return refuse(not_writable(file, fd));
    file_system().close(fd);
    original.push_back(value.value());
    paths.push_back(file);
    info.parts.push_back(part);
  }
  info.id = info.name + ":" + info.scope;
  info.lock = paths.front();
  info.detail =
      paths.front().string() + (paths.size() > 1 ? fmt::format(" and {} more", paths.size() - 1) : std::string());
  found.actuators.push_back(std::make_unique<FileActuator>(std::move(info), std::move(original), std::move(paths)));
}

}  // namespace molen::actuate
