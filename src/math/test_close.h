// The comparison of the kernels' tests: bound = c * unit_roundoff * sqrt(n) * scale, where n is the length of the
// longest sum that an element depends on, and scale is the largest expected magnitude (or that of the terms, when the
// formula cancels). A comparison that would prove nothing fails: NaN, infinity, only zeros, a constant when there is
// more than one element, empty or differently sized data.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace molen::math::testing {

struct Bound {
  double unit_roundoff = 0x1p-53;
  std::int64_t length = 1;  // n: terms of the longest sum
  double c = 8.0;           // roundings per term, a small number that follows from the formula
  double terms = 0.0;       // magnitude of the terms that cancel, if the formula has such terms
  double relative() const { return c * unit_roundoff * std::sqrt(static_cast<double>(length)); }
};

inline bool all_finite(const std::vector<double>& v) {
  for (const double x : v)
    if (!std::isfinite(x)) return false;
  return true;
}
inline bool constant(const std::vector<double>& v) {
  for (const double x : v)
    if (x != v[0]) return false;
  return true;
}

inline ::testing::AssertionResult close(const std::vector<double>& got, const std::vector<double>& want,
                                        const Bound& bound) {
  if (got.size() != want.size())
    return ::testing::AssertionFailure() << got.size() << " elements where " << want.size() << " were wanted";
  if (want.empty()) return ::testing::AssertionFailure() << "nothing to compare";
  if (!all_finite(want))
    return ::testing::AssertionFailure() << "the wanted values are not finite: this proves nothing";
  if (!all_finite(got)) return ::testing::AssertionFailure() << "NaN or infinity";
  double scale = 0.0;
  for (const double x : want) scale = std::max(scale, std::abs(x));
  if (scale == 0.0) return ::testing::AssertionFailure() << "nothing but zeros wanted: this proves nothing";
  if (want.size() > 1 && constant(want))
    return ::testing::AssertionFailure() << "a constant wanted: this proves nothing";
  if (got.size() > 1 && constant(got)) return ::testing::AssertionFailure() << "nothing but " << got[0];
  double worst = 0.0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    if (const double error = std::abs(got[i] - want[i]); error > worst) worst = error, at = i;
  scale = std::max(scale, bound.terms);
  if (worst <= bound.relative() * scale) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "element " << at << " of " << got.size() << " is " << got[at]
                                       << " instead of " << want[at] << ": error " << worst / scale
                                       << " of the largest value, bound " << bound.relative();
}

// Checks a gradient by complex step, which has no error but rounding: within 1e-12 of the largest wanted element.
inline void expect_gradient(const std::vector<double>& got, const std::vector<double>& want, const char* what) {
  double scale = 0.0, worst = 0.0;
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what << " " << i;
    scale = std::max(scale, std::abs(want[i]));
    worst = std::max(worst, std::abs(got[i] - want[i]));
  }
  EXPECT_GT(scale, 0.0) << what;
  EXPECT_LE(worst, 1e-12 * scale) << what;
}

}  // namespace molen::math::testing
