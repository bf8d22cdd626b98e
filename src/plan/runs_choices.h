// Fills the blanks of a run whose best values depend on its prediction.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "plan/runs.h"

namespace molen::plan {

// Predicts a run without blanks.
using Predict = std::function<RunPrediction(const Run&)>;

// Returns the prediction of the best way to fill the blanks of a run: the fastest of those that fit, each with the
// least recomputation with which it fits. Its `chosen` says how the blanks were filled. Throws UsageError, which names
// the column, if there is no way.
RunPrediction predict_best(const Run& run, const Predict& predict);

// Returns why a step is too large to simulate, with what may help.
std::optional<std::string> too_large(const Run& run);

// Whether the run has blanks that predict_best would fill.
bool has_choices(const Run& run);
// Returns the run with the values of `chosen` in place of its blanks.
Run filled_with(const Run& run, const std::map<std::string, std::string>& chosen);

}  // namespace molen::plan
