// The gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", arXiv 1812.06162):
// the batch size near which doubling the batch stops to save half of the steps. A batch that is much smaller wastes no
// tokens, and a batch that is much larger wastes most of what it adds (docs/calculus.md).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/json.h"

namespace molen::train {

// The gradients of two batches at the same parameters. The large batch may contain the small one.
struct NoisePair {
  double small_tokens = 0.0, large_tokens = 0.0;  // with a label; small < large
  double small_norm = 0.0, large_norm = 0.0;      // of the gradient of the mean loss, before clipping
  bool operator==(const NoisePair&) const = default;
};

// The number of samples of a step whose gradient is compared with that of the whole batch: an eighth, at least one.
std::int64_t small_batch_of(std::int64_t global_batch);

class NoiseScale {
 public:
  // The estimate is of the last kKept measurements, because the noise scale grows while the loss falls.
  static constexpr std::size_t kKept = 64;

  struct Estimate {
    double tokens = 0.0;
    std::optional<double> low, high;  // interval of 95 %; absent for fewer than three measurements or where it is open
    std::int64_t measurements = 0;
  };

  void add(const NoisePair& pair);
  // Returns tr(Sigma) / |G|^2 in tokens (eq. 2.8), where both are means over the measurements of the unbiased estimates
  // of appendix A.1. Sigma is the covariance of the gradient of one token, and G is the true gradient. The interval is
  // that of the jackknife. Returns none where the measurements do not tell the gradient from its noise, so that one of
  // the means is not positive.
  std::optional<Estimate> estimate() const;

  const std::deque<NoisePair>& pairs() const { return pairs_; }
  Json to_json() const;
  // Throws UsageError that names `origin` for JSON that `to_json` cannot have written.
  static NoiseScale from_json(const Json& pairs, const std::string& origin);

 private:
  std::deque<NoisePair> pairs_;  // oldest first
};

}  // namespace molen::train
