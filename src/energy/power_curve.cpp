#include "energy/power_curve.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::energy {
namespace {

// A run of points that share one value.
struct Block {
  std::size_t points = 0;
  double sum = 0, least = 0, most = 0;
  double mean() const { return sum / static_cast<double>(points); }
};

std::vector<Block> pooled(const std::vector<PowerPoint>& points) {
  std::vector<Block> blocks;
  for (const PowerPoint& p : points) {
    blocks.push_back({1, p.watts.value, p.watts.least, p.watts.most});
    while (blocks.size() > 1 && blocks.back().mean() < blocks[blocks.size() - 2].mean()) {
      const Block last = blocks.back();
      blocks.pop_back();
      Block& before = blocks.back();
      before.points += last.points, before.sum += last.sum;
      before.least = std::min(before.least, last.least), before.most = std::max(before.most, last.most);
    }
  }
  return blocks;
}

}  // namespace

PowerCurve::PowerCurve(std::vector<PowerPoint> points) : points_(std::move(points)) {
  MOLEN_CHECK(!points_.empty(), "a power curve without points");
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const auto& [u, w] = points_[i];
    MOLEN_CHECK(u >= 0 && u <= 1 && (i == 0 || u > points_[i - 1].utilisation), "utilisation {} of point {}", u, i);
    MOLEN_CHECK(w.least >= 0 && w.least <= w.value && w.value <= w.most && std::isfinite(w.most),
                "power {} between {} and {}", w.value, w.least, w.most);
  }
  std::size_t at = 0;
  for (const Block& block : pooled(points_))
    for (std::size_t i = 0; i < block.points; ++i) points_[at++].watts = {block.mean(), block.least, block.most};
}

std::optional<Estimate> ModelledJoules::total() const {
  std::optional<Estimate> sum;
  for (const auto& [scope, estimate] : scopes) {
    if (!estimate || !summed.contains(scope)) continue;
    if (!sum) sum = Estimate{};
    *sum += *estimate;
  }
  return sum;
}

Estimate PowerCurve::watts_at(double utilisation) const {
  const auto above =
      std::find_if(points_.begin(), points_.end(), [&](const PowerPoint& p) { return p.utilisation >= utilisation; });
  if (above == points_.end()) return points_.back().watts;
  if (above == points_.begin() || above->utilisation == utilisation) return above->watts;
  const PowerPoint& below = *(above - 1);
  const double share = (utilisation - below.utilisation) / (above->utilisation - below.utilisation);
  return {below.watts.value + share * (above->watts.value - below.watts.value),
          std::min(below.watts.least, above->watts.least), std::max(below.watts.most, above->watts.most)};
}

}  // namespace molen::energy
