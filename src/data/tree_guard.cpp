#include "data/tree_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace molen::data {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kRound = kSecond / 20;  // between two kills: each makes children of the next processes

std::int64_t monotonic_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::int64_t>(t.tv_sec) * kSecond + t.tv_nsec;
}

// A pipe that stayed open here would hide the end of the program, or of the command, from its reader.
void close_files() {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, 0U, ~0U, 0U) == 0) return;
#endif
  const long most = ::sysconf(_SC_OPEN_MAX);
  for (int fd = 0; fd < (most > 0 && most < 65536 ? most : 65536); ++fd) ::close(fd);
}

// Calls `found` with each child of this process, which has one thread.
template <class Found>
void each_child(const Found& found) {
  const int file = ::open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  std::array<char, 4096> text{};
  pid_t child = 0;
  for (ssize_t got = 0; (got = ::read(file, text.data(), text.size())) > 0;)
    for (std::size_t i = 0; i < static_cast<std::size_t>(got); ++i) {
      if (text[i] >= '0' && text[i] <= '9') {
        child = child * 10 + (text[i] - '0');
        continue;
      }
      if (child > 0) found(child);
      child = 0;
    }
  if (child > 0) found(child);
  ::close(file);
}

// The processes that were asked to end. A launcher that is asked again may take it for an order to leave its ranks.
class Asked {
 public:
  void ask(pid_t child) {
    for (std::size_t i = 0; i < count_; ++i)
      if (asked_[i] == child) return;
    if (count_ == asked_.size()) return;  // it is killed with the others
    asked_[count_++] = child;
    ::kill(child, SIGTERM);
  }

 private:
  std::array<pid_t, 1024> asked_{};
  std::size_t count_ = 0;
};

// Collects the children that have ended. Returns whether some are left.
bool collect(pid_t program, int& status, bool& program_ended) {
  while (true) {
    int ended_with = 0;
    const pid_t ended = ::waitpid(-1, &ended_with, WNOHANG);
    if (ended < 0 && errno == EINTR) continue;
    if (ended <= 0) return ended == 0;
    if (ended == program) status = ended_with, program_ended = true;
  }
}

// Returns the next signal within so many nanoseconds; 0: none came.
int next_signal(const sigset_t& all, std::int64_t within, bool& of_terminal) {
  const timespec time{within / kSecond, within % kSecond};
  siginfo_t info{};
  const int signal = ::sigtimedwait(&all, &info, &time);
  of_terminal = signal > 0 && info.si_code == SI_KERNEL;
  return signal > 0 ? signal : 0;
}

}  // namespace

void adopt_orphans() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1UL, 0UL, 0UL, 0UL);
}

[[noreturn]] void guard_tree(pid_t program, double grace, std::span<const int> passed) {
  close_files();
  ::signal(SIGCHLD, SIG_DFL);  // a child of a process that ignores it leaves no status
  sigset_t all;
  ::sigfillset(&all);
  const auto grace_ns = static_cast<std::int64_t>(grace * static_cast<double>(kSecond));
  std::int64_t kill_at = 0;  // 0: nobody has asked for the end
  int status = 0;
  bool program_ended = false;
  Asked asked;
  while (collect(program, status, program_ended)) {
    // Those whose parent has ended since the last time have become children of this process.
    if (program_ended) each_child([&](pid_t child) { asked.ask(child); });
    if (program_ended && kill_at == 0) kill_at = monotonic_ns() + grace_ns;
    const std::int64_t left = kill_at == 0 ? kSecond : kill_at - monotonic_ns();
    if (left <= 0) {
      each_child([](pid_t child) { ::kill(child, SIGKILL); });
      kill_at = monotonic_ns() + kRound;
      continue;
    }
    bool of_terminal = false;
    const int signal = next_signal(all, left < kSecond ? left : kSecond, of_terminal);
    for (const int ends : passed) {
      if (signal != ends) continue;
      // A terminal has sent it to the program too. It never sends SIGTERM, which is the signal of the starter's death
      // and looks like one of a terminal.
      const bool has_it = of_terminal && signal != SIGTERM;
      if (!has_it && !program_ended) ::kill(program, signal);
      if (kill_at == 0) kill_at = monotonic_ns() + grace_ns;
    }
  }
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

}  // namespace molen::data
