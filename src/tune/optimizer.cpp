#include "tune/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace molen::tune {
namespace {

using Eigen::Index;

constexpr std::int64_t kSmallSpace = 20000;  // points that are all candidates
constexpr std::int64_t kRandomCandidates = 2000;
constexpr std::size_t kClimbs = 5;    // candidates from which local moves begin
constexpr std::size_t kParents = 10;  // best observations whose neighbours are candidates
constexpr int kMostMoves = 50;        // of one climb
constexpr double kMostWork = 4e8;     // candidates x points^2 of one choice: about a second
// Points that succeed with a smaller probability are proposed only when no other ones are left. Without this rule, a
// search that has nearly converged prefers what will fail, since it expects next to nothing of all that succeeds.
constexpr double kLikelySuccess = 0.5;
constexpr double kUnlikely = -1e30;  // the acquisition of such points, times the probability that they fail

double normal_cdf(double z) {
  return 0.5 * std::erfc(-z / std::numbers::sqrt2);
}

// Returns log(phi(z) + z Phi(z)).
double log_improvement(double z) {
  const double log_density = -0.5 * z * z - 0.5 * std::log(2.0 * std::numbers::pi);
  // Below -6, terms cancel to a few digits. There, phi(z) + z Phi(z) = phi(z) / z^2 (1 - 3 / z^2 + 15 / z^4 - ...), the
  // asymptotic series of Mills' ratio, whose error is below 105 / z^6.
  if (z < -6.0) return log_density - 2.0 * std::log(-z) + std::log1p(-3.0 / (z * z) + 15.0 / (z * z * z * z));
  return std::log(std::exp(log_density) + z * normal_cdf(z));
}

Observations observed_at(const Space& space, const std::vector<Point>& points, const std::vector<double>& values) {
  return {space.encoded(points), Eigen::Map<const Eigen::VectorXd>(values.data(), static_cast<Index>(values.size())),
          space.dimension_of()};
}

// Returns a Latin hypercube of `count` points: each dimension is divided into `count` equal parts, and one point lies
// in each part.
std::vector<Point> latin_hypercube(const Space& space, std::size_t count, std::uint64_t seed) {
  const std::uint64_t order = stream_key(seed, "latin hypercube"), within = stream_key(seed, "within the hypercube");
  const std::size_t dimensions = space.dimensions().size();
  std::vector<Point> points;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<double> shares(dimensions);
    for (std::size_t d = 0; d < dimensions; ++d) {
      const auto part = permute_at(stream_key(order, std::to_string(d)), i, count);
      shares[d] = (static_cast<double>(part) + uniform_at(within, i * dimensions + d)) / static_cast<double>(count);
    }
    points.push_back(space.at_shares(shares));
  }
  return points;
}

Point random_point(const Space& space, std::uint64_t key, std::uint64_t index) {
  std::vector<double> shares(space.dimensions().size());
  for (std::size_t d = 0; d < shares.size(); ++d) shares[d] = uniform_at(key, index * shares.size() + d);
  return space.at_shares(shares);
}

}  // namespace

double log_expected_improvement(double mean, double deviation, double best) {
  return std::log(deviation) + log_improvement((mean - best) / deviation);
}

Models::Models(const Space& space, const std::vector<Observation>& observations, std::uint64_t seed) : space_(space) {
  std::vector<Point> all;
  std::vector<double> labels;
  bool too_much = false, failed = false;
  for (const Observation& o : observations) {
    const bool overloaded = o.load && *o.load > 1.0;
    all.push_back(o.point), labels.push_back(o.value || overloaded ? 1.0 : -1.0);
    too_much = too_much || overloaded, failed = failed || labels.back() < 0.0;
    if (o.value) points_.push_back(o.point), logarithms_.push_back(std::log(*o.value));
    if (o.load) loaded_.push_back(o.point), loads_.push_back(std::log(*o.load));
  }
  FitOptions options;
  options.seed = seed;
  options.starts = observations.size() > 100 ? 2 : 4;
  const auto fitted = [&](const std::vector<Point>& points, const std::vector<double>& values) {
    const Observations o = observed_at(space, points, values);
    return GaussianProcess(o, fit_kernel(o, options));
  };
  if (points_.size() >= 2) {
    value_.emplace(fitted(points_, logarithms_));
    best_ = *std::max_element(logarithms_.begin(), logarithms_.end());
  }
  if (too_much) load_.emplace(fitted(loaded_, loads_));
  // Success has no noise, but a boundary that the kernel can only approximate; a floor keeps the model from certainty.
  options.least_noise = 0.1;
  if (failed) success_.emplace(fitted(all, labels));
}

void Models::believe(const Point& point) {
  const auto extend = [&](std::optional<GaussianProcess>& process, std::vector<Point>& points,
                          std::vector<double>& values) {
    if (!process) return;
    values.push_back(process->mean_at(space_.encoded(point))[0]);
    points.push_back(point);
    process.emplace(observed_at(space_, points, values), Kernel(process->kernel()));
  };
  extend(value_, points_, logarithms_);
  extend(load_, loaded_, loads_);
}

Posterior Models::log_value(const std::vector<Point>& points) const {
  return value_->at(space_.encoded(points));
}

Eigen::VectorXd Models::probability_of_success(const std::vector<Point>& points) const {
  Eigen::VectorXd probability = Eigen::VectorXd::Ones(static_cast<Index>(points.size()));
  const Eigen::MatrixXd at = space_.encoded(points);
  const auto times_positive = [&](const GaussianProcess& process, double sign) {
    const Posterior p = process.at(at);
    const double noise = process.kernel().noise;
    for (Index i = 0; i < probability.size(); ++i)
      probability[i] *= normal_cdf(sign * p.mean[i] / std::sqrt(p.variance[i] + noise * noise));
  };
  if (load_) times_positive(*load_, -1.0);  // the logarithm of a load of at most 1 is not above 0
  if (success_) times_positive(*success_, 1.0);
  return probability;
}

Eigen::VectorXd Models::acquisition(const std::vector<Point>& points) const {
  const Eigen::VectorXd success = probability_of_success(points);
  Eigen::VectorXd score = success.array().log();
  if (value_) {
    const Posterior p = log_value(points);
    const double least_deviation = 1e-6 * value_->kernel().signal;
    for (Index i = 0; i < score.size(); ++i)
      score[i] += log_expected_improvement(p.mean[i], std::max(std::sqrt(p.variance[i]), least_deviation), best_);
  }
  for (Index i = 0; i < score.size(); ++i)
    if (success[i] < kLikelySuccess) score[i] = kUnlikely * (1.0 - success[i]);
  return score;
}

Optimizer::Optimizer(Space space, std::uint64_t seed) : space_(std::move(space)), seed_(seed) {
  const std::size_t wanted = 2 * space_.dimensions().size() + 2;
  design_ = latin_hypercube(space_, wanted, seed_);
}

void Optimizer::observe(Observation o) {
  if (o.value && !(*o.value > 0.0 && std::isfinite(*o.value)))
    throw Error("the trial of {} has the value {:g}; a value is above 0 and finite", space_.text(o.point), *o.value);
  if (!tried_.insert(space_.number_of(o.point)).second)
    throw Error("the trial of {} is there twice", space_.text(o.point));
  observations_.push_back(std::move(o));
}

bool Optimizer::is_new(const Point& point, const std::set<std::int64_t>& beside) const {
  const std::int64_t number = space_.number_of(point);
  return !tried_.contains(number) && !beside.contains(number);
}

// Adds points of the design, and random ones behind it, until the batch has `count` points or the space is used up.
void Optimizer::add_designed(std::size_t count, std::vector<Point>& batch, std::set<std::int64_t>& chosen) const {
  const auto add = [&](const Point& point) {
    if (batch.size() >= count || !is_new(point, chosen)) return;
    chosen.insert(space_.number_of(point));
    batch.push_back(point);
  };
  for (const Point& point : design_) add(point);
  const std::uint64_t key = stream_key(seed_, "random points");
  for (std::uint64_t i = 0; i < 1000 && batch.size() < count; ++i)
    add(random_point(space_, key, tried_.size() * 1000 + i));
  // Nearly all points were tried, so that random ones seldom are new.
  const std::int64_t most = std::min<std::int64_t>(space_.points(), 1000000);
  for (std::int64_t i = 0; i < most && batch.size() < count; ++i) add(space_.point_of(i));
}

std::vector<Point> Optimizer::candidates(const std::set<std::int64_t>& chosen) const {
  const auto n = static_cast<double>(observations_.size());
  const bool all = space_.points() <= kSmallSpace && static_cast<double>(space_.points()) * n * n <= kMostWork;
  std::vector<Point> list;
  if (all) {
    for (std::int64_t i = 0; i < space_.points(); ++i)
      if (Point point = space_.point_of(i); is_new(point, chosen)) list.push_back(std::move(point));
    return list;
  }
  std::set<std::int64_t> listed = chosen;
  const auto add = [&](const Point& point) {
    if (is_new(point, listed)) listed.insert(space_.number_of(point)), list.push_back(point);
  };
  const std::uint64_t key = stream_key(seed_, "candidates");
  for (std::int64_t i = 0; i < kRandomCandidates; ++i)
    add(random_point(space_, key, observations_.size() * kRandomCandidates + static_cast<std::uint64_t>(i)));
  std::vector<const Observation*> best;
  for (const Observation& o : observations_)
    if (o.value) best.push_back(&o);
  std::stable_sort(best.begin(), best.end(), [](const auto* a, const auto* b) { return *a->value > *b->value; });
  best.resize(std::min(best.size(), kParents));
  for (const Observation* o : best)
    for (const Point& point : space_.neighbours(o->point)) add(point);
  return list;
}

// Moves to the best neighbour as long as it is better.
Point Optimizer::climbed(const Models& models, Point from, const std::set<std::int64_t>& chosen) const {
  double here = models.acquisition({from})[0];
  for (int move = 0; move < kMostMoves; ++move) {
    std::vector<Point> around;
    for (Point& point : space_.neighbours(from))
      if (is_new(point, chosen)) around.push_back(std::move(point));
    if (around.empty()) break;
    Index best = 0;
    const double there = models.acquisition(around).maxCoeff(&best);
    if (there <= here) break;
    from = around[static_cast<std::size_t>(best)], here = there;
  }
  return from;
}

// Returns the candidate with the highest acquisition, or where local moves lead from there if not every point is one.
Point Optimizer::best_of(const Models& models, const std::vector<Point>& list,
                         const std::set<std::int64_t>& chosen) const {
  const Eigen::VectorXd score = models.acquisition(list);
  std::vector<std::size_t> order(list.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t top = std::min(kClimbs, order.size());
  const auto better = [&](std::size_t a, std::size_t b) {
    const double x = score[static_cast<Index>(a)], y = score[static_cast<Index>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(), better);
  Point best = list[order.front()];
  if (static_cast<std::int64_t>(list.size() + tried_.size() + chosen.size()) >= space_.points()) return best;
  double highest = -HUGE_VAL;
  for (std::size_t i = 0; i < top; ++i) {
    Point reached = climbed(models, list[order[i]], chosen);
    const double there = models.acquisition({reached})[0];
    if (there > highest) highest = there, best = std::move(reached);
  }
  return best;
}

std::vector<Point> Optimizer::propose(int count) const {
  std::vector<Point> batch;
  std::set<std::int64_t> chosen;
  const auto wanted = static_cast<std::size_t>(count);
  if (observations_.size() < design_.size()) {
    add_designed(wanted, batch, chosen);
    return batch;
  }
  Models models(space_, observations_, seed_);
  // Nothing is known of where trials succeed if none did and no load says how far away that is.
  if (!models.has_value() && !models.of_load()) add_designed(wanted, batch, chosen);
  while (batch.size() < wanted) {
    const std::vector<Point> list = candidates(chosen);
    if (list.empty()) break;
    Point best = best_of(models, list, chosen);
    if (batch.size() + 1 < wanted) models.believe(best);
    chosen.insert(space_.number_of(best));
    batch.push_back(std::move(best));
  }
  return batch;
}

}  // namespace molen::tune
