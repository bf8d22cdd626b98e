#include "ledger/least_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace molen::ledger {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kEps = std::numeric_limits<double>::epsilon();

MatrixXd normals(Index rows, Index columns, std::uint64_t seed) {
  MatrixXd x(rows, columns);
  for (Index i = 0; i < x.size(); ++i)
    x.data()[i] = normal_at(stream_key(seed, "normals"), static_cast<std::uint64_t>(i));
  return x;
}

TEST(Whitening, RowsTimesTheirCovarianceBecomeIndependent) {
  // With L L' the dense covariance of the errors, whitened rows are L^-1 times the rows.
  constexpr Index kRows = 30;
  const double ratio = 0.7;
  const MatrixXd rows = normals(kRows, 3, 1);
  VectorXd spans(kRows);
  for (Index k = 0; k < kRows; ++k) spans[k] = 0.1 * (1.0 + 0.5 * std::sin(static_cast<double>(k)));
  const double mean = 0.1;
  MatrixXd covariance = MatrixXd::Zero(kRows, kRows);
  for (Index k = 0; k < kRows; ++k) {
    covariance(k, k) = spans[k] / mean + 2 * ratio;
    if (k > 0) covariance(k, k - 1) = covariance(k - 1, k) = -ratio;
  }
  const MatrixXd expected = MatrixXd(covariance.llt().matrixL()).triangularView<Eigen::Lower>().solve(rows);
  Whitening whitening(ratio, mean);
  for (Index k = 0; k < kRows; ++k) {
    Row row = rows.row(k);
    whitening.apply(row, spans[k]);
    // Forward substitution of 30 rows of a well conditioned factor.
    EXPECT_LT((row - expected.row(k).transpose()).cwiseAbs().maxCoeff(), 1000 * kEps) << k;
  }
}

// The least squares over each set of used columns whose solution is feasible; the best one is the answer.
double best_by_enumeration(const MatrixXd& x, const VectorXd& y, bool last_is_free, VectorXd* best) {
  const Index n = x.cols();
  double least = std::numeric_limits<double>::infinity();
  for (unsigned set = 0; set < (1u << n); ++set) {
    std::vector<Index> used;
    for (Index i = 0; i < n; ++i)
      if ((set >> i) & 1u) used.push_back(i);
    VectorXd b = VectorXd::Zero(n);
    if (!used.empty()) {
      const VectorXd solved = MatrixXd(x(Eigen::all, used)).colPivHouseholderQr().solve(y);
      b(used) = solved;
    }
    bool feasible = true;
    for (Index i = 0; i < n; ++i) feasible = feasible && (b[i] >= 0.0 || (last_is_free && i == n - 1));
    const double squares = (y - x * b).squaredNorm();
    if (feasible && squares < least) least = squares, *best = b;
  }
  return least;
}

TEST(NonnegativeLeastSquares, FindsTheBestOfAllSetsOfColumns) {
  int bound = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const bool last_is_free = seed % 2 == 1;
    const MatrixXd x = normals(20, 5, 2 * seed);
    const VectorXd y = normals(20, 1, 2 * seed + 1);  // of no positive combination: about half of the bounds hold
    VectorXd best;
    best_by_enumeration(x, y, last_is_free, &best);
    std::vector<bool> free(5, false), none(5, false);
    free[4] = last_is_free;
    const Coefficients found = nonnegative_least_squares(x.transpose() * x, x.transpose() * y, free, none);
    // The condition number of 20 x 5 normal numbers is below 10, and the normal equations square it.
    EXPECT_LT((found.values - best).cwiseAbs().maxCoeff(), 1e4 * kEps) << seed;
    for (Index i = 0; i < 5; ++i) bound += best[i] == 0.0;
  }
  EXPECT_GT(bound, 50) << "the cases do not reach the bounds";
}

TEST(NonnegativeLeastSquares, LeavesOutExcludedAndDependentColumns) {
  MatrixXd x = normals(50, 4, 9).cwiseAbs();
  x.col(2) = 2.0 * x.col(0);
  VectorXd truth(4);
  truth << 3, 1, 0, 5;
  const VectorXd y = x * truth;
  const std::vector<bool> none(4, false);
  const Coefficients found = nonnegative_least_squares(x.transpose() * x, x.transpose() * y, none, none);
  EXPECT_NE(found.used[0], found.used[2]) << "one of two columns in proportion";
  EXPECT_NEAR(found.values[0] + 2 * found.values[2], 3.0, 1e5 * kEps);
  EXPECT_NEAR(found.values[3], 5.0, 1e5 * kEps);
  const Coefficients without =
      nonnegative_least_squares(x.transpose() * x, x.transpose() * y, none, {false, false, false, true});
  EXPECT_EQ(without.values[3], 0.0);
}

TEST(Moments, CovarianceOfEqualIndependentErrorsIsThatOfOrdinaryLeastSquares) {
  constexpr int kRows = 40'000;
  const MatrixXd x = normals(kRows, 3, 21);
  const MatrixXd noise = normals(kRows, 1, 22);
  VectorXd truth(3);
  truth << 1, 2, 3;
  Moments moments(3);
  for (Index k = 0; k < kRows; ++k) {
    Row row(4);
    row << x.row(k).transpose(), x.row(k).dot(truth) + 0.5 * noise(k, 0);
    moments.add(row, truth);
  }
  const std::vector<bool> all(3, true), none(3, false);
  const MatrixXd covariance = moments.covariance(all);
  const MatrixXd expected = 0.25 * (x.transpose() * x).inverse();
  // A variance from n products of normal numbers has a relative standard deviation of sqrt(8 / n) at most for each of
  // 1 + 2 kCorrelated sums of weight 1 or less; four of these.
  const double most = 4 * std::sqrt(8.0 / kRows) * (1 + 2 * Moments::kCorrelated);
  for (Index i = 0; i < 3; ++i) EXPECT_NEAR(covariance(i, i) / expected(i, i), 1.0, most);
  const Coefficients found = nonnegative_least_squares(moments.products(), moments.with_value(), none, none);
  for (Index i = 0; i < 3; ++i) EXPECT_LT(std::abs(found.values[i] - truth[i]), 5 * std::sqrt(expected(i, i))) << i;
}

TEST(CollinearSets, ColumnsThatDependOnEachOtherFormSets) {
  MatrixXd x = normals(400, 7, 31).cwiseAbs();
  EXPECT_TRUE(collinear_sets(x.transpose() * x).empty());
  x.col(3) = 1.5 * x.col(1) + 1e-4 * normals(400, 1, 32);
  x.col(6) = x.col(4) + 0.5 * x.col(5);
  const auto sets = collinear_sets(x.transpose() * x);
  EXPECT_EQ(sets, (std::vector<std::vector<int>>{{1, 3}, {4, 5, 6}}));
  x.col(2).setZero();  // a phase that never ran
  EXPECT_EQ(collinear_sets(x.transpose() * x), sets);
}

TEST(CollinearSets, TheLimitIsAConditionIndex) {
  // Two columns of length 1 with the cosine c have the singular values sqrt(1 + c) and sqrt(1 - c).
  for (const double index : {0.9 * kWeakIndex, 1.1 * kWeakIndex}) {
    const double c = (index * index - 1) / (index * index + 1);
    MatrixXd products(2, 2);
    products << 4.0, 2.0 * 3.0 * c, 2.0 * 3.0 * c, 9.0;
    EXPECT_EQ(collinear_sets(products).size(), index > kWeakIndex ? 1u : 0u) << index;
  }
}

}  // namespace
}  // namespace molen::ledger
