// How far a command is that takes more than seconds: one line that is rewritten on a terminal, a line a minute in a
// log.
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "store/console.h"

namespace molen::store {

// Where to say it. As in console.h no environment is read here.
struct ProgressPlace {
  std::FILE* live = nullptr;  // a terminal, on which a line is rewritten; nullptr: there is none
  std::FILE* log = stderr;    // what is said where there is no terminal, and notes
  std::FILE* results = stdout;
  int columns = kTerminalColumns;
};

class Progress {
 public:
  // `verb` leads each line: "verify". `clock`: seconds from any start.
  Progress(std::string verb, const ProgressPlace& place, std::function<double()> clock);

  // `share` of `stage` is done, 0 to 1; `doing`: what is next, for people. Cheap, to be called often. The time that is
  // left follows from the share done since the stage began, which may have begun with some of it done.
  void at(std::string_view stage, double share, std::string_view doing);
  // A line of the command's results; one beside them. Both stay.
  void result(const std::string& line);
  void note(const std::string& line);
  // Ends the line in place, so that what others print begins on a line of its own.
  void finish() { live_.finish(); }

 private:
  void put(std::FILE* file, const std::string& line);

  std::string verb_, stage_;
  ProgressPlace place_;
  std::function<double()> clock_;
  LiveLine live_;
  double begun_ = 0.0, first_share_ = 0.0;  // of the stage
  std::optional<double> said_;              // when, last
};

// "verify layouts [####------------] 25% | FULL_SHARD, tp 2 | eta 01:30", at most so many columns: what is being done
// is cut.
std::string progress_text(std::string_view verb, std::string_view stage, double share, std::string_view doing,
                          std::optional<double> eta_s, bool bar, int columns);

}  // namespace molen::store
