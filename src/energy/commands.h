// The output of `molen energy`: the meters of this machine with their reasons, and live readings. Text only; apps
// prints it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "energy/accountant.h"
#include "energy/power_model.h"

namespace molen::energy {

// Returns one line per meter (scope, meter, source, quantity read), then the unavailable meters and their reasons.
std::string list_text(const Meters& meters);
Json list_json(const Meters& meters);
// Return the parts whose power a model estimates, and those for which it has figures and cannot. `model`: null where
// meters read all parts.
std::string model_text(const PowerModel* model);
Json model_json(const PowerModel* model);

// Measures watts by scope between two calls. The first call covers the time since construction.
class LiveReading {
 public:
  explicit LiveReading(Meters meters);

  struct Line {
    double seconds = 0;  // time covered
    StepEnergy energy;
    std::map<std::string, std::string> conditions = {};  // of the scopes whose devices tell (Meter::condition)
  };
  Line next();
  StepEnergy since_start() { return accountant_.since_start(); }
  bool measures() const;  // at least one meter has readings
  const Meters& meters() const { return accountant_.meters(); }

 private:
  Accountant accountant_;
  double last_;
};

// Returns a text such as "cpu-package0 61.2 W  gpu0 -  total - (gpu0: the counter did not change in this time)".
std::string live_text(const LiveReading::Line& line);
Json live_json(const LiveReading::Line& line);
// Return what a model estimated in these seconds: "model: host ~450.0 W (300.0 to 600.0)".
std::string modelled_live_text(const Modelled& modelled, double seconds);
Json modelled_live_json(const Modelled& modelled, double seconds);

// The readings so far, as a table that a terminal shows anew after each: a row for each scope, and the sum.
class LiveTable {
 public:
  explicit LiveTable(const Meters& meters);

  void add(const LiveReading::Line& line);
  // Returns the table: watts since the last change of a counter, joules in all and their mean watts, or the reason why
  // the last reading is missing. The sum is that of the scopes that are summed, as far as all of them have readings. A
  // line has at most `columns` characters, and the table at most `lines`.
  std::string text(std::size_t columns, std::size_t lines) const;

 private:
  struct Row {
    double joules = 0.0, seconds = 0.0;  // of the readings that succeeded
    double waiting_s = 0.0;              // without a change of the counter, which its next change will cover
    std::optional<double> last_w;
    std::string note;       // the source, or the reason why the last reading is missing
    std::string condition;  // of the device
  };
  std::vector<std::string> lines_of(std::size_t columns) const;
  std::set<std::string> summed_;
  std::map<std::string, Row> rows_;
};

}  // namespace molen::energy
