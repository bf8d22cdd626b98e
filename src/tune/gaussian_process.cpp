#include "tune/gaussian_process.h"

#include <algorithm>
#include <cmath>
#include <nlopt.hpp>
#include <numbers>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace molen::tune {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kMostJitter = 1e-6;
constexpr int kMostEvaluations = 60;  // of the likelihood from one start
const double kRootFive = std::sqrt(5.0);

// Returns squared distances of the rows of a and b, over one dimension's columns.
MatrixXd squares_of(const MatrixXd& a, const MatrixXd& b, const std::vector<int>& dimension_of, int dimension) {
  MatrixXd squares = MatrixXd::Zero(a.rows(), b.rows());
  for (Index c = 0; c < a.cols(); ++c)
    if (dimension_of[static_cast<std::size_t>(c)] == dimension)
      squares.array() +=
          (a.col(c).replicate(1, b.rows()) - b.col(c).transpose().replicate(a.rows(), 1)).array().square();
  return squares;
}

// Returns the correlations at squared scaled distances.
MatrixXd matern(const MatrixXd& squares) {
  const Eigen::ArrayXXd r = kRootFive * squares.array().sqrt();
  return ((1.0 + r + 5.0 / 3.0 * squares.array()) * (-r).exp()).matrix();
}

// The derivative of the correlation by the logarithm of a length is this, times the squared scaled distance over the
// dimensions that have this length.
MatrixXd matern_slope(const MatrixXd& squares) {
  const Eigen::ArrayXXd r = kRootFive * squares.array().sqrt();
  return (5.0 / 3.0 * (1.0 + r) * (-r).exp()).matrix();
}

void require_sound(const Observations& o, const Kernel& kernel) {
  MOLEN_CHECK(o.points.rows() == o.values.size(), "{} points and {} values", o.points.rows(), o.values.size());
  MOLEN_CHECK(static_cast<std::size_t>(o.points.cols()) == o.dimension_of.size(),
              "{} columns, of which {} have a dimension", o.points.cols(), o.dimension_of.size());
  for (const int d : o.dimension_of)
    MOLEN_CHECK(d >= 0 && static_cast<std::size_t>(d) < kernel.lengths.size(), "dimension {} has no length scale", d);
  if (o.points.rows() < 1 || o.points.rows() > kMostGaussianPoints)
    throw Error("a Gaussian process of {} points: 1 to {} are possible", o.points.rows(), kMostGaussianPoints);
  if (!o.values.allFinite() || !o.points.allFinite()) throw Error("a Gaussian process of values that are not finite");
}

}  // namespace

MatrixXd GaussianProcess::covariance(const MatrixXd& a, const MatrixXd& b) const {
  MatrixXd squares = MatrixXd::Zero(a.rows(), b.rows());
  for (std::size_t d = 0; d < kernel_.lengths.size(); ++d)
    squares +=
        squares_of(a, b, observations_.dimension_of, static_cast<int>(d)) / (kernel_.lengths[d] * kernel_.lengths[d]);
  return kernel_.signal * kernel_.signal * matern(squares);
}

GaussianProcess::GaussianProcess(Observations observations, Kernel kernel)
    : observations_(std::move(observations)), kernel_(std::move(kernel)) {
  require_sound(observations_, kernel_);
  const Index n = observations_.points.rows();
  const MatrixXd k = covariance(observations_.points, observations_.points);
  const double variance = kernel_.signal * kernel_.signal;
  for (;; jitter_ *= 10.0) {
    MatrixXd with_noise = k;
    with_noise.diagonal().array() += kernel_.noise * kernel_.noise + jitter_ * variance;
    const Eigen::LLT<MatrixXd> cholesky(with_noise);
    if (cholesky.info() == Eigen::Success) {
      factor_ = cholesky.matrixL();
      break;
    }
    if (jitter_ > kMostJitter / 2)
      throw Error("the covariance of {} points has no Cholesky factor with a jitter of {:g}", n, jitter_);
  }
  const auto solve = [&](const VectorXd& of) -> VectorXd {
    VectorXd x = factor_.triangularView<Eigen::Lower>().solve(of);
    factor_.triangularView<Eigen::Lower>().adjoint().solveInPlace(x);
    return x;
  };
  ones_solved_ = solve(VectorXd::Ones(n));
  constant_ = ones_solved_.dot(observations_.values) / ones_solved_.sum();
  weights_ = solve(observations_.values.array() - constant_);
}

Posterior GaussianProcess::at(const MatrixXd& points) const {
  const MatrixXd k = covariance(observations_.points, points);
  const MatrixXd half = factor_.triangularView<Eigen::Lower>().solve(k);
  Posterior posterior;
  posterior.mean = (k.transpose() * weights_).array() + constant_;
  const VectorXd of_constant = 1.0 - (k.transpose() * ones_solved_).array();
  posterior.variance = (kernel_.signal * kernel_.signal - half.colwise().squaredNorm().transpose().array() +
                        of_constant.array().square() / ones_solved_.sum())
                           .max(0.0);  // rounding may leave a small negative one at an observed point
  return posterior;
}

VectorXd GaussianProcess::mean_at(const MatrixXd& points) const {
  return (covariance(points, observations_.points) * weights_).array() + constant_;
}

double GaussianProcess::log_likelihood() const {
  const VectorXd centred = observations_.values.array() - constant_;
  return -0.5 * centred.dot(weights_) - factor_.diagonal().array().log().sum() -
         0.5 * static_cast<double>(centred.size()) * std::log(2.0 * std::numbers::pi);
}

VectorXd GaussianProcess::gradient() const {
  const Index n = observations_.points.rows();
  const auto dimensions = static_cast<Index>(kernel_.lengths.size());
  MatrixXd squares = MatrixXd::Zero(n, n);
  std::vector<MatrixXd> scaled;
  for (Index d = 0; d < dimensions; ++d) {
    const double length = kernel_.lengths[static_cast<std::size_t>(d)];
    scaled.push_back(
        squares_of(observations_.points, observations_.points, observations_.dimension_of, static_cast<int>(d)) /
        (length * length));
    squares += scaled.back();
  }
  // alpha alpha^T - K^-1
  MatrixXd inner = MatrixXd::Identity(n, n);
  factor_.triangularView<Eigen::Lower>().solveInPlace(inner);
  factor_.triangularView<Eigen::Lower>().adjoint().solveInPlace(inner);
  inner = weights_ * weights_.transpose() - inner;
  const double variance = kernel_.signal * kernel_.signal;
  VectorXd slope(2 + dimensions);
  MatrixXd k = matern(squares);
  k.diagonal().array() += jitter_;
  slope[0] = variance * inner.cwiseProduct(k).sum();
  slope[1] = kernel_.noise * kernel_.noise * inner.trace();
  const MatrixXd weighted = inner.cwiseProduct(matern_slope(squares));
  for (Index d = 0; d < dimensions; ++d)
    slope[2 + d] = 0.5 * variance * weighted.cwiseProduct(scaled[static_cast<std::size_t>(d)]).sum();
  return slope;
}

namespace {

// The kernel as the vector over which the likelihood is maximised: logarithms of signal, noise and lengths.
Kernel kernel_of(const std::vector<double>& logarithms) {
  Kernel kernel{std::exp(logarithms[0]), std::exp(logarithms[1]), {}};
  for (std::size_t i = 2; i < logarithms.size(); ++i) kernel.lengths.push_back(std::exp(logarithms[i]));
  return kernel;
}

struct LikelihoodSearch {
  const Observations& observations;
  std::vector<double> low, high;  // bounds
  double best = -HUGE_VAL;
  std::vector<double> best_at = {};

  double value(const std::vector<double>& at, std::vector<double>& slope) {
    const GaussianProcess process(observations, kernel_of(at));
    const double likelihood = process.log_likelihood();
    if (!slope.empty()) {
      const VectorXd g = process.gradient();
      std::copy(g.begin(), g.end(), slope.begin());
    }
    if (likelihood > best) best = likelihood, best_at = at;
    return likelihood;
  }
  void from(std::vector<double> start) {
    nlopt::opt search(nlopt::LD_LBFGS, static_cast<unsigned>(low.size()));
    search.set_lower_bounds(low);
    search.set_upper_bounds(high);
    search.set_max_objective([](const std::vector<double>& at, std::vector<double>& slope,
                                void* self) { return static_cast<LikelihoodSearch*>(self)->value(at, slope); },
                             this);
    search.set_ftol_abs(1e-6);
    search.set_maxeval(kMostEvaluations);
    for (std::size_t i = 0; i < start.size(); ++i) start[i] = std::clamp(start[i], low[i], high[i]);
    double found = 0.0;
    try {
      search.optimize(start, found);
    } catch (const std::runtime_error&) {
      // NLopt ends so when a line search makes no more progress at the precision of doubles (nlopt::roundoff_limited
      // and a plain failure of L-BFGS). `best_at` has the best point that it saw.
    }
  }
};

}  // namespace

Kernel fit_kernel(const Observations& observations, const FitOptions& options) {
  const auto& values = observations.values;
  const double mean = values.mean(), spread = std::sqrt((values.array() - mean).square().mean());
  const double unit = spread > 0.0 ? spread : 1.0;
  const int dimensions = 1 + *std::max_element(observations.dimension_of.begin(), observations.dimension_of.end());
  LikelihoodSearch search{observations,
                          {std::log(options.least_signal * unit), std::log(options.least_noise * unit)},
                          {std::log(options.most_signal * unit), std::log(options.most_noise * unit)}};
  search.low.resize(search.low.size() + static_cast<std::size_t>(dimensions), std::log(options.least_length));
  search.high.resize(search.low.size(), std::log(options.most_length));
  const std::uint64_t key = stream_key(options.seed, "starts of a kernel");
  for (int s = 0; s < options.starts; ++s) {
    std::vector<double> start(search.low.size());
    if (s == 0 && options.first) {
      start[0] = std::log(options.first->signal), start[1] = std::log(std::max(options.first->noise, 1e-300));
      for (std::size_t i = 2; i < start.size(); ++i) start[i] = std::log(options.first->lengths[i - 2]);
    } else if (s == 0) {
      std::fill(start.begin(), start.end(), std::log(0.5));
      start[0] = std::log(unit), start[1] = std::log(0.03 * unit);
    } else {
      for (std::size_t i = 0; i < start.size(); ++i)
        start[i] = search.low[i] +
                   (search.high[i] - search.low[i]) * uniform_at(key, static_cast<std::uint64_t>(s) * start.size() + i);
    }
    search.from(std::move(start));
  }
  return kernel_of(search.best_at);
}

}  // namespace molen::tune
