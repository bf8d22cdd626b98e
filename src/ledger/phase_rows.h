// The rows of the regression of energy on the seconds of phases.
#pragma once

#include "ledger/activity.h"
#include "ledger/counter_changes.h"
#include "ledger/least_squares.h"

namespace molen::ledger {

// Returns the time that lies between two updates, by the middles of their bounds.
double span_of(const Change& change);

// Returns for a change with an earlier update: the seconds between its updates (the column of the base), the
// rank-seconds of each phase between these, and the joules. A counter shows its energy `lag_s` late, so the phases are
// those of that time before the updates. An update is as likely at one time within its bounds as at another, so the
// seconds of a phase until then are the mean over the bounds (by Gauss's rule with two points). The error of a row is
// then independent of its columns, and does not draw coefficients to 0 (Berkson, Journal of the American Statistical
// Association 45, 1950).
Row phase_row(const Change& change, const Activity& activity, double lag_s, double joules_per_tick);

// Returns how the modelled joules of a change alter with the lag, in watts: the difference of two models at lags that
// are kLagStep apart, because the power at a single time jumps. `watts` has a number for each column of phase_row.
double slope_by_lag(const Change& change, const Activity& activity, double lag_s, const Eigen::VectorXd& watts);
inline constexpr double kLagStep = 0.005;  // seconds

}  // namespace molen::ledger
