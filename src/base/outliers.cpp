#include "base/outliers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/units.h"

namespace molen {
namespace {

double middle_of(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

}  // namespace

Spread spread_of(std::span<const double> values) {
  Spread s;
  if (values.empty()) return s;
  s.median = middle_of({values.begin(), values.end()});
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  if (sum > 0.0) s.imbalance = std::ranges::max(values) * static_cast<double>(values.size()) / sum;
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - s.median));
  constexpr double kNormal = 1.4826;
  s.scaled_mad = kNormal * middle_of(deviations);
  s.judged = values.size() >= kLeastForOutliers;
  const double usual = std::max(kOutlierDeviations * s.scaled_mad, kOutlierShare * s.median);
  for (std::size_t i = 0; i < values.size() && s.judged; ++i)
    if (deviations[i] > usual) s.outliers.push_back(i);
  return s;
}

std::string spread_text(const Spread& s, std::span<const std::string> names, std::span<const double> values,
                        const std::string& noun) {
  MOLEN_CHECK(names.size() == values.size(), "{} names of {} values", names.size(), values.size());
  if (values.size() < 2) return "";
  const std::string of = counted(std::ssize(values), noun);
  std::string text = fmt::format("the greatest of {} has {:.3g} times the mean (imbalance); ", of, s.imbalance);
  if (!s.judged)
    return text + fmt::format("{} are too few to name outliers, at least {} are needed", of, kLeastForOutliers);
  if (s.outliers.empty())
    return text + fmt::format(
                      "no outliers: no distance from the median exceeds both {:g} scaled median absolute deviations "
                      "and {:g} % of the median",
                      kOutlierDeviations, 100 * kOutlierShare);
  text += "outliers:";
  for (const std::size_t i : s.outliers) {
    text += fmt::format("{} {}", i == s.outliers.front() ? "" : ",", names[i]);
    if (s.median > 0.0) text += fmt::format(" ({:+.1f} %)", 100.0 * (values[i] / s.median - 1.0));
  }
  return text;
}

Comparison compare(std::span<const Candidate> candidates) {
  const auto is_whole = [](const Candidate& c) { return c.value && c.lacking.empty(); };
  std::map<std::string, std::size_t> count;  // whole values by what they are made of
  for (const Candidate& c : candidates)
    if (is_whole(c)) ++count[c.made_of];
  std::string most;
  std::size_t of_most = 0;
  for (const Candidate& c : candidates)
    if (is_whole(c) && count[c.made_of] > of_most) most = c.made_of, of_most = count[c.made_of];
  Comparison all;
  for (const Candidate& c : candidates) {
    if (!c.lacking.empty() || !c.value)
      all.left_out.emplace_back(c.name, c.lacking.empty() ? "no reading" : c.lacking);
    else if (c.made_of != most)
      all.left_out.emplace_back(c.name, "other scopes: " + (c.made_of.empty() ? "not known" : c.made_of));
    else
      all.names.push_back(c.name), all.values.push_back(*c.value);
  }
  all.spread = spread_of(all.values);
  return all;
}

std::string comparison_text(const Comparison& comparison, const std::string& noun) {
  constexpr std::size_t kMostNamed = 10;
  std::string text = spread_text(comparison.spread, comparison.names, comparison.values, noun);
  const auto& left_out = comparison.left_out;
  if (left_out.empty()) return text;
  text += text.empty() ? "not compared:" : "; not compared:";
  for (std::size_t i = 0; i < std::min(left_out.size(), kMostNamed); ++i)
    text += fmt::format("{} {}, {}", i == 0 ? "" : ";", left_out[i].first, left_out[i].second);
  if (left_out.size() > kMostNamed) text += fmt::format("; and {} more", left_out.size() - kMostNamed);
  return text;
}

}  // namespace molen
