#include "arch/alibi.h"

#include <gtest/gtest.h>

namespace molen::arch {
namespace {

TEST(Alibi, PowersOfTwoAndBetween) {
  EXPECT_EQ(alibi_slopes(8), (std::vector<double>{0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625}));
  const auto six = alibi_slopes(6);  // the four slopes 2^-2 ... 2^-8, then every other slope of eight heads
  ASSERT_EQ(six.size(), 6u);
  EXPECT_DOUBLE_EQ(six[0], 0.25);
  EXPECT_DOUBLE_EQ(six[4], 0.5);
  EXPECT_DOUBLE_EQ(six[5], 0.125);
}

}  // namespace
}  // namespace molen::arch
