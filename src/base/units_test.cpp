#include "base/units.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace molen {
namespace {

static_assert(!std::is_convertible_v<Bytes, Seconds>);
static_assert(!std::is_convertible_v<std::int64_t, Bytes>);

TEST(Units, HumanBytes) {
  EXPECT_EQ(human(Bytes(312)), "312 B");
  EXPECT_EQ(human(Bytes(1536)), "1.50 KiB");
  EXPECT_EQ(human(Bytes(std::int64_t{3} << 30)), "3.00 GiB");
}

TEST(Units, HumanSeconds) {
  EXPECT_EQ(human(Seconds(0.0123)), "12.3 ms");
  EXPECT_EQ(human(Seconds(3725)), "1h02m");
  EXPECT_EQ(human(Seconds(125)), "2m05s");
}

TEST(Units, PowerIsEnergyOverTime) {
  EXPECT_DOUBLE_EQ((Joules(30) / Seconds(2)).value, 15.0);
}

}  // namespace
}  // namespace molen
