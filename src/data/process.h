// Runs another program, without a shell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

// Limits on a program; 0 = no limit. And what becomes of the program, and of those that it starts, when this process
// gets a signal or ends.
struct ProcessLimits {
  double cpu_seconds = 0;
  std::int64_t memory_bytes = 0;  // of address space
  std::int64_t output_bytes = 0;  // more output ends the program; 0: only the last 64 KiB are kept
  // Signals that ask this process to end (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU) ask the program instead, and
  // run_process returns when it has ended. At most 64 such programs run at a time. False: they act as without it.
  bool passes_signals = false;
  // The signal that the program gets when this process ends before it, however it ends (SIGKILL included); 0: it goes
  // on. The program must not change its user. Processes that it has started get nothing: a launcher ends its own, if
  // the signal leaves it the time to.
  int signal_at_our_end = 0;
  // By the clock. The program is then asked to end (SIGTERM), and killed `grace_seconds` later.
  double wall_seconds = 0;
  double grace_seconds = 30;
  // Whether no process that the program has started outlives it, nor this process. The program then runs below a guard,
  // a process that all of them belong to, also those whose parents have ended. The guard passes signals on, and gets
  // SIGTERM when this process ends (`signal_at_our_end` is not used). When the program has ended, the guard asks the
  // others to end; what is left `grace_seconds` after the first such signal is killed. Needs /proc, and a kernel with
  // CONFIG_PROC_CHILDREN, as those of distributions are.
  bool whole_tree = false;
};

struct ProcessResult {
  int status;              // exit status; 127 when the program does not exist, 128 + n when signal n ended it
  std::string output;      // stdout and stderr together
  int signal = 0;          // the last signal that was passed on; 0: none
  bool timed_out = false;  // `wall_seconds` were over
};

// Looks up `arguments[0]` in PATH. Messages are in English (LC_ALL=C). The program reads `input` as its standard input.
// Throws Error when no process can be created.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                          std::string_view input = {}, const ProcessLimits& limits = {});

}  // namespace molen::data
