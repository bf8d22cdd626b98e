// The page's sections. Each function returns HTML in which all text from the run is escaped.
#pragma once

#include <string>
#include <vector>

#include "serve/chart.h"
#include "serve/facts.h"
#include "serve/run_data.h"

namespace molen::serve {

// The charts of the page in the order of their index, as the script reads them.
class Charts {
 public:
  std::string add(const Chart& chart);  // returns the figure
  std::string to_script() const;        // a JSON array

 private:
  std::vector<std::string> charts_;
};

std::string head_section(const RunData& run);  // name, model, layout, host, tiles, notices
std::string course_section(const RunData& run, Charts& charts);
std::string energy_section(const RunData& run, Charts& charts);
// Returns the joules of each phase of the last attempt, scope by scope; "" when the run has no such account.
std::string phases_of_energy(const RunData& run);
// Returns the joules of each phase over all attempts; "" where there was one attempt, whose table says more.
std::string phases_of_attempts(const RunData& run);
// Returns a table of what follows from the run's energy at its site; a sentence where no site is named; "" where no
// energy was measured.
std::string footprint_table(const RunData& run);
// Returns what the energy policy of the last attempt chose and what it saved, with intervals; "" where none was asked
// for.
std::string policy_table(const RunData& run);
// Returns the forecast of the energy at the run's end, and what its budgets have come to; "" without either.
std::string budget_section(const RunData& run);
// Returns the joules of each host beside their median, with the outliers (base/outliers.h) and the imbalance, of the
// last attempt on several hosts; "" where there is none.
std::string hosts_table(const RunData& run);
// Returns the same for programs; null where there is none.
Json hosts_json(const RunData& run);
std::string predicted_section(const RunData& run);
std::string events_section(const RunData& run);
std::string config_section(const RunData& run);

// Joules by scope over all steps that have them, and their source ("counter", "power", "model").
struct EnergyTotal {
  double joules = 0;
  std::int64_t steps = 0;
  std::string source;
};
std::map<std::string, EnergyTotal> energy_totals(const RunData& run);
// Returns what J/token leaves out, as " (gpu only)", or "" when it leaves out nothing or does not say.
std::string energy_left_out(const RunData& run);

}  // namespace molen::serve
