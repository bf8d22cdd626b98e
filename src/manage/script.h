// Runs the script of a cap: a program with an environment of its own, and never a text for a shell.
#pragma once

#include <optional>
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

// The environment of a script, beside PATH.
using ScriptVariables = std::vector<std::pair<std::string, std::string>>;

// A script that runs beside its owner. It has no arguments, PATH and the variables, a process group of its own and no
// standard input; its output goes to this process's standard error. Not thread-safe.
class RunningScript {
 public:
  // Starts it.
  RunningScript(const Script& script, const ScriptVariables& variables);
  // Kills it, and what is left in its group.
  ~RunningScript();
  RunningScript(const RunningScript&) = delete;
  RunningScript& operator=(const RunningScript&) = delete;

  // Returns how it ended; nothing while it runs. Does not wait. After the time limit, it kills the script and what is
  // left in its group.
  std::optional<ScriptResult> look();

 private:
  int end();
  const Seconds limit_, until_;
  int pid_;  // of the script and of its group; -errno where it could not be started, 0 once it has ended
  std::optional<ScriptResult> result_;
};

}  // namespace molen::manage
