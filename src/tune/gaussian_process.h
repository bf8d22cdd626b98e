// Regression by a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006), with a
// Matern kernel of smoothness 5/2 and one length scale for each dimension.
#pragma once

#include <Eigen/Dense>
#include <cstdint>
#include <vector>

namespace molen::tune {

// More points than this are refused: one fit factorises some hundred matrices of points x points.
inline constexpr int kMostGaussianPoints = 600;

// The covariance of two points at the scaled distance r, r^2 = sum over columns c of ((x_c - x'_c) / length_c)^2, is
//   signal^2 (1 + sqrt(5) r + 5/3 r^2) exp(-sqrt(5) r)                        (eq. 4.17)
// and noise^2 is added to that of an observation with itself.
struct Kernel {
  double signal = 1.0;          // in the unit of the values
  double noise = 0.0;           // in the unit of the values
  std::vector<double> lengths;  // of each dimension, in the unit of the points
};

// Points are the rows of a matrix. Columns may share a length scale: `dimension_of` has the dimension of each column.
struct Observations {
  Eigen::MatrixXd points;
  Eigen::VectorXd values;
  std::vector<int> dimension_of;
};

struct Posterior {
  Eigen::VectorXd mean, variance;  // of the function without noise, at each point that was asked for
};

class GaussianProcess {
 public:
  // Conditions the process on the observations. kJitter x signal^2 is added to the diagonal, so that the Cholesky
  // factor exists where points coincide or nearly do; if rounding still prevents it, the jitter is raised tenfold, up
  // to 1e-6. Throws Error when there is no factor even then, and when there are no points or too many.
  GaussianProcess(Observations observations, Kernel kernel);
  static constexpr double kJitter = 1e-10;

  // The mean of the values is a constant that is not known: it is estimated by generalised least squares, and its own
  // uncertainty is part of the variance (section 2.7, eq. 2.41 and 2.42 with one constant basis function and a vague
  // prior). `points` are rows.
  Posterior at(const Eigen::MatrixXd& points) const;
  Eigen::VectorXd mean_at(const Eigen::MatrixXd& points) const;  // the mean alone, which takes less time
  double constant() const { return constant_; }
  const Kernel& kernel() const { return kernel_; }
  const Eigen::VectorXd& weights() const { return weights_; }  // (K + noise^2 I)^-1 (values - constant)
  double jitter() const { return jitter_; }                    // the one that was used, relative to signal^2

  // The logarithm of the marginal likelihood (eq. 5.8), with the constant at its estimate.
  double log_likelihood() const;
  // Its derivatives by the logarithms of signal, noise and each length scale (eq. 5.9). The estimate of the constant
  // maximises the likelihood, so the derivatives through it are 0.
  Eigen::VectorXd gradient() const;

 private:
  Eigen::MatrixXd covariance(const Eigen::MatrixXd& a, const Eigen::MatrixXd& b) const;

  Observations observations_;
  Kernel kernel_;
  Eigen::MatrixXd factor_;                 // lower Cholesky factor
  Eigen::VectorXd weights_, ones_solved_;  // ones_solved_: (K + noise^2 I)^-1 1
  double constant_ = 0.0, jitter_ = kJitter;
};

struct FitOptions {
  std::uint64_t seed = 0;
  int starts = 4;                 // of the local search: `first` and random ones
  const Kernel* first = nullptr;  // where the first start begins, such as the kernel of fewer points
  // Bounds of the kernel. Those of signal and noise are relative to the standard deviation of the values.
  double least_length = 0.05, most_length = 20.0;
  double least_signal = 0.05, most_signal = 20.0;
  double least_noise = 1e-3, most_noise = 1.0;
};

// Returns the kernel with the largest marginal likelihood that L-BFGS (of NLopt) finds from several starts. The result
// depends on the observations and the options alone.
Kernel fit_kernel(const Observations& observations, const FitOptions& options = {});

}  // namespace molen::tune
