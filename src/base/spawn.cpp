#include "base/spawn.h"

#include <signal.h>
#include <unistd.h>

extern char** environ;

namespace molen {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Spawn::Spawn() {
  ::posix_spawn_file_actions_init(&files_);
  ::posix_spawnattr_init(&attributes_);
}

Spawn::~Spawn() {
  ::posix_spawnattr_destroy(&attributes_);
  ::posix_spawn_file_actions_destroy(&files_);
}

void Spawn::open(const char* path, int flags, int as) {
  ::posix_spawn_file_actions_addopen(&files_, as, path, flags, 0);
}

void Spawn::give(int descriptor, int as) {
  ::posix_spawn_file_actions_adddup2(&files_, descriptor, as);
}

void Spawn::close_from(int first) {
#if __GLIBC_PREREQ(2, 34)
  ::posix_spawn_file_actions_addclosefrom_np(&files_, first);
#else
  static_cast<void>(first);
#endif
}

pid_t Spawn::start(const std::vector<std::string>& command, Leads leads,
                   const std::optional<std::vector<std::string>>& environment) {
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes_, &none);
  ::posix_spawnattr_setsigdefault(&attributes_, &all);
  ::posix_spawnattr_setpgroup(&attributes_, 0);
  const int own = leads == Leads::kSession ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP;
  ::posix_spawnattr_setflags(&attributes_, static_cast<short>(own | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF));
  const std::vector<char*> argv = pointers_to(command),
                           envp = environment ? pointers_to(*environment) : std::vector<char*>{};
  pid_t pid = -1;
  const int code =
      ::posix_spawnp(&pid, argv[0], &files_, &attributes_, argv.data(), environment ? envp.data() : environ);
  return code == 0 ? pid : -code;
}

}  // namespace molen
