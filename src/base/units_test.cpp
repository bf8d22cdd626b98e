#include "base/units.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

namespace molen {
namespace {

static_assert(!std::is_convertible_v<Bytes, Seconds>);
static_assert(!std::is_convertible_v<std::int64_t, Bytes>);

// Values just below and at the beginning of each unit.
TEST(Units, HumanBytes) {
  const std::pair<std::int64_t, const char*> cases[] = {{0, "0 B"},
                                                        {312, "312 B"},
                                                        {1023, "1023 B"},
                                                        {1024, "1.00 KiB"},
                                                        {-1024, "-1.00 KiB"},
                                                        {1536, "1.50 KiB"},
                                                        {(1 << 20) - 1, "1024.00 KiB"},
                                                        {1 << 20, "1.00 MiB"},
                                                        {std::int64_t{3} << 30, "3.00 GiB"},
                                                        {std::int64_t{5} << 40, "5.00 TiB"},
                                                        {std::int64_t{7} << 50, "7.00 PiB"},
                                                        {std::int64_t{1} << 60, "1024.00 PiB"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(human(Bytes(bytes)), text);
}

TEST(Units, HumanSeconds) {
  const std::pair<double, const char*> cases[] = {
      {0, "0.0 us"},       {12.34e-6, "12.3 us"}, {0.00099, "990.0 us"}, {0.001, "1.0 ms"},   {0.0123, "12.3 ms"},
      {0.999, "999.0 ms"}, {1, "1.00 s"},         {99.99, "99.99 s"},    {100, "1m40s"},      {125, "2m05s"},
      {3599, "59m59s"},    {3599.5, "1h00m"},     {3600, "1h00m"},       {3725, "1h02m"},     {86399, "23h59m"},
      {86400, "1d00h"},    {90000, "1d01h"},      {864000, "10d00h"},    {-0.5, "-500.0 ms"}, {-3725, "-1h02m"}};
  for (const auto& [seconds, text] : cases) EXPECT_EQ(human(Seconds(seconds)), text) << seconds;
}

TEST(Units, HumanCounts) {
  const std::pair<double, const char*> cases[] = {{0, "0"},           {999, "999"},        {1000, "1.00 k"},
                                                  {-1500, "-1.50 k"}, {56.4e6, "56.40 M"}, {8.03e9, "8.03 B"},
                                                  {1e12, "1.00 T"},   {5e15, "5000.00 T"}};
  for (const auto& [count, text] : cases) EXPECT_EQ(human_count(count), text) << count;
}

TEST(Units, PowerIsEnergyOverTime) {
  EXPECT_DOUBLE_EQ((Joules(30) / Seconds(2)).value, 15.0);
}

TEST(Units, FlopsHaveTheirUnit) {
  EXPECT_EQ(human(Flops(950)), "950 FLOP");
  EXPECT_EQ(human(Flops(2.5e9)), "2.50 GFLOP");
  EXPECT_EQ(human(Flops(7e14)), "700.00 TFLOP");
  EXPECT_EQ(human(Flops(3e24)), "3000000.00 EFLOP");
}

TEST(Units, CountsHaveTheirPlural) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
}

}  // namespace
}  // namespace molen
