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
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "data/tree_guard.h"

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

// Asks a program to end when its time is over, and kills it when it has not ended a grace later. The guard of a whole
// tree does the latter itself.
class TimeLimit {
 public:
  explicit TimeLimit(const ProcessLimits& limits) : limits_(limits), next_(now() + Seconds(limits.wall_seconds)) {}
  bool is_set() const { return limits_.wall_seconds > 0; }
  bool over() const { return asked_; }
  // Returns whether it has killed the program.
  bool look(pid_t child) {
    if (!is_set() || now() < next_) return false;
    if (asked_ && !limits_.whole_tree) ::kill(child, SIGKILL);
    if (asked_) return !limits_.whole_tree;
    ::kill(child, SIGTERM);
    asked_ = true, next_ = now() + Seconds(limits_.grace_seconds);
    return false;
  }

 private:
  const ProcessLimits& limits_;
  Seconds next_;
  bool asked_ = false;
};

constexpr int kLookMs = 50;

// Returns the program's output up to its end; kills the program when its output or its time exceeds the limits.
std::string read_all(int fd, const ProcessLimits& limits, TimeLimit& time, pid_t child) {
  std::string output;
  std::array<char, 1 << 16> block;
  while (true) {
    pollfd ready{fd, POLLIN, 0};
    const int waited = ::poll(&ready, 1, limits.cpu_seconds > 0 || time.is_set() ? kLookMs : -1);
    bool over = limits.cpu_seconds > 0 && cpu_seconds(child) > limits.cpu_seconds;
    if (waited > 0) {
      const ssize_t got = ::read(fd, block.data(), block.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return output;
      output.append(block.data(), static_cast<std::size_t>(got));
      if (limits.output_bytes == 0 && output.size() > 2 * kKept) output.erase(0, output.size() - kKept);
      over = over || (limits.output_bytes > 0 && static_cast<std::int64_t>(output.size()) > limits.output_bytes);
    }
    if (over) ::kill(child, SIGKILL);
    if (over || time.look(child)) return output;
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

constexpr std::size_t kMostPassing = 64;

std::atomic<int> passed_signal{0};
std::array<std::atomic<pid_t>, kMostPassing> signalled{};  // programs that get the signals; 0: no program

void pass_signal(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  passed_signal = signal;
  // The terminal's signals (Ctrl-C) come from the kernel, for the whole group of processes: the programs have them too.
  for (const auto& place : signalled)
    if (const pid_t child = place; child > 0 && info->si_code != SI_KERNEL) ::kill(child, signal);
  errno = saved;
}

// While one of them lives, signals that ask this process to end go to programs instead, one for each.
class PassedSignals {
 public:
  explicit PassedSignals(bool passes) : passes_(passes) {
    if (!passes) return;
    const std::lock_guard lock(mutex_);
    if (users_++ > 0) return;
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
    if (!passes_) return;
    forget();
    const std::lock_guard lock(mutex_);
    if (--users_ > 0) return;
    for (const auto& [signal, action] : before_) ::sigaction(signal, &action, nullptr);
    before_.clear();
  }
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;

  void to(pid_t child) {
    if (!passes_) return;
    for (auto& place : signalled) {
      pid_t none = 0;
      if (!place.compare_exchange_strong(none, child)) continue;
      place_ = &place;
      break;
    }
    MOLEN_CHECK(place_ != nullptr, "more than {} programs get signals", kMostPassing);
    if (const int signal = passed_signal; signal != 0) ::kill(child, signal);  // it came before the program had begun
  }
  // From now on no signal goes to the program.
  void forget() {
    if (place_ != nullptr) *place_ = 0;
    place_ = nullptr;
  }
  int signal() const { return passes_ ? passed_signal.load() : 0; }

 private:
  inline static std::mutex mutex_;
  inline static int users_ = 0;
  inline static std::vector<std::pair<int, struct sigaction>> before_;  // of the first of them
  bool passes_;
  std::atomic<pid_t>* place_ = nullptr;
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
  std::optional<double> guarded = std::nullopt;  // the grace of a guard; absent: no guard
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

// Becomes the guard of the program, in the child of a process that may have other threads.
[[noreturn]] void become_guard(Start start, const sigset_t& signals) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != start.parent) ::_exit(128 + SIGTERM);
  // The program is killed with its guard.
  start.parent = ::getpid();
  start.signal_at_our_end = SIGKILL;
  adopt_orphans();
  const pid_t program = ::fork();
  if (program == 0) become(start, signals);
  if (program < 0) {
    const int why = errno;
    [[maybe_unused]] const ssize_t told = ::write(start.report, &why, sizeof why);
    ::_exit(127);
  }
  guard_tree(program, *start.guarded, kPassed);
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
    if (child == 0 && start.guarded) become_guard(start, blocked.before());
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
int wait_for(pid_t child, PassedSignals& signals, TimeLimit& time) {
  siginfo_t ended{};
  // A program that has closed its output may still run.
  const int options = WEXITED | WNOWAIT | (time.is_set() ? WNOHANG : 0);
  while (ended.si_pid != child) {
    if (::waitid(P_PID, static_cast<id_t>(child), &ended, options) < 0 && errno != EINTR) break;
    if (ended.si_pid == child) break;
    time.look(child);
    if (time.is_set()) ::poll(nullptr, 0, kLookMs);
  }
  signals.forget();
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

  PassedSignals signals(limits.passes_signals);
  TimeLimit time(limits);
  pid_t child = 0;
  const int failed = start_program({.arguments = argv.data(),
                                    .environment = environment.data(),
                                    .folder = folder.c_str(),
                                    .in = in.get(),
                                    .out = child_out.get(),
                                    .signal_at_our_end = limits.signal_at_our_end,
                                    .guarded = limits.whole_tree ? std::optional(limits.grace_seconds) : std::nullopt},
                                   child);
  ::close(child_out.release());
  if (failed == ENOENT) return {127, limited[0] + ": no such program"};
  if (failed != 0) throw Error("{}: cannot be started: {}", program, std::strerror(failed));
  signals.to(child);
  ProcessResult result{0, read_all(out.get(), limits, time, child)};
  result.status = wait_for(child, signals, time);
  result.signal = signals.signal(), result.timed_out = time.over();
  return result;
}

}  // namespace molen::data
