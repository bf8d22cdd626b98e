// Progress of a command that takes more than seconds: one line that is rewritten on a terminal, or one line per minute
// in a log.
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "store/console.h"

namespace molen::store {

// The output files for progress. As in console.h, no environment is read here.
struct ProgressPlace {
  std::FILE* live = nullptr;  // a terminal, on which a line is rewritten; nullptr: none
  std::FILE* log = stderr;    // output when there is no terminal, and notes
  std::FILE* results = stdout;
  int columns = kTerminalColumns;
};

class Progress {
 public:
  // `verb` leads each line: "verify". `clock`: seconds from any start.
  Progress(std::string verb, const ProgressPlace& place, std::function<double()> clock);

  // Says that `share` (0 to 1) of `stage` is done, and names the next item (`doing`). Cheap, so it may be called often.
  // The remaining time follows from what this process did in the stage, because part of it may have been done before.
  void at(std::string_view stage, double share, std::string_view doing);
  // Write a line of the command's results, or a note beside them. Both stay.
  void result(const std::string& line);
  void note(const std::string& line);
  // Ends the line in place, so that other output begins on its own line.
  void finish() { live_.finish(); }

 private:
  void put(std::FILE* file, const std::string& line);

  std::string verb_, stage_;
  ProgressPlace place_;
  std::function<double()> clock_;
  LiveLine live_;
  double begun_ = 0.0, first_share_ = 0.0;  // of the stage
  std::optional<double> said_;              // time of the last output
};

// Returns "verify layouts [####------------] 25% | FULL_SHARD, tp 2 | eta 01:30", at most `columns` columns: the
// current item is shortened to fit.
std::string progress_text(std::string_view verb, std::string_view stage, double share, std::string_view doing,
                          std::optional<double> eta_s, bool bar, int columns);

}  // namespace molen::store
