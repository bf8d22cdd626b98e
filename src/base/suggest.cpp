#include "base/suggest.h"

#include <algorithm>
#include <vector>

namespace molen {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::string nearest(std::string_view name, std::span<const std::string> valid) {
  // Names that people type are short, and there are few valid ones. Files may hold longer names, and the time of a
  // comparison is the product of the lengths.
  constexpr std::size_t kLongest = 256, kMost = 1 << 14;
  if (name.size() > kLongest || valid.size() > kMost) return "";
  const int limit = std::max(2, static_cast<int>(name.size()) / 3);
  std::string best;
  int best_distance = limit + 1;
  for (const auto& candidate : valid) {
    if (candidate.size() > kLongest) continue;
    const int distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> valid) {
  const std::string best = nearest(name, valid);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace molen
