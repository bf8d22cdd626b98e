#include "ledger/apportion.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace molen::ledger {

std::vector<std::int64_t> apportion(std::int64_t total, const std::vector<double>& shares) {
  if (shares.empty()) throw Error("{} ticks and no entry that takes them", total);
  std::vector<std::int64_t> whole;
  std::vector<double> lost;
  for (const double share : shares) {
    // 2^62 is below the largest whole number, so the conversion is defined.
    if (!(share >= 0.0) || share > 0x1p62) throw Error("a share of {} ticks", share);
    whole.push_back(static_cast<std::int64_t>(std::floor(share)));
    lost.push_back(share - std::floor(share));
  }
  std::int64_t left = total - std::accumulate(whole.begin(), whole.end(), std::int64_t{0});
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lost[a] > lost[b]; });
  for (std::size_t i = 0; i < order.size() && left > 0; ++i, --left) ++whole[order[i]];
  const auto largest = std::max_element(whole.begin(), whole.end());
  *largest += left;
  return whole;
}

}  // namespace molen::ledger
