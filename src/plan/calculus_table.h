// The compute calculus as tables, which are printed for a terminal or as Markdown, as JSON, and as a plot.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "plan/calculus.h"

namespace molen::plan {

// A table with a title above it and notes below it. The first column is left-aligned, the others are right-aligned
// unless `prose` is set.
struct CalculusTable {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> notes = {};
  bool prose = false;
};
// Returns all tables: the assumptions with their sources, compute, costs, memory, loss, batches, days.
std::vector<CalculusTable> tables_of(const CalculusReport& report);
std::string to_text(const std::vector<CalculusTable>& tables);
std::string to_markdown(const std::vector<CalculusTable>& tables);

// Returns the report with units in the keys; an estimate is {"value", "low", "high"}.
Json to_json(const CalculusReport& report);

// Returns the plot of tokens against days as SVG, with one line for each row of the days table.
std::string to_svg(const CalculusReport& report);

}  // namespace molen::plan
