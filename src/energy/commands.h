// The output of `molen energy`: the meters of this machine with their reasons, and live readings. Text only; apps
// prints it.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "energy/accountant.h"

namespace molen::energy {

// Returns one line per meter (scope, meter, source, quantity read), then the unavailable meters and their reasons.
std::string list_text(const Meters& meters);
Json list_json(const Meters& meters);

// Measures watts by scope between two calls. The first call covers the time since construction.
class LiveReading {
 public:
  explicit LiveReading(Meters meters);

  struct Line {
    double seconds = 0;  // time covered
    StepEnergy energy;
  };
  Line next();
  StepEnergy since_start() { return accountant_.since_start(); }
  bool measures() const;  // at least one meter has readings

 private:
  Accountant accountant_;
  double last_;
};

// Returns a text such as "cpu-package0 61.2 W  gpu0 -  total - (gpu0: the counter did not change in this time)".
std::string live_text(const LiveReading::Line& line);
Json live_json(const LiveReading::Line& line);

// The readings so far, as a table that a terminal shows anew after each: a row for each scope, and their total.
class LiveTable {
 public:
  void add(const LiveReading::Line& line);
  // Returns the table: watts of the last reading, their mean and their maximum, and joules; the reason in place of
  // watts that are missing. A line has at most `columns` characters.
  std::string text(std::size_t columns) const;

 private:
  struct Row {
    double joules = 0.0, seconds = 0.0, most_w = 0.0;  // of the readings that succeeded
    std::optional<double> last_w;
    std::string note;  // the source, or the reason why the last reading is missing
  };
  void add(const std::string& scope, const std::optional<double>& joules, double seconds, const std::string& note);
  std::map<std::string, Row> rows_;
};

}  // namespace molen::energy
