// Runs another program, without a shell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

// Limits on a program that reads text from outside; 0 = no limit.
struct ProcessLimits {
  double cpu_seconds = 0;
  std::int64_t memory_bytes = 0;  // of address space
  std::int64_t output_bytes = 0;  // more output ends the program; 0: only the last 64 KiB are kept
};

struct ProcessResult {
  int status;          // exit status; 127 when the program does not exist, 128 + n when signal n ended it
  std::string output;  // stdout and stderr together
};

// Looks up `arguments[0]` in PATH. Messages are in English (LC_ALL=C). The program reads `input` as its standard input.
// Throws Error when no process can be created.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                          std::string_view input = {}, const ProcessLimits& limits = {});

}  // namespace molen::data
