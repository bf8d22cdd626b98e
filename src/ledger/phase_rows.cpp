#include "ledger/phase_rows.h"

#include <cmath>

namespace molen::ledger {

namespace {

double middle_of(const Edge& edge) {
  return 0.5 * (edge.earliest_s + edge.latest_s);
}

double seconds_until(const Activity& activity, int phase, const Edge& edge, double lag_s) {
  const double middle_s = middle_of(edge) - lag_s;
  const double node_s = (edge.latest_s - edge.earliest_s) / std::sqrt(12.0);
  return 0.5 * (activity.seconds(phase, middle_s - node_s) + activity.seconds(phase, middle_s + node_s));
}

}  // namespace

double span_of(const Change& change) {
  return middle_of(change.to) - middle_of(*change.from);
}

Row phase_row(const Change& change, const Activity& activity, double lag_s, double joules_per_tick) {
  const int phases = activity.phases();
  Row row(phases + 2);
  row[0] = span_of(change);
  for (int p = 0; p < phases; ++p)
    row[1 + p] = seconds_until(activity, p, change.to, lag_s) - seconds_until(activity, p, *change.from, lag_s);
  row[phases + 1] = static_cast<double>(change.ticks) * joules_per_tick;
  return row;
}

double slope_by_lag(const Change& change, const Activity& activity, double lag_s, const Eigen::VectorXd& watts) {
  const auto modelled = [&](double lag) {
    const Row row = phase_row(change, activity, lag, 0.0);
    return row.head(watts.size()).dot(watts);
  };
  return (modelled(lag_s + 0.5 * kLagStep) - modelled(lag_s - 0.5 * kLagStep)) / kLagStep;
}

}  // namespace molen::ledger
