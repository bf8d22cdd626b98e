#include "data/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/descriptor.h"
#include "base/error.h"

extern char** environ;

namespace molen::data {
namespace {

constexpr std::size_t kKept = 64 << 10;

// Opens an in-memory file that holds `input`. A pipe would need a concurrent writer, and raises a signal when the
// program does not read all of it.
int input_file(const std::string& program, std::string_view input) {
  if (input.empty()) return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  Descriptor fd(::memfd_create("input", MFD_CLOEXEC));
  while (fd.get() >= 0 && !input.empty()) {
    const ssize_t wrote = ::write(fd.get(), input.data(), input.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw Error("{}: its input cannot be passed on: {}", program, std::strerror(errno));
    input.remove_prefix(static_cast<std::size_t>(wrote));
  }
  if (fd.get() >= 0) ::lseek(fd.get(), 0, SEEK_SET);
  return fd.release();
}

double cpu_seconds(pid_t child) {
  clockid_t clock = 0;
  timespec used{};
  if (::clock_getcpuclockid(child, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;  // it has ended
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Returns the program's output up to its end; kills the program when its output or its time exceeds the limits.
std::string read_all(int fd, const ProcessLimits& limits, pid_t child) {
  constexpr int kLookMs = 50;
  std::string output;
  std::array<char, 1 << 16> block;
  while (true) {
    pollfd ready{fd, POLLIN, 0};
    const int waited = ::poll(&ready, 1, limits.cpu_seconds > 0 ? kLookMs : -1);
    bool over = limits.cpu_seconds > 0 && cpu_seconds(child) > limits.cpu_seconds;
    if (waited > 0) {
      const ssize_t got = ::read(fd, block.data(), block.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return output;
      output.append(block.data(), static_cast<std::size_t>(got));
      if (limits.output_bytes == 0 && output.size() > 2 * kKept) output.erase(0, output.size() - kKept);
      over = over || (limits.output_bytes > 0 && static_cast<std::int64_t>(output.size()) > limits.output_bytes);
    }
    if (over) {
      ::kill(child, SIGKILL);
      return output;
    }
  }
}

// Starts the program through `prlimit`, which sets the limit first: the program has no chance to take more memory
// before.
std::vector<std::string> with_limit(const std::vector<std::string>& arguments, std::int64_t bytes) {
  if (bytes <= 0) return arguments;
  std::vector<std::string> limited{"prlimit", fmt::format("--as={}:{}", bytes, bytes), "--"};
  limited.insert(limited.end(), arguments.begin(), arguments.end());
  return limited;
}

std::atomic<int> passed_signal{0};
std::atomic<pid_t> signalled_child{0};

void pass_signal(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  passed_signal = signal;
  const pid_t child = signalled_child;
  // The terminal's signals (Ctrl-C) come from the kernel, for the whole group of processes: the program has them too.
  if (child > 0 && info->si_code != SI_KERNEL) ::kill(child, signal);
  errno = saved;
}

// While it lives, signals that ask this process to end go to a program instead.
class PassedSignals {
 public:
  explicit PassedSignals(bool passes) {
    if (!passes) return;
    passed_signal = 0;
    struct sigaction action {};
    action.sa_sigaction = pass_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU}) {
      struct sigaction before {};
      // A signal that the user's shell ignores (nohup) stays ignored.
      if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
      ::sigaction(signal, &action, nullptr);
      before_.emplace_back(signal, before);
    }
  }
  ~PassedSignals() {
    signalled_child = 0;
    for (const auto& [signal, action] : before_) ::sigaction(signal, &action, nullptr);
  }
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;

  void to(pid_t child) const {
    if (before_.empty()) return;
    signalled_child = child;
    if (const int signal = passed_signal; signal != 0) ::kill(child, signal);  // it came before the program had begun
  }
  int signal() const { return before_.empty() ? 0 : passed_signal.load(); }

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

// Waits for the program's end. Its number belongs to it until it is waited for: no signal goes to another program.
int wait_for(pid_t child) {
  siginfo_t ended{};
  while (::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  pid_t expected = child;
  signalled_child.compare_exchange_strong(expected, 0);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                          std::string_view input, const ProcessLimits& limits) {
  const std::string& program = arguments[0];
  const Descriptor in(input_file(program, input));
  std::array<int, 2> pipe;
  if (in.get() < 0 || ::pipe2(pipe.data(), O_CLOEXEC) != 0)
    throw Error("{}: cannot be started: {}", program, std::strerror(errno));
  const Descriptor out(pipe[0]);
  Descriptor child_out(pipe[1]);
  const std::vector<std::string> limited = with_limit(arguments, limits.memory_bytes);
  std::vector<char*> argv;
  for (const std::string& argument : limited) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::string english = "LC_ALL=C";
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::strncmp(*entry, "LC_ALL=", 7) != 0) environment.push_back(*entry);
  environment.push_back(english.data());
  environment.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, child_out.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, child_out.get(), 2);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  const PassedSignals signals(limits.passes_signals);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(child_out.release());
  if (failed == ENOENT) return {127, limited[0] + ": no such program"};
  if (failed != 0) throw Error("{}: cannot be started: {}", program, std::strerror(failed));
  signals.to(child);
  ProcessResult result{0, read_all(out.get(), limits, child)};
  result.status = wait_for(child);
  result.signal = signals.signal();
  return result;
}

}  // namespace molen::data
