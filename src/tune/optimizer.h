// Bayesian optimisation over a finite space whose points may fail.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "tune/gaussian_process.h"
#include "tune/space.h"

namespace molen::tune {

// A point that was tried. The value is above 0, and larger is better; absent: the trial failed. The load is what the
// trial needs of a limit (memory over the memory that there is), above 0: a trial with a load above 1 fails. It is
// known of failed trials too, and tells by how much they failed; absent: not known.
struct Observation {
  Point point;
  std::optional<double> value;
  std::optional<double> load = std::nullopt;
};

// Returns the logarithm of the expected improvement of a normal variable over `best` (Jones, Schonlau and Welch 1998,
// eq. 15: (mean - best) Phi(z) + deviation phi(z) with z = (mean - best) / deviation). It is finite where the
// improvement itself underflows. `deviation` is above 0.
double log_expected_improvement(double mean, double deviation, double best);

// The models of a search, conditioned on observations:
//   - of the logarithm of the value, where trials succeeded; it needs two of them
//   - of the logarithm of the load, if a load is above 1: a constraint that is modelled as a real number (Gardner et
//   al.,
//     Bayesian Optimization with Inequality Constraints, ICML 2014, section 3.1)
//   - of success, if trials failed for another reason. Success is classified by least squares (Rasmussen and Williams
//     2006, section 6.5): a Gaussian process is fitted to labels of 1 and -1, and the probability is that of its value,
//     with its noise, being above 0.
class Models {
 public:
  Models(const Space& space, const std::vector<Observation>& observations, std::uint64_t seed);

  bool has_value() const { return value_.has_value(); }

  // Conditions the models of value and load on their own means at a point, as if these had been observed ("kriging
  // believer", Ginsbourger, Le Riche and Carraro 2010).
  void believe(const Point& point);

  Posterior log_value(const std::vector<Point>& points) const;
  // Returns the probability of a load of at most 1, times that of success otherwise.
  Eigen::VectorXd probability_of_success(const std::vector<Point>& points) const;
  // Returns at each point the logarithm of the expected improvement over the best value, plus that of the probability
  // of success (Schonlau, Welch and Jones 1998, section 4: the expected improvement of a trial that counts only if it
  // succeeds); without a model of the value, that of the probability alone. A point that succeeds with a probability
  // below one half comes after all others.
  Eigen::VectorXd acquisition(const std::vector<Point>& points) const;

  const GaussianProcess& of_value() const { return *value_; }                            // with has_value()
  const GaussianProcess* of_load() const { return load_ ? &*load_ : nullptr; }           // null: no load is above 1
  const GaussianProcess* of_success() const { return success_ ? &*success_ : nullptr; }  // null: nothing else failed

 private:
  const Space& space_;
  std::vector<Point> points_, loaded_;  // with values, and with loads
  std::vector<double> logarithms_, loads_;
  double best_ = 0.0;
  std::optional<GaussianProcess> value_, load_, success_;
};

// Proposes points that were not tried before. Proposals depend on the space, the seed and the observations in their
// order, and on nothing else, so a search that is cut off goes on as if it had not been.
class Optimizer {
 public:
  Optimizer(Space space, std::uint64_t seed);

  // Throws Error for a point that was observed before, and for a value that is not above 0 and finite.
  void observe(Observation observation);
  const std::vector<Observation>& observations() const { return observations_; }

  // Returns `count` distinct points without an observation; fewer if the space has no more. The first points are a
  // Latin hypercube (McKay, Beckman and Conover 1979). Later ones have the highest acquisition: of all points if the
  // space is small, else of random points and of those that local moves reach from the best ones.
  std::vector<Point> propose(int count) const;
  // Number of points of the Latin hypercube.
  int designed() const { return static_cast<int>(design_.size()); }

 private:
  bool is_new(const Point& point, const std::set<std::int64_t>& beside) const;
  void add_designed(std::size_t count, std::vector<Point>& batch, std::set<std::int64_t>& chosen) const;
  std::vector<Point> candidates(const std::set<std::int64_t>& chosen) const;
  Point best_of(const Models& models, const std::vector<Point>& list, const std::set<std::int64_t>& chosen) const;
  Point climbed(const Models& models, Point from, const std::set<std::int64_t>& chosen) const;

  Space space_;
  std::uint64_t seed_;
  std::vector<Point> design_;
  std::vector<Observation> observations_;
  std::set<std::int64_t> tried_;  // numbers of points
};

}  // namespace molen::tune
