#include "data/attended.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace molen::data {

double attended_share(std::span<const std::int32_t> starts) {
  const auto length = static_cast<double>(starts.size());
  double scores = 0.0;
  for (std::size_t i = 0; i < starts.size(); ++i) scores += static_cast<double>(i) + 1.0 - starts[i];
  return scores / (length * (length + 1.0) / 2.0);
}

std::pair<double, double> interval_of(const Attended& attended, std::int64_t sequences) {
  constexpr double kDeviations = 1.2816;  // of a normal distribution, for 80 %
  const double half = kDeviations * attended.deviation / std::sqrt(static_cast<double>(sequences));
  return {std::max(0.0, attended.mean - half), std::min(1.0, attended.mean + half)};
}

Attended attended_share(const Dataset& dataset, std::int64_t first, std::int64_t count) {
  MOLEN_CHECK(count > 0, "{} sequences", count);
  const auto length = static_cast<std::size_t>(dataset.sequence_length());
  std::vector<std::int32_t> tokens(length + 1), starts(length);
  double sum = 0.0, squares = 0.0;
  for (std::int64_t k = first; k < first + count; ++k) {
    dataset.read(k, tokens);
    document_starts(std::span(tokens).first(length), dataset.end_of_text(k), starts);
    const double share = attended_share(starts);
    sum += share, squares += share * share;
  }
  const auto n = static_cast<double>(count);
  const double mean = sum / n;
  return {mean, std::sqrt(std::max(0.0, squares / n - mean * mean)), count};
}

}  // namespace molen::data
