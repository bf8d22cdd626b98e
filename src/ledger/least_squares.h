// Least squares by accumulated normal equations, so that memory does not grow with the number of rows.
#pragma once

#include <Eigen/Dense>
#include <deque>
#include <vector>

namespace molen::ledger {

// A row of a regression: its columns, then the value.
using Row = Eigen::VectorXd;

// Makes the errors of rows uncorrelated and of one variance. A row is the difference of two successive readings of a
// counter. Its error has a part that grows with the time between them (noise of the power) and the difference of the
// errors of the two readings (whole ticks, and the time of an update that is known within bounds only):
//   e_k = w_k + v_k - v_(k-1),   var w_k = s^2 span_k / mean_span,   var v_k = ratio s^2
// So successive rows have the covariance -ratio s^2: a moving average of order one. The Cholesky factor of that
// covariance has two diagonals, and its inverse is a recursion over the rows (the innovations algorithm: Brockwell and
// Davis, Time Series: Theory and Methods, 1991, section 5.2). Least squares over the rows that it returns are
// generalised least squares over the rows that it takes.
class Whitening {
 public:
  Whitening(double ratio, double mean_span_s) : ratio_(ratio), mean_span_s_(mean_span_s) {}
  // Replaces a row by the whitened one. Returns the variance of its innovation, in units of s^2.
  double apply(Row& row, double span_s);
  // The next row shares no reading with the last one.
  void restart() { variance_ = 0.0; }

 private:
  double ratio_, mean_span_s_;
  double variance_ = 0.0;  // of the last innovation; 0: there is none
  Row innovation_;
};

// Sums over whitened rows.
class Moments {
 public:
  explicit Moments(int columns);

  // Adds a row whose residual is taken at `coefficients`, which should be near those that the rows have in the end.
  void add(const Row& row, const Eigen::VectorXd& coefficients);
  // The scores of the next row are not correlated with those of the last ones.
  void restart() { scores_.clear(); }

  int columns() const { return static_cast<int>(meat_.rows()); }
  double rows() const { return rows_; }
  Eigen::MatrixXd products() const { return sums_.topLeftCorner(columns(), columns()); }  // X'X
  Eigen::VectorXd with_value() const { return sums_.topRightCorner(columns(), 1); }       // X'y

  // Returns the covariance of the coefficients of the columns in `used`; 0 for the others. The variance of a row is
  // taken from its own residual, so it may differ from row to row, and neighbouring rows may be correlated a little
  // (Newey and West, Econometrica 55, 1987, with kCorrelated lags; without lags, White, Econometrica 48, 1980).
  Eigen::MatrixXd covariance(const std::vector<bool>& used) const;
  static constexpr int kCorrelated = 2;

 private:
  Eigen::MatrixXd sums_;  // of (x, y)(x, y)'
  Eigen::MatrixXd meat_;  // of the products of scores
  std::deque<Eigen::VectorXd> scores_;
  double rows_ = 0;
};

struct Coefficients {
  Eigen::VectorXd values;
  std::vector<bool> used;  // false: the coefficient is 0, by its bound or because its column depends on used ones
};

// Minimises b'Gb - 2 b'g over coefficients b of which those not in `free` are not negative (Lawson and Hanson, Solving
// Least Squares Problems, 1974, algorithm NNLS, section 23.3, on the normal equations). `excluded` columns get 0.
Coefficients nonnegative_least_squares(const Eigen::MatrixXd& products, const Eigen::VectorXd& with_value,
                                       const std::vector<bool>& free, const std::vector<bool>& excluded);

// Returns the sets of columns whose coefficients cannot be told apart, each with two columns or more. A direction of
// the columns, scaled to one length, is weak when its condition index is above kWeakIndex; columns of which more than
// half the variance comes from weak directions are involved (Belsley, Kuh and Welsch, Regression Diagnostics, 1980,
// section 3.2). Involved columns belong to one set if a weak direction contains both.
std::vector<std::vector<int>> collinear_sets(const Eigen::MatrixXd& products);
inline constexpr double kWeakIndex = 30.0;

}  // namespace molen::ledger
