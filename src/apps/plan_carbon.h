// `molen plan --carbon FILE`: when the best layout's run should start so that its electricity emits least.
#pragma once

#include <optional>
#include <string>

#include "apps/whole_run.h"
#include "base/json.h"
#include "plan/carbon_window.h"

namespace molen::apps {

struct PlanCarbonArguments {
  std::string forecast;  // file; empty: not asked for
  std::optional<std::string> from, deadline;
};

// The windows of a run, each with its emissions.
struct CarbonPlan {
  plan::CarbonWindows windows;
  plan::Estimate duration;  // s
  plan::Estimate site;      // J
  std::string forecast;     // the file
  std::optional<double> deadline_s;
  // The emissions in a window: kg CO2e.
  plan::Estimate emissions(const plan::CarbonWindow& window) const;
};

// Reads forecast and times before the search, which may take minutes, and refuses them if they are wrong.
class CarbonQuestion {
 public:
  explicit CarbonQuestion(const PlanCarbonArguments& arguments);
  // The run must end by the deadline with a probability of 90 %: the windows are as long as the upper end of the 80 %
  // interval of its time. Throws UsageError that names the option if no run is predicted or none fits.
  CarbonPlan answer(const WholeRun& run) const;

 private:
  cluster::IntensitySeries forecast_;
  double earliest_s_;
  std::optional<double> deadline_s_;
};

Json carbon_json(const CarbonPlan& plan);
void print_carbon(const CarbonPlan& plan);

}  // namespace molen::apps
