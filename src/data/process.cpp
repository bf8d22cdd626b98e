#include "data/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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

constexpr std::array kPassed{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU};

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
    for (const int signal : kPassed) {
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

// While it lives, this thread gets no signal. A child that is made meanwhile gets none before it says so.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
};

// A child of this process that is about to become a program.
struct Start {
  char** arguments = nullptr;
  char** environment = nullptr;
  const char* folder = nullptr;
  int in = -1, out = -1, report = -1;  // `report` gets errno when the program cannot be started
  int signal_at_our_end = 0;
  pid_t parent = 0;
};

// Runs in the child of a process that may have other threads, so it makes only calls that are safe in a signal handler.
[[noreturn]] void become(const Start& start, const sigset_t& signals) {
  // The handler of this process would take a signal that is for the program.
  for (const int signal : kPassed) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_sigaction == pass_signal) ::signal(signal, SIG_DFL);
  }
  bool ready = true;
  if (start.signal_at_our_end != 0) {
    ready = ::prctl(PR_SET_PDEATHSIG, start.signal_at_our_end) == 0;
    // A parent that ended before that call sends no signal any more.
    if (::getppid() != start.parent) ::_exit(128 + start.signal_at_our_end);
  }
  ready = ready && ::dup2(start.in, 0) == 0 && ::dup2(start.out, 1) == 1 && ::dup2(start.out, 2) == 2 &&
          ::chdir(start.folder) == 0;
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  if (ready) ::execvpe(start.arguments[0], start.arguments, start.environment);
  const int why = errno;
  [[maybe_unused]] const ssize_t told = ::write(start.report, &why, sizeof why);
  ::_exit(127);
}

// Starts a program. Returns 0 and sets `child`, or returns why it cannot be started.
int start_program(Start start, pid_t& child) {
  std::array<int, 2> report{};
  if (::pipe2(report.data(), O_CLOEXEC) != 0) return errno;
  const Descriptor heard(report[0]);
  Descriptor said(report[1]);
  start.report = said.get(), start.parent = ::getpid();
  {
    const BlockedSignals blocked;
    child = ::fork();
    if (child == 0) become(start, blocked.before());
  }
  if (child < 0) return errno;
  ::close(said.release());
  int why = 0;
  ssize_t got = 0;
  do got = ::read(heard.get(), &why, sizeof why);
  while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof why)) return 0;  // it is the program now, which has closed the pipe
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return why;
}

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

  const PassedSignals signals(limits.passes_signals);
  pid_t child = 0;
  const int failed = start_program({.arguments = argv.data(),
                                    .environment = environment.data(),
                                    .folder = folder.c_str(),
                                    .in = in.get(),
                                    .out = child_out.get(),
                                    .signal_at_our_end = limits.signal_at_our_end},
                                   child);
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
