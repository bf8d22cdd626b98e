// Runs another program, without a shell.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace molen::data {

// What a program that reads text from outside may take; 0 = no limit.
struct ProcessLimits {
  double cpu_seconds = 0;
  std::int64_t memory_bytes = 0;  // of address space
  std::int64_t output_bytes = 0;  // beyond it the program is ended; without a limit the last 64 KiB are kept
};

struct ProcessResult {
  int status;          // exit status; 127 where the program does not exist, 128 + n where signal n ended it
  std::string output;  // stdout and stderr together
};

// `arguments[0]` is looked up in PATH. Messages are in English (LC_ALL=C). The program reads `input` as its standard
// input. Throws Error when no process can be made.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                          std::string_view input = {}, const ProcessLimits& limits = {});

}  // namespace molen::data
