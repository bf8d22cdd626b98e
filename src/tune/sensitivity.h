// How much each dimension of a search matters, by the models of its trials.
#pragma once

#include <functional>
#include <vector>

#include "tune/optimizer.h"

namespace molen::tune {

// The share of the variance of a model's mean over the space that one dimension explains alone, its first-order index
// (Sobol 1993; Saltelli et al., Computer Physics Communications 181, 2010, eq. 1):
//   S_d = Var over values v of d ( E over the other dimensions of f(x with x_d = v) ) / Var over the space of f(x)
// All points of the space weigh the same, also those that fail. Interactions are what is left to 1.
struct Sensitivity {
  std::vector<double> value;    // by dimension: of the logarithm of the objective
  std::vector<double> load;     // by dimension: of the logarithm of the memory; empty if no trial had too much
  std::vector<double> success;  // by dimension: of the label of success; empty if nothing failed for another reason
};

// Spaces of at most 20000 points are summed in whole. Of larger ones, 1024 random points are, and of each dimension at
// most 16 values at equal distances in their order.
Sensitivity sensitivity_of(const Models& models, const Space& space, std::uint64_t seed);

// Returns the indices of any function of points, such as the mean of a model.
std::vector<double> first_order_indices(
    const Space& space, std::uint64_t seed,
    const std::function<Eigen::VectorXd(const std::vector<Point>& points)>& function);

}  // namespace molen::tune
