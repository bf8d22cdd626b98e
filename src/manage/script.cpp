#include "manage/script.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/clock.h"
#include "base/spawn.h"

namespace molen::manage {
namespace {

constexpr int kNotStarted = 127;
constexpr const char* kUsualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

// Starts the program; returns its number, or -errno.
pid_t spawn_script(const std::string& program, const std::vector<std::string>& environment) {
  Spawn spawn;
  spawn.open("/dev/null", O_RDONLY, STDIN_FILENO);
  spawn.give(STDERR_FILENO, STDOUT_FILENO);
  spawn.close_from(STDERR_FILENO + 1);
  return spawn.start({program}, Spawn::Leads::kGroup, environment);
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
