#include "actuate/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "actuate/journal.h"
#include "actuate/locks.h"
#include "base/clock.h"
#include "base/console.h"
#include "base/error.h"
#include "base/spawn.h"

namespace molen::actuate {
namespace {

constexpr std::string_view kReady = "ready\n";
constexpr Seconds kEndOfGuardian{10.0};
constexpr std::size_t kLongestWords = 4096;

// A pipe whose ends are no standard streams.
struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    for (int& end : ends) {
      if (end > STDERR_FILENO) continue;
      const int above = ::fcntl(end, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
      ::close(end);
      end = above;
    }
    read = ends[0], write = ends[1];
  }
  bool ok() const { return read >= 0 && write >= 0; }
};

// Starts the program with the ends of the pipes as its standard input and output; returns its number, or -errno.
pid_t spawn_guardian(const std::vector<std::string>& command, int control, int ready,
                     const std::vector<int>& inherited) {
  Spawn spawn;
  spawn.give(control, STDIN_FILENO);
  spawn.give(ready, STDOUT_FILENO);
  // The locks come to 3, 4, ... (a sorted list of descriptors from 3 on never overwrites one of its own), and
  // everything else is closed: a socket of the job that stayed open here would hide the job's death from its peers.
  std::vector<int> sorted = inherited;
  std::sort(sorted.begin(), sorted.end());
  int next = STDERR_FILENO + 1;
  for (const int fd : sorted) spawn.give(fd, next++);
  spawn.close_from(next);
  return spawn.start(command, Spawn::Leads::kSession);
}

// Waits for the end of the pipe, or that of the owner. A child of the owner that was forked may hold the pipe open
// after the owner's death, so the owner itself is watched too.
void wait_for_the_end(int control, std::int64_t owner) {
  constexpr int kLookMs = 1000;  // for kernels without pidfd_open
  const Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(owner), 0U)));
  while (::getppid() == static_cast<pid_t>(owner)) {
    pollfd ends[2] = {{control, POLLIN, 0}, {process.get(), POLLIN, 0}};
    const int ready = ::poll(ends, process.get() >= 0 ? 2 : 1, process.get() >= 0 ? -1 : kLookMs);
    if (ready < 0 && errno != EINTR) return;
    if (ready <= 0) continue;
    if (ends[1].revents != 0) return;
    char byte = 0;
    if (ends[0].revents != 0 && ::read(control, &byte, 1) <= 0) return;
  }
}

// Restores what the journal holds now, and removes it once nothing stays changed. Returns whether that is so; `notes`
// are those of the last try.
bool restore_and_remove(const fs::path& journal, const std::function<Actuators()>& open,
                        std::vector<std::string>& notes) {
  if (!path_exists(journal)) return true;  // the job has restored all
  Actuators here = open();
  const Restoration done = restore_journal(read_journal(journal), here);
  notes.insert(notes.end(), done.notes.begin(), done.notes.end());
  if (!done.complete()) return false;
  remove_journal(journal);
  return true;
}

}  // namespace

Result<std::unique_ptr<Guardian>> Guardian::start(const std::vector<std::string>& command, const fs::path& journal,
                                                  const std::vector<int>& inherited, Seconds patience) {
  MOLEN_CHECK(!command.empty(), "a guardian without a program");
  const Pipe control, ready;
  Descriptor control_read(control.read), ready_write(ready.write);
  auto guardian = std::unique_ptr<Guardian>(new Guardian(-1, control.write, ready.read));
  if (!control.ok() || !ready.ok()) return Failure{fmt::format("no pipe to a guardian: {}", std::strerror(errno))};
  std::vector<std::string> words = command;
  words.push_back(fs::absolute(journal).string());
  const int pid = spawn_guardian(words, control_read.get(), ready_write.get(), inherited);
  if (pid < 0) return Failure{fmt::format("{}: cannot be started as a guardian: {}", command[0], std::strerror(-pid))};
  guardian->pid_ = pid;
  ::close(ready_write.release());  // else the guardian's end would not hang up the pipe
  if (const auto started = guardian->wait_until_ready(patience); !started) return Failure{started.reason()};
  return guardian;
}

Guardian::~Guardian() {
  if (pid_ < 0) return;
  ::close(control_.release());
  const Seconds until = now() + kEndOfGuardian;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0 && now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

Result<Done> Guardian::wait_until_ready(Seconds patience) const {
  std::string words;
  const Seconds until = now() + patience;
  while (words.find('\n') == std::string::npos && words.size() < kLongestWords) {
    pollfd end{ready_.get(), POLLIN, 0};
    const double left = std::max(0.0, (until - now()).value);
    const int found = ::poll(&end, 1, static_cast<int>(left * 1e3) + 1);
    if (found < 0 && errno == EINTR) continue;
    if (found == 0 && now() > until)
      return Failure{fmt::format("the guardian was not ready within {:g} s", patience.value)};
    char text[512];
    const ssize_t got = found > 0 ? ::read(ready_.get(), text, sizeof text) : 0;
    if (found > 0 && got <= 0)
      return Failure{words.empty() ? std::string("the guardian ended before it was ready")
                                   : fmt::format("the guardian ended: {}", words)};
    words.append(text, static_cast<std::size_t>(got));
  }
  if (words == kReady) return Done{};
  return Failure{fmt::format("the guardian: {}", words.substr(0, words.find('\n')))};
}

bool Guardian::alive() const {
  pollfd end{ready_.get(), 0, 0};  // hung up once the guardian has ended
  return ::poll(&end, 1, 0) == 0;
}

int guard(const fs::path& journal, const std::function<Actuators()>& open, const GuardOptions& options) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU})
    ::signal(signal, SIG_IGN);
  const auto tell = [&](std::string_view words) {
    while (::write(options.ready, words.data(), words.size()) < 0 && errno == EINTR) continue;
  };
  std::int64_t owner = 0;
  try {
    const Journal first = read_journal(journal);
    owner = first.owner.pid;
    if (::getppid() != static_cast<pid_t>(owner) && is_running(owner))
      throw UsageError("{}: {} has this journal, and only that process may start its guardian", journal.string(),
                       first.owner.text());
    const Actuators here = open();
    for (const JournalEntry& entry : first.entries)
      if (std::none_of(here.actuators.begin(), here.actuators.end(),
                       [&](const auto& a) { return a->info().id == entry.id; }))
        throw UsageError("it cannot set {}", entry.id);
  } catch (const Error& error) {
    tell(fmt::format("{}\n", error.what()));
    return 1;
  }
  tell(kReady);
  wait_for_the_end(options.control, owner);
  for (int left = options.tries; left > 0; --left) {
    std::vector<std::string> notes;
    bool done = false;
    try {
      done = restore_and_remove(journal, open, notes);
    } catch (const Error& error) {
      notes.push_back(error.what());
    }
    if (done || left == 1)
      for (const std::string& note : notes) say(note);
    if (done) return 0;
    if (left > 1) std::this_thread::sleep_for(std::chrono::duration<double>(options.between.value));
  }
  say(
      fmt::format("{}: stays, because not all could be restored; the next job on this machine that finds it, or "
                  "`molen energy restore`, tries again",
                  journal.string()));
  return 1;
}

}  // namespace molen::actuate
