// Runs another program, without a shell.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace molen::data {

struct ProcessResult {
  int status;          // exit status; 127 where the program does not exist, 128 + n where signal n ended it
  std::string output;  // stdout and stderr together, the last 64 KiB
};

// `arguments[0]` is looked up in PATH. Messages are in English (LC_ALL=C). Throws Error when no process can be made.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& folder);

}  // namespace molen::data
