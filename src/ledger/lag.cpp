#include "ledger/lag.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace molen::ledger {

using Eigen::VectorXd;

namespace {

constexpr int kScanSteps = 20;
constexpr double kScanStep =
    kMostLag / kScanSteps;  // seconds; phases that alternate faster than this cannot be found by a scan
// The least residual must be less likely than this to come from noise at a lag that does not matter: the 0.999 quantile
// of the chi-squared distribution of one degree of freedom.
constexpr double kLeastEvidence = 10.83;

struct FirstChanges {
  const std::vector<Change>& changes;
  const Activity& activity;
  double joules_per_tick;
  double mean_span_s = 0.0;

  std::vector<Row> rows(double lag_s) const {
    std::vector<Row> rows;
    rows.reserve(changes.size());
    for (const Change& change : changes) rows.push_back(phase_row(change, activity, lag_s, joules_per_tick));
    return rows;
  }
  bool follows(std::size_t i) const { return i > 0 && changes[i].from->latest_s == changes[i - 1].to.latest_s; }
};

struct Fit {
  Coefficients coefficients;
  double squares = 0.0, log_variances = 0.0;
  double log_determinant = 0.0;  // of the products of the used columns
};

// Fits rows as the covariance of their errors by `ratio` asks for.
Fit fit_of(const FirstChanges& first, const std::vector<Row>& rows, double ratio) {
  const int columns = static_cast<int>(rows.front().size()) - 1;
  Whitening whitening(ratio, first.mean_span_s);
  Eigen::MatrixXd sums = Eigen::MatrixXd::Zero(columns + 1, columns + 1);
  Fit fit;
  Row row;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!first.follows(i)) whitening.restart();
    row = rows[i];
    fit.log_variances += std::log(whitening.apply(row, span_of(first.changes[i])));
    sums.noalias() += row * row.transpose();
  }
  const Eigen::MatrixXd products = sums.topLeftCorner(columns, columns);
  const std::vector<bool> none(static_cast<std::size_t>(columns), false);
  fit.coefficients = nonnegative_least_squares(products, sums.topRightCorner(columns, 1), none, none);
  VectorXd residual(columns + 1);
  residual << -fit.coefficients.values, 1.0;
  fit.squares = std::max(0.0, residual.dot(sums * residual));
  std::vector<Eigen::Index> used;
  for (int i = 0; i < columns; ++i)
    if (fit.coefficients.used[static_cast<std::size_t>(i)]) used.push_back(i);
  if (!used.empty()) {
    const auto factor = Eigen::MatrixXd(products(used, used)).ldlt();
    fit.log_determinant = factor.vectorD().array().max(std::numeric_limits<double>::min()).log().sum();
  }
  return fit;
}

// The ratio at which the residuals are likeliest: the restricted likelihood of Patterson and Thompson, Biometrika 58,
// 1971, with s^2 at its estimate.
double noise_ratio(const FirstChanges& first, double lag_s) {
  const std::vector<Row> rows = first.rows(lag_s);
  double best = -std::numeric_limits<double>::infinity(), best_ratio = 0.0;
  for (int power = -9; power <= 8; ++power) {
    const double ratio = power == -9 ? 0.0 : std::exp2(power);
    const Fit fit = fit_of(first, rows, ratio);
    const double freedom = static_cast<double>(rows.size()) - static_cast<double>(fit.coefficients.values.size());
    const double likelihood = -0.5 * (fit.log_variances + fit.log_determinant +
                                      freedom * std::log(fit.squares + std::numeric_limits<double>::min()));
    if (likelihood > best) best = likelihood, best_ratio = ratio;
  }
  return best_ratio;
}

// The standard error of the lag: that of the coefficient of its slope beside the phases (Gauss and Newton).
double lag_error(const FirstChanges& first, double lag_s, double ratio, const VectorXd& watts) {
  const std::vector<Row> rows = first.rows(lag_s);
  const auto columns = watts.size();
  Whitening whitening(ratio, first.mean_span_s);
  Moments moments(static_cast<int>(columns) + 1);
  VectorXd near(columns + 1);
  near << watts, 0.0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!first.follows(i)) whitening.restart(), moments.restart();
    Row row(columns + 2);
    row << rows[i].head(columns), slope_by_lag(first.changes[i], first.activity, lag_s, watts), rows[i][columns];
    whitening.apply(row, span_of(first.changes[i]));
    moments.add(row, near);
  }
  std::vector<bool> free(static_cast<std::size_t>(columns) + 1, false);
  free.back() = true;
  const std::vector<bool> none(free.size(), false);
  const Coefficients fit = nonnegative_least_squares(moments.products(), moments.with_value(), free, none);
  if (!fit.used.back()) return std::numeric_limits<double>::infinity();
  return std::sqrt(moments.covariance(fit.used)(columns, columns));
}

// Narrows the bounds of a minimum by the golden section (Kiefer, Proceedings of the AMS 4, 1953).
template <class Function>
double least_within(double low, double high, double width, const Function& f) {
  const double golden = 0.5 * (std::sqrt(5.0) - 1.0);
  double a = high - golden * (high - low), b = low + golden * (high - low);
  double at_a = f(a), at_b = f(b);
  while (high - low > width) {
    if (at_a < at_b) {
      high = b, b = a, at_b = at_a;
      a = high - golden * (high - low), at_a = f(a);
    } else {
      low = a, a = b, at_a = at_b;
      b = low + golden * (high - low), at_b = f(b);
    }
  }
  return 0.5 * (low + high);
}

}  // namespace

Result<Lag> estimate_lag(const std::vector<Change>& changes, const Activity& activity, double joules_per_tick) {
  const std::size_t least = 4 * (static_cast<std::size_t>(activity.phases()) + 2);
  if (changes.size() < least)
    return Failure{fmt::format("{} changes of the counter; the lag needs {} at least", changes.size(), least)};
  FirstChanges first{changes, activity, joules_per_tick};
  for (const Change& change : changes) first.mean_span_s += span_of(change) / static_cast<double>(changes.size());
  const auto squares = [&](double lag_s, double ratio) { return fit_of(first, first.rows(lag_s), ratio).squares; };

  double best_s = 0.0, best = std::numeric_limits<double>::infinity(), worst = 0.0;
  for (int i = 0; i <= kScanSteps; ++i) {
    const double lag_s = kMostLag * i / kScanSteps;
    const double at = squares(lag_s, 0.0);
    if (at < best) best = at, best_s = lag_s;
    worst = std::max(worst, at);
  }
  const double evidence = static_cast<double>(changes.size()) * std::log((worst + std::numeric_limits<double>::min()) /
                                                                         (best + std::numeric_limits<double>::min()));
  if (evidence < kLeastEvidence)
    return Failure{fmt::format("the energy of {} changes fits the phases as well at any lag up to {} s", changes.size(),
                               kMostLag)};
  if (best_s > kMostLag - 0.5 * kScanStep)
    return Failure{fmt::format("the energy fits the phases best at a lag of {} s or more", kMostLag)};
  const double ratio = noise_ratio(first, best_s);
  Lag lag;
  lag.noise_ratio = ratio;
  lag.seconds = least_within(best_s - kScanStep, best_s + kScanStep, 1e-4, [&](double s) { return squares(s, ratio); });
  lag.watts = fit_of(first, first.rows(lag.seconds), ratio).coefficients.values;
  lag.standard_error_s = lag_error(first, lag.seconds, ratio, lag.watts);
  if (!(lag.standard_error_s < kMostLagError))
    return Failure{fmt::format("the lag is {:.3f} s with a standard error of {:.3f} s, above {} s", lag.seconds,
                               lag.standard_error_s, kMostLagError)};
  return lag;
}

}  // namespace molen::ledger
