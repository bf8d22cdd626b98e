#include "data/mixture.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace molen::data {
namespace {

// floor(n * part / whole) without overflow.
std::int64_t share(std::int64_t n, std::uint64_t part, std::uint64_t whole) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::int64_t>(static_cast<Wide>(static_cast<std::uint64_t>(n)) * part / whole);
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) : prefix_{0} {
  double sum = 0;
  for (double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight)) throw UsageError("data.train: weight {} must be above 0", weight);
    sum += weight;
  }
  if (weights.empty()) throw UsageError("data.train: no entry, so there is nothing to train on");
  if (!std::isfinite(sum)) throw UsageError("data.train: the weights are too large");
  for (double weight : weights) {
    const auto integer = static_cast<std::uint64_t>(std::llround(weight / sum * 0x1p32));
    prefix_.push_back(prefix_.back() + std::max<std::uint64_t>(1, integer));
  }
}

Mixture::Place Mixture::at(std::int64_t sample) const {
  MOLEN_CHECK(sample >= 0, "sample {}", sample);
  std::size_t first = 0, last = prefix_.size() - 1;
  std::int64_t index = sample;
  while (last - first > 1) {
    const std::size_t middle = (first + last) / 2;
    const std::uint64_t left = prefix_[middle] - prefix_[first], whole = prefix_[last] - prefix_[first];
    const std::int64_t before = share(index, left, whole);
    if (share(index + 1, left, whole) > before) {
      index = before;
      last = middle;
    } else {
      index -= before;
      first = middle;
    }
  }
  return {static_cast<int>(first), index};
}

}  // namespace molen::data
