// The time by which a counter shows energy late, and the kind of its noise, from the first changes of a run.
#pragma once

#include <vector>

#include "base/result.h"
#include "ledger/phase_rows.h"

namespace molen::ledger {

struct Lag {
  double seconds = 0, standard_error_s = 0;
  double noise_ratio = 0;  // Whitening's
  Eigen::VectorXd watts;   // of each column of phase_row
};

inline constexpr double kMostLag = 0.4;        // seconds
inline constexpr double kMostLagError = 0.05;  // seconds: a larger standard error is refused

// Returns the lag from 0 to kMostLag at which least squares leave the least residual. Fails, with the reason, when the
// residual depends too little on the lag: the power does not change with the phases, or the noise hides that it does.
// Also fails when the least residual is at kMostLag. All changes must have an earlier update, and phases must be
// complete from kMostLag + kLagMargin before the first update to kLagMargin after the last one.
Result<Lag> estimate_lag(const std::vector<Change>& changes, const Activity& activity, double joules_per_tick);
inline constexpr double kLagMargin = 0.05;  // seconds

}  // namespace molen::ledger
