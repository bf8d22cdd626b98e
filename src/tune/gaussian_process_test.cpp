#include "tune/gaussian_process.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"
#include "base/rng.h"

namespace molen::tune {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kEps = std::numeric_limits<double>::epsilon();

MatrixXd uniform_points(int n, int columns, std::uint64_t seed) {
  MatrixXd x(n, columns);
  for (Index i = 0; i < x.size(); ++i)
    x.data()[i] = uniform_at(stream_key(seed, "points"), static_cast<std::uint64_t>(i));
  return x;
}

std::vector<int> own_dimensions(int columns) {
  std::vector<int> of;
  for (int c = 0; c < columns; ++c) of.push_back(c);
  return of;
}

// Values of a function that is drawn from the process of `kernel`, with its noise.
Observations drawn(const Kernel& kernel, int n, std::uint64_t seed) {
  const auto columns = static_cast<int>(kernel.lengths.size());
  Observations o{uniform_points(n, columns, seed), VectorXd(n), own_dimensions(columns)};
  MatrixXd k(n, n);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) {
      double square = 0.0;
      for (int c = 0; c < columns; ++c)
        square += std::pow((o.points(i, c) - o.points(j, c)) / kernel.lengths[static_cast<std::size_t>(c)], 2);
      const double r = std::sqrt(5.0 * square);
      k(i, j) = std::pow(kernel.signal, 2) * (1 + r + r * r / 3) * std::exp(-r) +
                (i == j ? std::pow(kernel.noise, 2) + 1e-10 : 0.0);
    }
  VectorXd z(n);
  for (int i = 0; i < n; ++i) z[i] = normal_at(stream_key(seed, "values"), static_cast<std::uint64_t>(i));
  o.values = 3.0 + (MatrixXd(k.llt().matrixL()) * z).array();
  return o;
}

Kernel moved(const Kernel& kernel, Index which, double by) {
  Kernel k = kernel;
  const double factor = std::exp(by);
  if (which == 0)
    k.signal *= factor;
  else if (which == 1)
    k.noise *= factor;
  else
    k.lengths[static_cast<std::size_t>(which - 2)] *= factor;
  return k;
}

TEST(GaussianProcess, TwoPointsByHand) {
  const double s = 1.3, n = 0.2, length = 0.4, y1 = 2.0, y2 = 5.0, at = 0.7;
  Observations o{MatrixXd(2, 1), VectorXd(2), {0}};
  o.points << 0.1, 0.6;
  o.values << y1, y2;
  const GaussianProcess process(o, {s, n, {length}});
  const auto k = [&](double distance) {
    const double r = std::sqrt(5.0) * distance / length;
    return s * s * (1 + r + r * r / 3) * std::exp(-r);
  };
  // K has a on its diagonal and b beside it, so its eigenvectors are (1, 1) and (1, -1).
  const double a = s * s * (1 + GaussianProcess::kJitter) + n * n, b = k(0.5), k1 = k(0.6), k2 = k(0.1);
  const double half = (y1 - y2) / 2, mean = (y1 + y2) / 2 + (k1 - k2) * half / (a - b);
  const double variance = s * s - (k1 + k2) * (k1 + k2) / 2 / (a + b) - (k1 - k2) * (k1 - k2) / 2 / (a - b) +
                          std::pow(1 - (k1 + k2) / (a + b), 2) * (a + b) / 2;
  const Posterior p = process.at(MatrixXd::Constant(1, 1, at));
  // A few dozen operations on numbers below 10, and a matrix whose condition is below 10.
  const double bound = 1000 * kEps;
  EXPECT_NEAR(process.constant(), 3.5, bound);
  EXPECT_NEAR(p.mean[0], mean, bound);
  EXPECT_NEAR(process.mean_at(MatrixXd::Constant(1, 1, at))[0], mean, bound);
  EXPECT_NEAR(p.variance[0], variance, bound);
  EXPECT_NEAR(process.log_likelihood(),
              -half * half / (a - b) - 0.5 * std::log((a + b) * (a - b)) - std::log(2 * std::numbers::pi), bound);
}

// Far from all points, nothing is known but the constant, whose own variance adds to that of the function.
TEST(GaussianProcess, FarAwayOnlyTheConstantIsKnown) {
  Observations o{MatrixXd(3, 1), VectorXd(3), {0}};
  o.points << 0.0, 1000.0, 2000.0;
  o.values << 1.0, 2.0, 6.0;
  const Posterior p = GaussianProcess(o, {2.0, 1.0, {1.0}}).at(MatrixXd::Constant(1, 1, -5000.0));
  EXPECT_NEAR(p.mean[0], 3.0, 1e-12);
  EXPECT_NEAR(p.variance[0], 4.0 + 5.0 / 3.0, 1e-8) << "signal^2 + (signal^2 + noise^2) / points; jitter is 4e-10";
}

TEST(GaussianProcess, InterpolatesWithoutNoise) {
  Observations o{MatrixXd(12, 1), VectorXd(12), {0}};
  for (int i = 0; i < 12; ++i) o.points(i, 0) = i / 11.0, o.values[i] = std::sin(7.0 * i / 11.0);
  const Kernel kernel{1.0, 0.0, {0.15}};
  const GaussianProcess process(o, kernel);
  ASSERT_EQ(process.jitter(), GaussianProcess::kJitter);
  const Posterior p = process.at(o.points);
  for (int i = 0; i < 12; ++i) {
    // (K + jitter I) w = y - c, so the mean K w + c differs from y by jitter x w, besides rounding; the condition of K
    // is below 1e4 at this distance of points.
    EXPECT_NEAR(p.mean[i], o.values[i], GaussianProcess::kJitter * std::abs(process.weights()[i]) + 1e4 * 12 * kEps);
    EXPECT_LT(p.variance[i], 2 * GaussianProcess::kJitter + 1e4 * 12 * kEps);
  }
  const Posterior between = process.at(MatrixXd::Constant(1, 1, 0.5 / 11.0));
  EXPECT_GT(between.variance[0], 1e-5) << "between points it is not certain";
}

// Central differences at two steps: the error of the finer one is a third of their difference, to leading order.
TEST(GaussianProcess, GradientIsThatOfTheLikelihood) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const Kernel truth{1.5, 0.3, {0.3, 1.0, 0.6}};
    Observations o = drawn(truth, 20, seed);
    o.dimension_of = {0, 1, 1};  // two columns share a length scale
    const Kernel kernel{1.1, 0.2, {0.5, 0.8}};
    const VectorXd gradient = GaussianProcess(o, kernel).gradient();
    const double step = 1e-3, condition = 20 * 1.21 / 0.04;
    const auto central = [&](Index i, double h) {
      return (GaussianProcess(o, moved(kernel, i, h)).log_likelihood() -
              GaussianProcess(o, moved(kernel, i, -h)).log_likelihood()) /
             (2 * h);
    };
    ASSERT_EQ(gradient.size(), 4);
    for (Index i = 0; i < gradient.size(); ++i) {
      const double coarse = central(i, step), fine = central(i, step / 2);
      // Each likelihood is a sum of some 20 terms of about 10, whose solves lose the condition of K.
      const double rounding = 200 * condition * kEps / step;
      EXPECT_NEAR(gradient[i], fine, std::abs(coarse - fine) + rounding) << "derivative " << i;
      EXPECT_GT(std::abs(gradient[i]), 100 * (std::abs(coarse - fine) + rounding)) << "the bound would hide a mistake";
    }
  }
}

TEST(GaussianProcess, DoesNotDependOnTheOrderOfPoints) {
  const Kernel kernel{1.0, 0.1, {0.4, 0.7}};
  const Observations o = drawn(kernel, 25, 4);
  Observations other = o;
  for (int i = 0; i < 25; ++i) {
    const auto from = static_cast<Index>(permute_at(9, static_cast<std::uint64_t>(i), 25));
    other.points.row(i) = o.points.row(from), other.values[i] = o.values[from];
  }
  ASSERT_NE(other.values, o.values);
  const GaussianProcess a(o, kernel), b(other, kernel);
  const MatrixXd at = uniform_points(10, 2, 5);
  const Posterior of_a = a.at(at), of_b = b.at(at);
  // Cholesky solves are backward stable: an error of about points x eps, times the condition of at most 25 / 0.01, of
  // values up to 6.
  const double bound = 25 * kEps * 2500 * 6;
  EXPECT_LT((of_a.mean - of_b.mean).cwiseAbs().maxCoeff(), bound);
  EXPECT_LT((of_a.variance - of_b.variance).cwiseAbs().maxCoeff(), bound);
  EXPECT_NEAR(a.log_likelihood(), b.log_likelihood(), 25 * bound);
}

// Standard errors of the logarithms of the kernel's figures, by the information that the observations have: the inverse
// of the second derivatives of the likelihood, which are differences of its gradient.
VectorXd standard_errors(const Observations& o, const Kernel& kernel) {
  const auto n = static_cast<Index>(2 + kernel.lengths.size());
  MatrixXd information(n, n);
  for (Index i = 0; i < n; ++i)
    information.col(i) = (GaussianProcess(o, moved(kernel, i, -1e-4)).gradient() -
                          GaussianProcess(o, moved(kernel, i, 1e-4)).gradient()) /
                         2e-4;
  return (0.5 * (information + information.transpose())).inverse().diagonal().cwiseSqrt();
}

// The estimate that maximises a likelihood is normal about the truth to first order, so 4 standard errors leave out one
// estimate in 16000.
TEST(FitKernel, RecoversTheKernelOfASampledFunction) {
  const Kernel truth{1.0, 0.05, {0.15, 0.6}};
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const Observations o = drawn(truth, 60, seed);
    FitOptions options;
    options.starts = 2;
    const Kernel found = fit_kernel(o, options);
    const GaussianProcess fitted(o, found);
    EXPECT_GE(fitted.log_likelihood(), GaussianProcess(o, truth).log_likelihood()) << "the truth is no better";
    const VectorXd errors = standard_errors(o, found);
    ASSERT_TRUE(errors.allFinite());
    for (std::size_t d = 0; d < 2; ++d) {
      const double error = errors[static_cast<Index>(2 + d)];
      EXPECT_LT(error, 0.5) << "60 points tell the length to half of itself";
      EXPECT_NEAR(std::log(found.lengths[d]), std::log(truth.lengths[d]), 4 * error) << "length " << d;
    }
    // At a maximum within the bounds the likelihood is flat: a move of a standard error loses half a unit, so a slope
    // of a tenth of its inverse is small.
    const VectorXd slope = fitted.gradient();
    for (Index i = 0; i < slope.size(); ++i) EXPECT_LT(std::abs(slope[i]), 0.1 / errors[i]) << "figure " << i;
  }
}

TEST(FitKernel, ADimensionWithoutEffectGetsALongLength) {
  Observations o{uniform_points(30, 2, 3), VectorXd(30), {0, 1}};
  for (int i = 0; i < 30; ++i) o.values[i] = std::sin(6.0 * o.points(i, 0));
  const Kernel kernel = fit_kernel(o);
  EXPECT_GT(kernel.lengths[1], 10 * kernel.lengths[0]);
  const Kernel again = fit_kernel(o);
  EXPECT_EQ(again.lengths, kernel.lengths) << "the same seed";
}

TEST(FitKernel, ValuesThatAreAllTheSame) {
  Observations o{uniform_points(6, 2, 3), VectorXd::Constant(6, 2.5), {0, 1}};
  const GaussianProcess process(o, fit_kernel(o));
  EXPECT_NEAR(process.at(uniform_points(1, 2, 8)).mean[0], 2.5, 1e-9);
}

TEST(GaussianProcess, RefusesWhatItCannotCondition) {
  Observations none{MatrixXd(0, 1), VectorXd(0), {0}};
  EXPECT_THROW(GaussianProcess(none, {1.0, 0.1, {1.0}}), Error);
  Observations many{MatrixXd::Zero(kMostGaussianPoints + 1, 1), VectorXd::Zero(kMostGaussianPoints + 1), {0}};
  EXPECT_THROW(GaussianProcess(many, {1.0, 0.1, {1.0}}), Error);
  Observations nan{MatrixXd::Zero(1, 1), VectorXd::Constant(1, std::nan("")), {0}};
  EXPECT_THROW(GaussianProcess(nan, {1.0, 0.1, {1.0}}), Error);
}

// Observations of one point twice make a covariance that is singular but for the jitter.
TEST(GaussianProcess, APointThatIsThereTwice) {
  Observations o{MatrixXd::Zero(2, 1), VectorXd(2), {0}};
  o.values << 1.0, 3.0;
  const Posterior p = GaussianProcess(o, {1.0, 0.0, {1.0}}).at(MatrixXd::Zero(1, 1));
  // The condition is 2 / jitter, and the weights are the difference over the jitter.
  EXPECT_NEAR(p.mean[0], 2.0, 4 * kEps * 2 / GaussianProcess::kJitter);
}

}  // namespace
}  // namespace molen::tune
