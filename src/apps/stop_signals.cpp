#include "apps/stop_signals.h"

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace molen::apps {
namespace {

std::atomic<int> stop_descriptor{-1};

extern "C" void on_stop_signal(int) {
  const int saved = errno;
  ::eventfd_write(stop_descriptor.load(), 1);
  errno = saved;
}

}  // namespace

// The signals are not blocked for a signalfd: libraries have threads by now, which would get them.
StopSignals::StopSignals() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_.get() < 0) throw Error("signals: {}", std::strerror(errno));
  stop_descriptor = descriptor_.get();
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_[0]);
  ::sigaction(SIGTERM, &action, &before_[1]);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGINT, &before_[0], nullptr);
  ::sigaction(SIGTERM, &before_[1], nullptr);
  stop_descriptor = -1;
}

}  // namespace molen::apps
