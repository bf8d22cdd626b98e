// Ctrl-C, SIGTERM and what batch systems send before they end a job (SIGUSR1, SIGHUP, SIGXCPU): the first asks the loop
// to save and stop, the second ends the process at once, but lets a save that has begun come to its end; a third does
// not.
#pragma once

namespace molen::train {

// A reader of the output that goes away ends no run. To be called before the run prints anything.
void ignore_closed_output();
void catch_stop_signals();
bool stop_requested();
void clear_stop_request();

// A save is going on as long as it lives.
class SavingGuard {
 public:
  SavingGuard();
  ~SavingGuard();
  SavingGuard(const SavingGuard&) = delete;
  SavingGuard& operator=(const SavingGuard&) = delete;
};

}  // namespace molen::train
