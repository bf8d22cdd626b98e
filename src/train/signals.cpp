#include "train/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

#include "comm/mpi/mpi.h"

namespace molen::train {
namespace {

std::atomic<int> requests{0};
std::atomic<bool> launched{false};
std::atomic<int> saving{0};  // ranks may be threads

extern "C" void on_signal(int signal) {
  const int before = requests.fetch_add(1);
  if (before > 1 || (before == 1 && saving.load() == 0)) ::_exit(128 + signal);
  if (!launched.load()) return;
  // Once mpirun is told to stop, it no longer reads what its ranks print, and kills them a second later. A write that
  // waits for mpirun, including one that this signal interrupted, must give up so that the state can be saved. The pipe
  // belongs to this rank alone.
  const int saved = errno;
  for (const int file : {STDOUT_FILENO, STDERR_FILENO}) {
    const int flags = ::fcntl(file, F_GETFL);
    if (flags >= 0) ::fcntl(file, F_SETFL, flags | O_NONBLOCK);
  }
  errno = saved;
}

}  // namespace

void ignore_closed_output() {
  ::signal(SIGPIPE, SIG_IGN);
}

void catch_stop_signals() {
  launched = comm::launch_environment().size > 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGXCPU}) {
    // A signal that the user's shell ignores (nohup) stays ignored.
    struct sigaction before {};
    if (signal == SIGHUP && ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
}

SavingGuard::SavingGuard() {
  ++saving;
}
SavingGuard::~SavingGuard() {
  --saving;
}

bool stop_requested() {
  return requests.load() > 0;
}
void clear_stop_request() {
  requests.store(0);
}

}  // namespace molen::train
