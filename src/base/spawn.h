// Starting a program as a child process (posix_spawn), with chosen descriptors and the signals of a new process.
#pragma once

#include <spawn.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace molen {

class Spawn {
 public:
  enum class Leads { kGroup, kSession };  // the child leads a new process group, or a new session

  Spawn();
  ~Spawn();
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;

  // The child has `path` open as descriptor `as`.
  void open(const char* path, int flags, int as);
  // The child has `descriptor` as `as`. Calls take effect in their order.
  void give(int descriptor, int as);
  // The child has no descriptor from `first` on. Where the C library is older than glibc 2.34, it keeps those that do
  // not close on exec.
  void close_from(int first);

  // Starts `command`, whose first word is a path, or a name that PATH finds. The child blocks no signal and has the
  // default action of each. `environment` has words NAME=VALUE; where it is absent, the child has that of this process.
  // Returns the number of the child, or -errno.
  pid_t start(const std::vector<std::string>& command, Leads leads,
              const std::optional<std::vector<std::string>>& environment = std::nullopt);

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

}  // namespace molen
