#include "train/state/noise_scale.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/json_fields.h"
#include "policy/paired.h"

namespace molen::train {
namespace {

// The unbiased estimates of one measurement, or sums of them (appendix A.1).
struct Moments {
  double noise = 0.0;    // tr(Sigma): squared norm x tokens
  double squares = 0.0;  // |G|^2: squared norm
  std::optional<double> ratio() const {
    return noise > 0.0 && squares > 0.0 ? std::optional(noise / squares) : std::nullopt;
  }
};

Moments moments_of(const NoisePair& p) {
  const double small = p.small_norm * p.small_norm, large = p.large_norm * p.large_norm;
  return {(small - large) / (1.0 / p.small_tokens - 1.0 / p.large_tokens),
          (p.large_tokens * large - p.small_tokens * small) / (p.large_tokens - p.small_tokens)};
}

bool sensible(const NoisePair& p) {
  return p.small_tokens > 0.0 && p.large_tokens > p.small_tokens && std::isfinite(p.large_tokens) &&
         p.small_norm >= 0.0 && std::isfinite(p.small_norm) && p.large_norm >= 0.0 && std::isfinite(p.large_norm);
}

// Half the width of the interval of 95 % of a ratio of sums: the jackknife's standard error times Student's quantile.
std::optional<double> half_width(const std::vector<Moments>& all, const Moments& sum) {
  const auto n = static_cast<double>(all.size());
  if (all.size() < 3) return std::nullopt;
  std::vector<double> without;
  double mean = 0.0;
  for (const Moments& one : all) {
    const auto ratio = Moments{sum.noise - one.noise, sum.squares - one.squares}.ratio();
    if (!ratio) return std::nullopt;
    without.push_back(*ratio);
    mean += *ratio / n;
  }
  double squares = 0.0;
  for (const double ratio : without) squares += (ratio - mean) * (ratio - mean);
  return policy::student_quantile(0.975, static_cast<int>(all.size()) - 1) * std::sqrt((n - 1.0) / n * squares);
}

}  // namespace

std::int64_t small_batch_of(std::int64_t global_batch) {
  return std::max<std::int64_t>(1, global_batch / 8);
}

void NoiseScale::add(const NoisePair& pair) {
  MOLEN_CHECK(sensible(pair), "gradient norms {} and {} of {} and {} tokens", pair.small_norm, pair.large_norm,
              pair.small_tokens, pair.large_tokens);
  pairs_.push_back(pair);
  if (pairs_.size() > kKept) pairs_.pop_front();
}

std::optional<NoiseScale::Estimate> NoiseScale::estimate() const {
  std::vector<Moments> all;
  Moments sum;
  for (const NoisePair& pair : pairs_) {
    all.push_back(moments_of(pair));
    sum.noise += all.back().noise;
    sum.squares += all.back().squares;
  }
  const auto ratio = sum.ratio();
  if (!ratio) return std::nullopt;
  Estimate e{*ratio, {}, {}, static_cast<std::int64_t>(all.size())};
  if (const auto half = half_width(all, sum)) {
    e.low = std::max(0.0, *ratio - *half);
    e.high = *ratio + *half;
  }
  return e;
}

Json NoiseScale::to_json() const {
  Json pairs = Json::array();
  for (const NoisePair& p : pairs_)
    pairs.push_back({{"small_tokens", p.small_tokens},
                     {"large_tokens", p.large_tokens},
                     {"small_norm", p.small_norm},
                     {"large_norm", p.large_norm}});
  return pairs;
}

NoiseScale NoiseScale::from_json(const Json& pairs, const std::string& origin) {
  if (!pairs.is_array() || pairs.size() > kKept) throw UsageError("{}: must be a list of at most {}", origin, kKept);
  NoiseScale scale;
  for (const Json& one : pairs) {
    const JsonFields fields(one, fmt::format("{}[{}]", origin, scale.pairs_.size()));
    const NoisePair pair{fields.number("small_tokens"), fields.number("large_tokens"), fields.number("small_norm"),
                         fields.number("large_norm")};
    if (!sensible(pair)) throw UsageError("{}: no pair of gradient norms", fields.origin());
    scale.pairs_.push_back(pair);
  }
  return scale;
}

}  // namespace molen::train
