// Values that deviate from the others of their kind, such as the energy of the hosts of a job.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace molen {

inline constexpr std::size_t kLeastForOutliers = 4;  // fewer values do not show which deviation is usual
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

// An outlier's distance from the median exceeds both 3 scaled median absolute deviations and 5 % of the median, where
// there are at least 4 values: the deviations tell what is usual among these values, and the share leaves out what is
// unusual but small. The values must be finite and not negative; without values, all is 0.
Spread spread_of(std::span<const double> values);

// Says the imbalance and names the outliers, with their deviation from the median: "the greatest of 5 nodes has 1.18
// times the mean (imbalance); outliers: n3 (+25.0 %)". "" for fewer than two values. `noun`: "node", "host". One name
// for each value.
std::string spread_text(const Spread& spread, std::span<const std::string> names, std::span<const double> values,
                        const std::string& noun);

// A value that may not be comparable with the others.
struct Candidate {
  std::string name;
  std::optional<double> value;  // nothing without a reading
  std::string made_of;          // the scopes that the value adds up, such as "cpu-package0 dram0"; empty: not known
  std::string lacking;          // what it lacks of them, in words; empty if it is whole
};

// Values that are whole and made of the same scopes, and the candidates that are not.
struct Comparison {
  std::vector<std::string> names;
  std::vector<double> values;
  Spread spread;
  std::vector<std::pair<std::string, std::string>> left_out;  // name and reason, in the order of the candidates
};

// Compares the whole values that are made of the most common scopes; among sets of scopes that are equally common, the
// first of the candidates decides. A value that lacks something, or adds up other scopes, would look like an outlier.
Comparison compare(std::span<const Candidate> candidates);

// Says the spread, and names what is not compared: "...; not compared: n2, 5 periods without a reading". "" where there
// is nothing to say. Of many that are not compared, it names the first ones.
std::string comparison_text(const Comparison& comparison, const std::string& noun);

}  // namespace molen
