#include "policy/loss_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json_fields.h"
#include "policy/paired.h"

namespace molen::policy {
namespace {

using Bins = std::vector<LossCurve::Bin>;

// Exponents that are looked at. Published ones of the steps or tokens of a run are 0.05 to 1; a transient falls faster.
constexpr double kLeastAlpha = 0.02, kMostAlpha = 4.0;
constexpr int kAlphas = 100;

struct Line {
  double e = 0.0, a = 0.0, residual = 0.0;  // weighted sum of squares
};

// Returns the best e >= 0 and a >= 0 for an exponent.
Line line_at(const Bins& bins, double alpha, double scale) {
  double w = 0.0, wx = 0.0, wy = 0.0, wxx = 0.0, wxy = 0.0;
  for (const auto& b : bins) {
    const double x = std::pow(b.step / scale, -alpha), weight = static_cast<double>(b.steps);
    w += weight, wx += weight * x, wy += weight * b.loss, wxx += weight * x * x, wxy += weight * x * b.loss;
  }
  Line line;
  const double det = w * wxx - wx * wx;
  if (det > 1e-12 * w * wxx) line.a = (w * wxy - wx * wy) / det;
  line.a = std::max(line.a, 0.0);
  line.e = (wy - line.a * wx) / w;
  if (line.e < 0.0) line.e = 0.0, line.a = wxy / wxx;
  for (const auto& b : bins) {
    const double off = b.loss - line.e - line.a * std::pow(b.step / scale, -alpha);
    line.residual += static_cast<double>(b.steps) * off * off;
  }
  return line;
}

// Returns the exponent with the least residual: the best of a grid, refined between its neighbours.
double best_alpha(const Bins& bins, double scale) {
  const double ratio = std::pow(kMostAlpha / kLeastAlpha, 1.0 / (kAlphas - 1));
  const auto residual = [&](double alpha) { return line_at(bins, alpha, scale).residual; };
  double best = kLeastAlpha, least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kAlphas; ++i) {
    const double alpha = kLeastAlpha * std::pow(ratio, i);
    if (const double r = residual(alpha); r < least) least = r, best = alpha;
  }
  double low = best / ratio, high = best * ratio;
  for (int i = 0; i < 60; ++i) {
    const double third = (high - low) / 3.0;
    if (residual(low + third) < residual(high - third))
      high -= third;
    else
      low += third;
  }
  return 0.5 * (low + high);
}

// Inverts a symmetric positive definite matrix of `n` rows in place, by Gauss and Jordan. Returns whether it could.
bool invert(double (&m)[3][3], int n) {
  for (int p = 0; p < n; ++p) {
    if (!(m[p][p] > 0.0) || !std::isfinite(m[p][p])) return false;
    const double pivot = 1.0 / m[p][p];
    m[p][p] = 1.0;
    for (int c = 0; c < n; ++c) m[p][c] *= pivot;
    for (int r = 0; r < n; ++r) {
      if (r == p) continue;
      const double factor = std::exchange(m[r][p], 0.0);
      for (int c = 0; c < n; ++c) m[r][c] -= factor * m[p][c];
    }
  }
  return true;
}

}  // namespace

void LossCurve::add(std::int64_t step, double loss) {
  if (!std::isfinite(loss)) return;
  if (bins_.empty() || bins_.back().steps >= length_) {
    if (bins_.size() == kMostBins) {
      for (std::size_t i = 0; i < kMostBins / 2; ++i) {
        const Bin &x = bins_[2 * i], &y = bins_[2 * i + 1];
        const std::int64_t steps = x.steps + y.steps;
        const double share = static_cast<double>(y.steps) / static_cast<double>(steps);
        bins_[i] = {x.step + share * (y.step - x.step), x.loss + share * (y.loss - x.loss), steps};
      }
      bins_.resize(kMostBins / 2);
      length_ *= 2;
    }
    bins_.push_back({});
  }
  Bin& bin = bins_.back();
  ++bin.steps;
  bin.step += (static_cast<double>(step) - bin.step) / static_cast<double>(bin.steps);
  bin.loss += (loss - bin.loss) / static_cast<double>(bin.steps);
}

Json LossCurve::to_json() const {
  Json bins = Json::array();
  for (const Bin& b : bins_) bins.push_back({{"step", b.step}, {"loss", b.loss}, {"steps", b.steps}});
  return {{"length", length_}, {"bins", bins}};
}

LossCurve LossCurve::from_json(const Json& json, const std::string& origin) {
  const JsonFields fields(json, origin);
  LossCurve curve;
  curve.length_ = fields.integer("length");
  const Json* bins = fields.find("bins");
  if (curve.length_ < 1 || !bins || !bins->is_array() || bins->size() > kMostBins)
    throw UsageError("{}: expected a length of at least 1 and up to {} bins", origin, kMostBins);
  for (const Json& bin : *bins) {
    const JsonFields of(bin, origin + ": bins");
    curve.bins_.push_back({of.number("step"), of.number("loss"), of.integer("steps")});
    if (curve.bins_.back().steps < 1 || curve.bins_.back().steps > curve.length_ || !(curve.bins_.back().step > 0.0))
      throw UsageError("{}: bins: a bin has 1 to {} steps, which are above 0", origin, curve.length_);
  }
  return curve;
}

Result<LossLaw> LossLaw::fit(const LossCurve& curve, std::int64_t after) {
  Bins bins;
  for (const auto& b : curve.bins())
    if (b.step - 0.5 * static_cast<double>(b.steps) >= static_cast<double>(after)) bins.push_back(b);
  if (bins.size() < kLeastBins)
    return Failure{
        fmt::format("{} points of the loss after step {} are too few; it takes {}", bins.size(), after, kLeastBins)};
  LossLaw law;
  law.scale_ = bins.back().step;
  law.alpha_ = best_alpha(bins, law.scale_);
  const Line line = line_at(bins, law.alpha_, law.scale_);
  law.e_ = line.e, law.a_ = line.a;
  const double edge = std::pow(kMostAlpha / kLeastAlpha, 1.0 / (kAlphas - 1));
  if (!(law.a_ > 0.0) || law.alpha_ <= kLeastAlpha * edge || law.alpha_ >= kMostAlpha / edge)
    return Failure{fmt::format("the loss after step {} does not follow a power law that falls", after)};
  if (!law.set_covariance(bins, line.residual))
    return Failure{fmt::format("the losses after step {} do not determine a power law", after)};
  return law;
}

// The covariance of nonlinear least squares, linearised at the fit: s^2 (J'WJ)^-1. A constant term at its bound is not
// a parameter.
bool LossLaw::set_covariance(const Bins& bins, double residual) {
  const bool constant = e_ > 0.0;
  const std::size_t first = constant ? 0 : 1, n = 3 - first;
  double products[3][3] = {};
  for (const auto& b : bins) {
    const double x = b.step / scale_, power = std::pow(x, -alpha_);
    const std::array<double, 3> slope{1.0, power, -a_ * power * std::log(x)};
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        products[i][j] += static_cast<double>(b.steps) * slope[first + i] * slope[first + j];
  }
  degrees_ = static_cast<int>(bins.size()) - static_cast<int>(n);
  if (!invert(products, static_cast<int>(n))) return false;
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) covariance_[first + i][first + j] = products[i][j] * residual / degrees_;
  return true;
}

Range LossLaw::at(double step) const {
  const double x = step / scale_, power = std::pow(x, -alpha_), value = e_ + a_ * power;
  const double slope[3] = {1.0, power, -a_ * power * std::log(x)};
  double variance = 0.0;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) variance += slope[i] * covariance_[i][j] * slope[j];
  const double half = student_quantile(0.5 * (1.0 + kRangeConfidence), degrees_) * std::sqrt(std::max(variance, 0.0));
  return {value, value - half, value + half};
}

}  // namespace molen::policy
