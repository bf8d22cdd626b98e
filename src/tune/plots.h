// The plots of a search, as SVG.
#pragma once

#include <string>
#include <vector>

#include "tune/search.h"
#include "tune/sensitivity.h"

namespace molen::tune {

// Returns the figure of each trial in their order, failures at the bottom by their kind, and the best so far as a line.
std::string trajectory_svg(const std::vector<Trial>& trials, Objective objective, const std::string& title,
                           double noise_scale = 0.0);
// Returns the indices as bars, the dimension with the largest first.
std::string sensitivity_svg(const Sensitivity& sensitivity, const Space& space, Objective objective,
                            const std::string& title);

}  // namespace molen::tune
