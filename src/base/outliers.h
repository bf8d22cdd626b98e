// Values that deviate from the others of their kind, such as the energy of the hosts of a job.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace molen {

inline constexpr std::size_t kLeastForOutliers = 4;  // of fewer values no deviation is usual
inline constexpr double kOutlierDeviations = 3.0, kOutlierShare = 0.05;

struct Spread {
  double median = 0.0;     // the mean of the two in the middle, of an even number
  double imbalance = 0.0;  // the greatest value over the mean
  // The median of the absolute deviations from the median, times 1.4826, so that it estimates the standard deviation of
  // a normal distribution (Rousseeuw and Croux, Alternatives to the median absolute deviation, 1993).
  double scaled_mad = 0.0;
  bool judged = false;                // there are enough values to name outliers
  std::vector<std::size_t> outliers;  // the places of those values, ascending
};

// An outlier is further from the median than 3 scaled median absolute deviations and than 5 % of the median, where
// there are at least 4 values: the deviations tell what is usual among these values, and the share leaves out what is
// unusual but small. The values must be finite and not negative; of none, all is 0.
Spread spread_of(std::span<const double> values);

// Says the imbalance and names the outliers, with their deviation from the median: "imbalance: the greatest of 5 nodes
// has 1.18 times the mean; outliers: n3 (+25.0 %)". "" for fewer than two values. `noun`: "node", "host". One name for
// each value.
std::string spread_text(const Spread& spread, std::span<const std::string> names, std::span<const double> values,
                        const std::string& noun);

}  // namespace molen
