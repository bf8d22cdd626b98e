#include "slurm/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace molen::slurm {
namespace {

constexpr int kStatus = 3;                  // the descriptor of the new process to which it writes what went wrong
constexpr std::int64_t kPatienceMs = 1000;  // for the new process to become the program

// What went wrong in the new process, as it tells the caller.
struct Trouble {
  enum What : char { kFolder, kTrust, kLog, kProgram };
  What what;
  int error;
};

struct PipeEnds {
  int read = -1, write = -1;
};

void close_if_open(int descriptor) {
  if (descriptor >= 0) ::close(descriptor);
}

// Returns a pipe whose ends are not among the standard streams, and that no program inherits; -1 if there is none.
PipeEnds pipe_above_streams() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  for (int& end : ends) {
    if (end > kStatus) continue;
    const int above = ::fcntl(end, F_DUPFD_CLOEXEC, kStatus + 1);
    ::close(end);
    end = above;
  }
  return {ends[0], ends[1]};
}

// The functions from here to `become` run in a process that was forked from one with threads. They call only what is
// safe there: nothing that takes memory or a lock.

void tell(Trouble::What what) {
  const Trouble trouble{what, errno};
  [[maybe_unused]] const ssize_t sent = ::write(kStatus, &trouble, sizeof trouble);
}

void close_from(int first) {
#ifdef SYS_close_range
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0U) == 0) return;
#endif
  constexpr rlim_t kMostDescriptors = 1 << 16;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const int end = static_cast<int>(std::min(limit.rlim_cur, kMostDescriptors));
  for (int descriptor = first; descriptor < end; ++descriptor) ::close(descriptor);
}

void take_default_signals() {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &usual, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// The daemon of a step is not to be killed for want of memory; the sender may be.
void be_killable() {
  const int file = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(file, "0", 1);
  ::close(file);
}

// Makes the folder if it is absent. Returns false if it is someone else's, who could put links and files of his into
// it.
bool take_folder(const char* folder) {
  if (::mkdir(folder, S_IRWXU) != 0 && errno != EEXIST) {
    tell(Trouble::kFolder);
    return true;  // the program says what it cannot do without one
  }
  const int found = ::open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat status {};
  const bool trusted = found >= 0 && ::fstat(found, &status) == 0 && status.st_uid == ::geteuid() &&
                       (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (!trusted) tell(Trouble::kTrust);
  if (found >= 0) ::close(found);
  return trusted;
}

void open_streams(int input, int status, const char* folder, const char* log) {
  ::dup2(input, STDIN_FILENO);
  ::dup2(status, kStatus);
  ::fcntl(kStatus, F_SETFD, FD_CLOEXEC);
  ::umask(S_IRWXG | S_IRWXO);
  if (!take_folder(folder)) ::_exit(1);
  int output = ::open(log, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NOCTTY, S_IRUSR | S_IWUSR);
  if (output < 0) {
    tell(Trouble::kLog);
    output = ::open("/dev/null", O_WRONLY);
  }
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  close_from(kStatus + 1);
}

[[noreturn]] void become(char* const* arguments, char* const* environment, int input, int status, const char* folder,
                         const char* log) {
  ::setsid();
  // A child of a child is nobody's when that one ends, so the daemon need not wait for it.
  if (const pid_t pid = ::fork(); pid != 0) ::_exit(pid < 0 ? 1 : 0);
  take_default_signals();
  be_killable();
  open_streams(input, status, folder, log);
  [[maybe_unused]] const int moved = ::chdir("/");
  ::execve(arguments[0], arguments, environment);
  tell(Trouble::kProgram);
  ::_exit(127);
}

std::int64_t now_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

// Waits until the descriptor can be read, or until the time. Returns whether it can.
bool is_readable_until(int descriptor, std::int64_t until_ms) {
  for (;;) {
    pollfd polled{descriptor, POLLIN, 0};
    const std::int64_t left_ms = std::max<std::int64_t>(until_ms - now_ms(), 0);
    const int found = ::poll(&polled, 1, static_cast<int>(left_ms));
    if (found >= 0) return found > 0;
    if (errno != EINTR) return false;
  }
}

std::string note_of(const Trouble& trouble, const std::string& program, const std::string& folder,
                    const std::string& log) {
  switch (trouble.what) {
    case Trouble::kFolder:
      return folder + ": " + std::strerror(trouble.error);
    case Trouble::kTrust:
      return folder + ": must be a folder of root's that nobody else may write, and no link: no energy is recorded";
    case Trouble::kLog:
      return log + ": " + std::strerror(trouble.error);
    case Trouble::kProgram:
      break;
  }
  return program + ": " + std::strerror(trouble.error);
}

// Reads what the new process tells until it is the program, which closes the pipe. Returns whether it is, or may be.
bool learn_of_start(int status, const std::string& program, const std::string& folder, const std::string& log,
                    std::vector<std::string>& notes) {
  const std::int64_t until_ms = now_ms() + kPatienceMs;
  for (;;) {
    if (!is_readable_until(status, until_ms)) {
      notes.push_back(program + ": has not begun after 1 s; does its file system answer?");
      return true;
    }
    Trouble trouble{};
    if (::read(status, &trouble, sizeof trouble) != static_cast<ssize_t>(sizeof trouble)) return true;
    notes.push_back(note_of(trouble, program, folder, log));
    if (trouble.what == Trouble::kProgram || trouble.what == Trouble::kTrust) return false;
  }
}

}  // namespace

Launched start_detached(const std::vector<std::string>& command, const std::string& folder, const std::string& log) {
  Launched launched;
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  // The sender gets no variable of the daemon, whose environment an administrator may have started it with.
  std::string path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", language = "LC_ALL=C.UTF-8";
  char* const environment[] = {path.data(), language.data(), nullptr};
  const PipeEnds input = pipe_above_streams(), status = pipe_above_streams();
  const bool pipes = input.read >= 0 && input.write >= 0 && status.read >= 0 && status.write >= 0;
  const pid_t pid = pipes ? ::fork() : -1;
  if (pid == 0) become(arguments.data(), environment, input.read, status.write, folder.c_str(), log.c_str());
  const int error = errno;
  close_if_open(input.read);
  close_if_open(status.write);
  if (pid > 0) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (learn_of_start(status.read, command[0], folder, log, launched.notes)) launched.hold = input.write;
  } else {
    launched.notes.push_back(command[0] + ": no process for it: " + std::strerror(error));
  }
  close_if_open(status.read);
  if (launched.hold < 0) close_if_open(input.write);
  return launched;
}

}  // namespace molen::slurm
