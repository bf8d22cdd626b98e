#include "tune/sensitivity.h"

#include <algorithm>

#include "base/rng.h"

namespace molen::tune {
namespace {

using Eigen::Index;

constexpr std::int64_t kWholeSpace = 20000;
constexpr std::size_t kSampledPoints = 1024, kSampledLevels = 16, kBlock = 2048;

double variance_of(const Eigen::VectorXd& values) {
  return (values.array() - values.mean()).square().mean();
}

// Points of the space with one dimension at a value: all of them are asked for in blocks, which bounds the memory.
Eigen::VectorXd in_blocks(const std::vector<Point>& points,
                          const std::function<Eigen::VectorXd(const std::vector<Point>&)>& function) {
  Eigen::VectorXd values(static_cast<Index>(points.size()));
  for (std::size_t begin = 0; begin < points.size(); begin += kBlock) {
    const std::size_t end = std::min(points.size(), begin + kBlock);
    values.segment(static_cast<Index>(begin), static_cast<Index>(end - begin)) = function(
        {points.begin() + static_cast<std::ptrdiff_t>(begin), points.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  return values;
}

std::vector<double> indices_of_whole(const Space& space,
                                     const std::function<Eigen::VectorXd(const std::vector<Point>&)>& function) {
  std::vector<Point> points;
  for (std::int64_t i = 0; i < space.points(); ++i) points.push_back(space.point_of(i));
  const Eigen::VectorXd values = in_blocks(points, function);
  const double all = variance_of(values);
  std::vector<double> indices;
  for (std::size_t d = 0; d < space.dimensions().size(); ++d) {
    const auto levels = static_cast<Index>(space.dimensions()[d].values.size());
    Eigen::VectorXd means = Eigen::VectorXd::Zero(levels);
    for (std::size_t i = 0; i < points.size(); ++i)
      means[static_cast<Index>(points[i][d])] += values[static_cast<Index>(i)];
    const auto of_each = space.points() / levels;
    means /= static_cast<double>(of_each);
    indices.push_back(all > 0.0 ? variance_of(means) / all : 0.0);
  }
  return indices;
}

std::vector<double> indices_of_sample(const Space& space, std::uint64_t seed,
                                      const std::function<Eigen::VectorXd(const std::vector<Point>&)>& function) {
  const std::uint64_t key = stream_key(seed, "sensitivity");
  const std::size_t dimensions = space.dimensions().size();
  std::vector<Point> sample;
  for (std::size_t i = 0; i < kSampledPoints; ++i) {
    std::vector<double> shares(dimensions);
    for (std::size_t d = 0; d < dimensions; ++d) shares[d] = uniform_at(key, i * dimensions + d);
    sample.push_back(space.at_shares(shares));
  }
  const double all = variance_of(in_blocks(sample, function));
  std::vector<double> indices;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::size_t levels = space.dimensions()[d].values.size(), taken = std::min(levels, kSampledLevels);
    Eigen::VectorXd means(static_cast<Index>(taken));
    for (std::size_t k = 0; k < taken; ++k) {
      std::vector<Point> moved = sample;
      for (Point& p : moved) p[d] = taken == 1 ? 0 : k * (levels - 1) / (taken - 1);
      means[static_cast<Index>(k)] = in_blocks(moved, function).mean();
    }
    indices.push_back(all > 0.0 ? variance_of(means) / all : 0.0);
  }
  return indices;
}

}  // namespace

std::vector<double> first_order_indices(const Space& space, std::uint64_t seed,
                                        const std::function<Eigen::VectorXd(const std::vector<Point>&)>& function) {
  return space.points() <= kWholeSpace ? indices_of_whole(space, function) : indices_of_sample(space, seed, function);
}

Sensitivity sensitivity_of(const Models& models, const Space& space, std::uint64_t seed) {
  const auto mean_of = [&](const GaussianProcess& process) {
    return [&](const std::vector<Point>& points) { return process.mean_at(space.encoded(points)); };
  };
  Sensitivity s;
  s.value = first_order_indices(space, seed, mean_of(models.of_value()));
  if (models.of_load()) s.load = first_order_indices(space, seed, mean_of(*models.of_load()));
  if (models.of_success()) s.success = first_order_indices(space, seed, mean_of(*models.of_success()));
  return s;
}

}  // namespace molen::tune
