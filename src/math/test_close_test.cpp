// Tests that the comparison of test_close.h fails when it must.
#include "math/test_close.h"

#include <limits>

namespace molen::math::testing {
namespace {

const std::vector<double> kWant{1.0, -2.0, 0.5, 4.0};
const Bound kBound{0x1p-24, 16, 4.0};

TEST(Close, AcceptsWhatRoundingExplains) {
  EXPECT_TRUE(close(kWant, kWant, kBound));
  EXPECT_TRUE(close({1.0, -2.0, 0.5 + 0.9 * 4 * kBound.relative(), 4.0}, kWant, kBound));
}
TEST(Close, RefusesOneElementBeyondTheBound) {
  EXPECT_FALSE(close({1.0, -2.0, 0.5 + 1.1 * 4 * kBound.relative(), 4.0}, kWant, kBound));
}
TEST(Close, RefusesNaNAndInfinity) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(close({1.0, nan, 0.5, 4.0}, kWant, kBound));
  EXPECT_FALSE(close({nan, nan, nan, nan}, kWant, kBound));
  EXPECT_FALSE(close({inf, -2.0, 0.5, 4.0}, kWant, kBound));
  EXPECT_FALSE(close({nan, 1.0}, {nan, 1.0}, kBound));
}
TEST(Close, RefusesScaledAnswers) {
  EXPECT_FALSE(close({1.001, -2.002, 0.5005, 4.004}, kWant, kBound));
  EXPECT_FALSE(close({-1.0, 2.0, -0.5, -4.0}, kWant, kBound));
}
TEST(Close, RefusesWhatProvesNothing) {
  EXPECT_FALSE(close({0, 0, 0, 0}, {0, 0, 0, 0}, kBound));
  EXPECT_FALSE(close({3, 3, 3}, {3, 3, 3}, kBound));
  EXPECT_FALSE(close({0, 0, 0, 0}, kWant, kBound));
  EXPECT_FALSE(close({}, {}, kBound));
  EXPECT_FALSE(close({1.0, -2.0, 0.5}, kWant, kBound));
}
TEST(Close, BoundGrowsWithLengthAndRoundoff) {
  EXPECT_DOUBLE_EQ((Bound{0x1p-8, 64, 2.0}).relative(), 2.0 * 8.0 / 256.0);
}

}  // namespace
}  // namespace molen::math::testing
