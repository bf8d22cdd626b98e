#include "ledger/least_squares.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace molen::ledger {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

double Whitening::apply(Row& row, double span_s) {
  const double own = span_s / mean_span_s_ + 2.0 * ratio_;
  double variance = own;
  if (variance_ > 0.0) {
    row += (ratio_ / variance_) * innovation_;
    variance -= ratio_ * ratio_ / variance_;
  }
  variance_ = variance;
  innovation_ = row;
  row /= std::sqrt(variance);
  return variance;
}

Moments::Moments(int columns)
    : sums_(MatrixXd::Zero(columns + 1, columns + 1)), meat_(MatrixXd::Zero(columns, columns)) {}

void Moments::add(const Row& row, const VectorXd& coefficients) {
  MOLEN_CHECK(row.size() == columns() + 1, "a row of {} numbers for {} columns", row.size(), columns());
  sums_.noalias() += row * row.transpose();
  const VectorXd score = (row[columns()] - row.head(columns()).dot(coefficients)) * row.head(columns());
  meat_.noalias() += score * score.transpose();
  for (std::size_t back = 0; back < scores_.size(); ++back) {
    // Bartlett's weights keep the sum positive semidefinite.
    const double weight = 1.0 - static_cast<double>(back + 1) / (kCorrelated + 1);
    const MatrixXd product = weight * score * scores_[back].transpose();
    meat_ += product + product.transpose();
  }
  scores_.push_front(score);
  if (scores_.size() > kCorrelated) scores_.pop_back();
  rows_ += 1;
}

namespace {

std::vector<Index> where(const std::vector<bool>& set) {
  std::vector<Index> at;
  for (std::size_t i = 0; i < set.size(); ++i)
    if (set[i]) at.push_back(static_cast<Index>(i));
  return at;
}

// The lengths of the columns; 1 for a column of zeros.
VectorXd lengths_of(const MatrixXd& products) {
  VectorXd lengths = products.diagonal().array().max(0.0).sqrt();
  return (lengths.array() > 0.0).select(lengths, 1.0);
}

}  // namespace

MatrixXd Moments::covariance(const std::vector<bool>& used) const {
  const std::vector<Index> at = where(used);
  MatrixXd covariance = MatrixXd::Zero(columns(), columns());
  if (at.empty()) return covariance;
  const auto n = static_cast<double>(at.size());
  MOLEN_CHECK(rows_ > n, "{} rows for {} coefficients", rows_, n);
  const VectorXd scale = lengths_of(products())(at).cwiseInverse();
  const MatrixXd scaled = scale.asDiagonal() * MatrixXd(products()(at, at)) * scale.asDiagonal();
  const MatrixXd inverse = scale.asDiagonal() *
                           MatrixXd(scaled.ldlt().solve(MatrixXd::Identity(scaled.rows(), scaled.cols()))) *
                           scale.asDiagonal();
  const MatrixXd of_used = (rows_ / (rows_ - n)) * inverse * MatrixXd(meat_(at, at)) * inverse;
  covariance(at, at) = of_used;
  return covariance;
}

namespace {

// The share of a scaled column's square that other columns must leave for it to be used; rounding leaves some 1e-15.
constexpr double kIndependent = 1e-10;

struct ActiveSet {
  const MatrixXd& products;  // of scaled columns
  const VectorXd& with_value;
  const std::vector<bool>& free;
  std::vector<bool> used;
  VectorXd values;

  VectorXd solution() const {
    const std::vector<Index> at = where(used);
    VectorXd all = VectorXd::Zero(values.size());
    if (at.empty()) return all;
    const VectorXd solved = MatrixXd(products(at, at)).ldlt().solve(VectorXd(with_value(at)));
    all(at) = solved;
    return all;
  }
  bool independent(Index column) const {
    const std::vector<Index> at = where(used);
    if (at.empty()) return products(column, column) > kIndependent;
    const VectorXd shared = products.col(column)(at);
    return products(column, column) - shared.dot(VectorXd(MatrixXd(products(at, at)).ldlt().solve(shared))) >
           kIndependent;
  }
  // Moves to the solution of the used columns, and leaves out those that reach 0 on the way.
  void settle() {
    for (;;) {
      const VectorXd target = solution();
      double step = 1.0;
      Index leaves = -1;
      for (Index i = 0; i < values.size(); ++i) {
        const auto u = static_cast<std::size_t>(i);
        if (!used[u] || free[u] || target[i] > 0.0) continue;
        const double until = values[i] > target[i] ? values[i] / (values[i] - target[i]) : 0.0;
        if (leaves < 0 || until < step) step = until, leaves = i;
      }
      values += step * (target - values);
      if (leaves < 0) return;
      values[leaves] = 0.0;
      used[static_cast<std::size_t>(leaves)] = false;
    }
  }
};

}  // namespace

Coefficients nonnegative_least_squares(const MatrixXd& products, const VectorXd& with_value,
                                       const std::vector<bool>& free, const std::vector<bool>& excluded) {
  const Index n = products.rows();
  const VectorXd scale = lengths_of(products).cwiseInverse();
  const MatrixXd scaled = scale.asDiagonal() * products * scale.asDiagonal();
  const VectorXd value = scale.cwiseProduct(with_value);
  ActiveSet set{scaled, value, free, std::vector<bool>(static_cast<std::size_t>(n), false), VectorXd::Zero(n)};
  std::vector<bool> barred = excluded;
  for (Index i = 0; i < n; ++i) {
    const auto u = static_cast<std::size_t>(i);
    if (free[u] && !barred[u] && set.independent(i)) set.used[u] = true;
  }
  set.settle();
  const double least = 1e-12 * value.cwiseAbs().maxCoeff();
  // Each pass adds a column or bars one. The bound holds where rounding would let two columns take turns.
  for (Index pass = 0; pass < 10 * n; ++pass) {
    const VectorXd gradient = value - scaled * set.values;
    Index best = -1;
    for (Index i = 0; i < n; ++i) {
      const auto u = static_cast<std::size_t>(i);
      if (!set.used[u] && !barred[u] && !free[u] && gradient[i] > least && (best < 0 || gradient[i] > gradient[best]))
        best = i;
    }
    if (best < 0) break;
    const auto u = static_cast<std::size_t>(best);
    if (!set.independent(best)) {
      barred[u] = true;
      continue;
    }
    set.used[u] = true;
    set.settle();
    if (!set.used[u]) barred[u] = true;  // only rounding made its gradient positive
  }
  return {scale.cwiseProduct(set.values), set.used};
}

namespace {

int root_of(std::vector<int>& parent, int i) {
  while (parent[static_cast<std::size_t>(i)] != i) i = parent[static_cast<std::size_t>(i)];
  return i;
}

// The share of each coefficient's variance that comes from the directions before `strong`. Eigenvalues rise.
VectorXd weak_shares(const VectorXd& eigenvalues, const MatrixXd& directions, Index strong) {
  const double floor = 1e-15 * eigenvalues[eigenvalues.size() - 1];
  const MatrixXd parts =
      directions.array().square().matrix() * eigenvalues.array().max(floor).inverse().matrix().asDiagonal();
  return parts.leftCols(strong).rowwise().sum().cwiseQuotient(parts.rowwise().sum());
}

}  // namespace

std::vector<std::vector<int>> collinear_sets(const MatrixXd& products) {
  std::vector<int> present;  // columns of zeros are no regressors
  for (Index i = 0; i < products.rows(); ++i)
    if (products(i, i) > 0.0) present.push_back(static_cast<int>(i));
  if (present.size() < 2) return {};
  const MatrixXd kept = products(present, present);
  const VectorXd scale = lengths_of(kept).cwiseInverse();
  const Eigen::SelfAdjointEigenSolver<MatrixXd> solver(scale.asDiagonal() * kept * scale.asDiagonal());
  const VectorXd& eigenvalues = solver.eigenvalues();
  const Index n = eigenvalues.size();
  Index weak = 0;
  while (weak < n && eigenvalues[weak] < eigenvalues[n - 1] / (kWeakIndex * kWeakIndex)) ++weak;
  if (weak == 0) return {};
  const MatrixXd directions = solver.eigenvectors().leftCols(weak);
  const MatrixXd onto = directions * directions.transpose();  // the same for any basis of the weak directions
  const VectorXd shares = weak_shares(eigenvalues, solver.eigenvectors(), weak);
  std::vector<int> parent(static_cast<std::size_t>(n));
  std::iota(parent.begin(), parent.end(), 0);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < i; ++j)
      if (shares[i] > 0.5 && shares[j] > 0.5 && std::abs(onto(i, j)) > 0.1 * std::sqrt(onto(i, i) * onto(j, j)))
        parent[static_cast<std::size_t>(root_of(parent, i))] = root_of(parent, j);
  std::vector<std::vector<int>> sets(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i)
    sets[static_cast<std::size_t>(root_of(parent, i))].push_back(present[static_cast<std::size_t>(i)]);
  std::erase_if(sets, [](const std::vector<int>& set) { return set.size() < 2; });
  return sets;
}

}  // namespace molen::ledger
