// Runs another program, without a shell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

// Limits on a program that reads text from outside; 0 = no limit. And what becomes of the program when this process
// gets a signal.
struct ProcessLimits {
  double cpu_seconds = 0;
  std::int64_t memory_bytes = 0;  // of address space
  std::int64_t output_bytes = 0;  // more output ends the program; 0: only the last 64 KiB are kept
  // Signals that ask this process to end (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU) ask the program instead, and
  // run_process returns when it has ended. Only one such program runs at a time. False: they act as without it.
  bool passes_signals = false;
  // The signal that the program gets when this process ends before it, however it ends (SIGKILL included); 0: it goes
  // on. The program must not change its user. Processes that it has started get nothing: a launcher ends its own, if
  // the signal leaves it the time to.
  int signal_at_our_end = 0;
};

struct ProcessResult {
  int status;          // exit status; 127 when the program does not exist, 128 + n when signal n ended it
  std::string output;  // stdout and stderr together
  int signal = 0;      // the last signal that was passed on; 0: none
};

// Looks up `arguments[0]` in PATH. Messages are in English (LC_ALL=C). The program reads `input` as its standard input.
// Throws Error when no process can be created.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                          std::string_view input = {}, const ProcessLimits& limits = {});

}  // namespace molen::data
