// Handling of Ctrl-C, SIGTERM and the signals that batch systems send before they end a job (SIGUSR1, SIGHUP, SIGXCPU).
// The first signal asks the loop to save and stop. The second ends the process at once, except that a save in progress
// may complete. The third does not wait even for that.
#pragma once

namespace molen::train {

// Makes sure that a run continues when the reader of its output goes away. To be called before the run prints anything.
void ignore_closed_output();
void catch_stop_signals();
bool stop_requested();
void clear_stop_request();

// Marks a save as in progress for the lifetime of the object.
class SavingGuard {
 public:
  SavingGuard();
  ~SavingGuard();
  SavingGuard(const SavingGuard&) = delete;
  SavingGuard& operator=(const SavingGuard&) = delete;
};

}  // namespace molen::train
