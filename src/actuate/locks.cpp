#include "actuate/locks.h"

#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/utf8.h"
#include "energy/machine.h"

namespace molen::actuate {
namespace {

constexpr std::chrono::milliseconds kLookAgain{20};
constexpr std::int64_t kMaxLocksBytes = 1 << 24;

std::int64_t holder_of(int fd) {
  FileStatus status;
  if (file_system().status(fd, status) != 0) return 0;
  try {
    return holder_in(read_file("/proc/locks", kMaxLocksBytes), status.device, status.inode);
  } catch (const Error&) {
    return 0;
  }
}

// Returns a text such as "process 12 (molen) of alice".
std::string process_text(std::int64_t pid) {
  if (pid <= 0) return "another job or its guardian";
  const auto name = energy::read_small(fmt::format("/proc/{}/comm", pid));
  struct stat status {};
  std::string user;
  if (::stat(fmt::format("/proc/{}", pid).c_str(), &status) == 0) {
    std::vector<char> buffer(1 << 14);
    passwd entry{}, *found = nullptr;
    ::getpwuid_r(status.st_uid, &entry, buffer.data(), buffer.size(), &found);
    user = found != nullptr ? found->pw_name : fmt::format("user {}", status.st_uid);
  }
  return fmt::format("process {}{}{}", pid, name ? fmt::format(" ({})", printable(name.value())) : "",
                     user.empty() ? "" : " of " + user);
}

// Opens a file with a descriptor that no standard stream has.
int open_above(const fs::path& file) {
  const int fd = file_system().open(file, O_RDONLY, 0);
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int code = errno;
  ::close(fd);
  return above < 0 ? -code : above;
}

// Returns why the lock cannot be had; empty once it is held.
std::string lock_or_reason(int fd, const ActuatorInfo& info, Seconds patience) {
  const Seconds until = now() + patience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return fmt::format("{}: cannot be locked: {}", info.lock.string(), std::strerror(errno));
    const std::int64_t pid = holder_of(fd);
    // The guardian of a dead job restores now. In a container, the kernel does not show the lock of a dead process.
    const bool ends = pid <= 0 || !is_running(pid);
    if (!ends || now() > until)
      return fmt::format("{} of {} is set by {}, and only one job may; wait for it to end", info.name, info.scope,
                         process_text(pid));
    std::this_thread::sleep_for(kLookAgain);
  }
  return "";
}

}  // namespace

bool is_running(std::int64_t pid) {
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno != EPERM) return false;
  const auto stat = energy::read_small(fmt::format("/proc/{}/stat", pid));
  const std::size_t name_end = stat ? stat.value().rfind(") ") : std::string::npos;
  return name_end == std::string::npos || stat.value()[name_end + 2] != 'Z';
}

std::int64_t holder_in(std::string_view locks, std::uint64_t device, std::uint64_t inode) {
  std::int64_t by_inode = 0;
  for (std::size_t at = 0; at < locks.size();) {
    const std::size_t end = std::min(locks.find('\n', at), locks.size());
    const std::string line(locks.substr(at, end - at));
    at = end + 1;
    // "12: FLOCK  ADVISORY  WRITE 3417 00:1b:20311 0 EOF"; a line with "->" is of a process that waits.
    long long pid = 0;
    unsigned major_number = 0, minor_number = 0;
    unsigned long long node = 0;
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %lld %x:%x:%llu", &pid, &major_number, &minor_number, &node) !=
            4 ||
        node != inode || pid <= 0)
      continue;
    if (major(device) == major_number && minor(device) == minor_number) return pid;
    if (by_inode == 0) by_inode = pid;  // some file systems show another device here than in stat
  }
  return by_inode;
}

Result<Locks> Locks::take(const std::vector<const Actuator*>& actuators, Seconds patience) {
  Locks locks;
  std::set<fs::path> taken;  // in this order in every job, so that no two wait for each other
  std::vector<const Actuator*> ordered = actuators;
  std::sort(ordered.begin(), ordered.end(),
            [](const Actuator* a, const Actuator* b) { return a->info().lock < b->info().lock; });
  for (const Actuator* actuator : ordered) {
    if (!taken.insert(actuator->info().lock).second) continue;
    const int fd = open_above(actuator->info().lock);
    if (fd < 0)
      return Failure{
          fmt::format("{}: cannot be opened to lock it: {}", actuator->info().lock.string(), std::strerror(-fd))};
    locks.held_.push_back(std::make_shared<Descriptor>(fd));
    if (const std::string why = lock_or_reason(fd, actuator->info(), patience); !why.empty()) return Failure{why};
  }
  return locks;
}

std::vector<int> Locks::descriptors() const {
  std::vector<int> all;
  for (const auto& one : held_) all.push_back(one->get());
  return all;
}

}  // namespace molen::actuate
