// Runs the script of a cap: a program with an environment of its own, and never a text for a shell.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "manage/caps_file.h"

namespace molen::manage {

struct ScriptResult {
  int status = 0;    // that it ended with; 128 and the number of a signal that ended it; 127 if it could not be started
  std::string text;  // "ended with status 0", "was killed after 60 s", "could not be started: ..."
  bool ok() const { return status == 0; }
};

// Runs it without arguments, with PATH and these variables, in a process group of its own, with standard input closed
// to it; its output goes to this process's standard error. After the time limit, it and what is left in its group are
// killed.
ScriptResult run_script(const Script& script, const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace molen::manage
