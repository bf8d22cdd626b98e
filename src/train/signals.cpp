#include "train/signals.h"

#include <unistd.h>
#include <atomic>
#include <csignal>

namespace molen::train {
namespace {

std::atomic<int> requests{0};

extern "C" void on_signal(int signal) {
  if (requests.fetch_add(1) > 0) ::_exit(128 + signal);
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() {
  return requests.load() > 0;
}
void clear_stop_request() {
  requests.store(0);
}

}  // namespace molen::train
