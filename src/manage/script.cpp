#include "manage/script.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/clock.h"

namespace molen::manage {
namespace {

constexpr int kNotStarted = 127;
constexpr const char* kUsualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

// Starts the program; returns its number, or -errno.
int spawn_script(const std::string& program, const std::vector<std::string>& environment) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
#if __GLIBC_PREREQ(2, 34)
  ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
#endif
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> argv{const_cast<char*>(program.c_str()), nullptr}, envp;
  for (const std::string& variable : environment) envp.push_back(const_cast<char*>(variable.c_str()));
  envp.push_back(nullptr);
  pid_t pid = -1;
  const int code = ::posix_spawn(&pid, program.c_str(), &files, &attributes, argv.data(), envp.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return code == 0 ? pid : -code;
}

ScriptResult result_of(int status) {
  if (WIFSIGNALED(status)) return {128 + WTERMSIG(status), fmt::format("was ended by signal {}", WTERMSIG(status))};
  return {WEXITSTATUS(status), fmt::format("ended with status {}", WEXITSTATUS(status))};
}

}  // namespace

RunningScript::RunningScript(const Script& script, const ScriptVariables& variables)
    : limit_(script.limit), until_(now() + script.limit) {
  const char* path = std::getenv("PATH");
  std::vector<std::string> environment{fmt::format("PATH={}", path != nullptr ? path : kUsualPath)};
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  pid_ = spawn_script(script.program.string(), environment);
  if (pid_ < 0) result_ = {kNotStarted, fmt::format("could not be started: {}", std::strerror(-pid_))};
}

RunningScript::~RunningScript() {
  if (pid_ > 0) end();
}

// Ends what runs in the group, and returns the status of the script.
int RunningScript::end() {
  ::kill(-pid_, SIGKILL);  // also what it may have left in the background
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = 0;
  return status;
}

std::optional<ScriptResult> RunningScript::look() {
  if (result_) return result_;
  siginfo_t info{};
  // It stays to be waited for, so that its number, which is that of its group, belongs to no other process yet.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_) {
    result_ = result_of(end());
  } else if (now() >= until_) {
    end();
    result_ = {128 + SIGKILL, fmt::format("was killed after {:g} s", limit_.value)};
  }
  return result_;
}

}  // namespace molen::manage
