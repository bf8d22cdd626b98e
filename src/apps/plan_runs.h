// molen plan --runs: predictions for each row of a table of training runs (docs/formats/runs.md).
#pragma once

#include <string>

namespace molen::apps {

struct PlanRunsArguments {
  std::string runs;            // the table
  std::string output;          // file for one JSON line per row, which is replaced; empty or "-": standard output
  std::string factors;         // JSON file of factors; empty: those that molen ships
  bool print_factors = false;  // prints the factors as JSON instead of predicting; `runs` is then not read
};

// Returns kOk when the file was processed, also if rows of it have errors, and kFailed if a row's error is a mistake of
// molen. Throws UsageError for a table or factors
// that cannot be read and for an output that is the table itself, and IoError when a line cannot be written.
int run_plan_runs(const PlanRunsArguments& arguments);

}  // namespace molen::apps
