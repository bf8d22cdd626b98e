#include "policy/paired.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/median.h"

namespace molen::policy {
namespace {

// A step is left out where it is further from the median than this many standard deviations, as the median distance of
// the others gives them, and than this share of the median.
constexpr double kFarDeviations = 5.0, kFarShare = 0.05;
constexpr double kDeviationOfMedian = 1.4826;  // standard deviations in a median distance, of a normal distribution

// Returns the continued fraction of the incomplete beta function (Lentz's method).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kExact = 1e-15;
  const auto away = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1.0, d = 1.0 / away(1.0 - (a + b) * x / (a + 1.0)), h = d;
  for (int m = 1; m < 500; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m));
    d = 1.0 / away(1.0 + even * d);
    c = away(1.0 + even / c);
    h *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0));
    d = 1.0 / away(1.0 + odd * d);
    c = away(1.0 + odd / c);
    h *= d * c;
    if (std::abs(d * c - 1.0) < kExact) break;
  }
  return h;
}

// Returns the regularised incomplete beta function.
double incomplete_beta(double a, double b, double x) {
  if (x <= 0.0) return 0.0;
  if (x >= 1.0) return 1.0;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1.0) / (a + b + 2.0) ? front * beta_fraction(a, b, x) / a
                                       : 1.0 - front * beta_fraction(b, a, 1.0 - x) / b;
}

// Returns the probability that Student's t exceeds `t`, which is not negative.
double student_tail(double t, int degrees) {
  return 0.5 * incomplete_beta(0.5 * degrees, 0.5, degrees / (degrees + t * t));
}

Interval exponential(const Interval& logs) {
  return {std::exp(logs.value), std::exp(logs.low), std::exp(logs.high), logs.pairs};
}

std::optional<double> mean_of(const std::optional<double>& a, const std::optional<double>& b) {
  return a && b ? std::optional(0.5 * (*a + *b)) : std::nullopt;
}

}  // namespace

void require_valid(const SamplingOptions& o) {
  const auto refuse = [](bool wrong, const char* what) {
    if (wrong) throw UsageError("energy policy: {}", what);
  };
  refuse(o.settle_steps < 0, "settle_steps must not be negative");
  refuse(!(o.settle_time.value >= 0.0) || !std::isfinite(o.settle_time.value), "settle_time must not be negative");
  refuse(o.block_steps < 1, "block_steps must be at least 1");
  refuse(!(o.block_time.value >= 0.0) || !std::isfinite(o.block_time.value), "block_time must not be negative");
  refuse(o.least_pairs < 2, "least_pairs must be at least 2");
  refuse(o.most_pairs < o.least_pairs, "most_pairs must be at least least_pairs");
  refuse(!(o.confidence > 0.5 && o.confidence < 1.0), "confidence must be between 0.5 and 1");
}

void BlockCollector::begin(bool changed) {
  skipped_ = changed ? 0 : options_.settle_steps;
  skipped_s_ = changed ? 0.0 : options_.settle_time.value;
  seconds_ = 0.0;
  steps_.clear();
}

std::optional<Block> BlockCollector::add(const StepReading& reading) {
  if (!(reading.seconds.value > 0.0) || !std::isfinite(reading.seconds.value)) return std::nullopt;
  if (skipped_ < options_.settle_steps || skipped_s_ < options_.settle_time.value) {
    ++skipped_;
    skipped_s_ += reading.seconds.value;
    return std::nullopt;
  }
  steps_.push_back(reading);
  seconds_ += reading.seconds.value;
  if (static_cast<int>(steps_.size()) < options_.block_steps || seconds_ < options_.block_time.value)
    return std::nullopt;
  std::vector<double> times, distances;
  for (const StepReading& s : steps_) times.push_back(s.seconds.value);
  const double middle = median(times);
  for (const double t : times) distances.push_back(std::abs(t - middle));
  const double far = std::max(kFarDeviations * kDeviationOfMedian * median(distances), kFarShare * middle);
  Block block;
  double joules = 0.0;
  bool all_read = true;
  for (const StepReading& s : steps_) {
    if (std::abs(s.seconds.value - middle) > far) continue;
    ++block.steps;
    block.seconds += s.seconds.value;
    const bool read = s.joules && std::isfinite(s.joules->value) && s.joules->value >= 0.0;
    all_read = all_read && read;
    joules += read ? s.joules->value : 0.0;
  }
  block.seconds /= block.steps;
  if (all_read && joules > 0.0) block.joules = joules / block.steps;
  return block;
}

double student_quantile(double p, int degrees) {
  MOLEN_CHECK(p > 0.0 && p < 1.0 && degrees >= 1, "quantile {} of {} degrees", p, degrees);
  if (p < 0.5) return -student_quantile(1.0 - p, degrees);
  double low = 0.0, high = 1.0;
  while (student_tail(high, degrees) > 1.0 - p && high < 1e12) high *= 2.0;
  for (int i = 0; i < 200 && high - low > 1e-13 * high; ++i) {
    const double middle = 0.5 * (low + high);
    (student_tail(middle, degrees) > 1.0 - p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

Interval mean_interval(const std::vector<double>& values, double confidence) {
  Interval result;
  result.pairs = static_cast<int>(values.size());
  for (const double v : values) result.value += v / static_cast<double>(values.size());
  if (values.size() < 2) {
    result.low = -std::numeric_limits<double>::infinity();
    result.high = std::numeric_limits<double>::infinity();
    return result;
  }
  double squares = 0.0;
  for (const double v : values) squares += (v - result.value) * (v - result.value);
  const double n = static_cast<double>(values.size());
  const double half = student_quantile(0.5 + 0.5 * confidence, result.pairs - 1) * std::sqrt(squares / (n - 1.0) / n);
  result.low = result.value - half;
  result.high = result.value + half;
  return result;
}

bool Experiment::add(const Block& block) {
  blocks_.push_back(block);
  if (blocks_.size() < 4) return false;
  Pair pair;
  pair.reference_s = 0.5 * (blocks_[0].seconds + blocks_[3].seconds);
  pair.candidate_s = 0.5 * (blocks_[1].seconds + blocks_[2].seconds);
  pair.reference_j = mean_of(blocks_[0].joules, blocks_[3].joules);
  pair.candidate_j = mean_of(blocks_[1].joules, blocks_[2].joules);
  pairs_.push_back(pair);
  blocks_.clear();
  return true;
}

Interval Experiment::seconds_ratio(double confidence) const {
  std::vector<double> logs;
  for (const Pair& p : pairs_) logs.push_back(std::log(p.candidate_s / p.reference_s));
  return exponential(mean_interval(logs, confidence));
}

std::optional<Interval> Experiment::joules_ratio(double confidence) const {
  std::vector<double> logs;
  for (const Pair& p : pairs_) {
    if (!p.reference_j || !p.candidate_j) return std::nullopt;
    logs.push_back(std::log(*p.candidate_j / *p.reference_j));
  }
  return exponential(mean_interval(logs, confidence));
}

std::optional<Interval> Savings::joules(double confidence) const {
  std::vector<double> saved;
  for (const Pair& p : pairs_) {
    if (!p.reference_j || !p.candidate_j) return std::nullopt;
    saved.push_back(*p.reference_j - *p.candidate_j);
  }
  return saved.size() < 2 ? std::nullopt : std::optional(mean_interval(saved, confidence));
}

std::optional<Interval> Savings::seconds(double confidence) const {
  std::vector<double> saved;
  for (const Pair& p : pairs_) saved.push_back(p.reference_s - p.candidate_s);
  return saved.size() < 2 ? std::nullopt : std::optional(mean_interval(saved, confidence));
}

std::string Savings::text(double confidence) const {
  const auto time = seconds(confidence), energy = joules(confidence);
  if (!time) return "no savings are claimed: fewer than two pairs were measured";
  if (!energy) return "no savings are claimed: steps have no joules";
  double reference_j = 0.0, reference_s = 0.0;
  for (const Pair& p : pairs_) {
    reference_j += *p.reference_j / pairs();
    reference_s += p.reference_s / pairs();
  }
  return fmt::format(
      "saves {:.4g} J a step ({:.4g} to {:.4g} J with {:g} % confidence; {:.2f} %), which takes {:.3g} s longer "
      "({:.3g} "
      "to {:.3g} s; {:.2f} %), by {} pairs",
      energy->value, energy->low, energy->high, 100 * confidence, 100 * energy->value / reference_j, -time->value,
      -time->high, -time->low, -100 * time->value / reference_s, pairs());
}

}  // namespace molen::policy
