#include "ledger/apportion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace molen::ledger {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& whole) {
  return std::accumulate(whole.begin(), whole.end(), std::int64_t{0});
}

TEST(Apportion, TheLargestRemaindersGetWhatIsLeft) {
  EXPECT_EQ(apportion(10, {3.3, 3.3, 3.4}), (std::vector<std::int64_t>{3, 3, 4}));
  EXPECT_EQ(apportion(10, {0.6, 2.7, 6.7}), (std::vector<std::int64_t>{0, 3, 7}));
  EXPECT_EQ(apportion(8, {2.5, 3.0, 2.5}), (std::vector<std::int64_t>{3, 3, 2}))
      << "the first of two that lose as much";
  EXPECT_EQ(apportion(0, {0.0, 0.0}), (std::vector<std::int64_t>{0, 0}));
}

TEST(Apportion, SumsAreExactAndNoShareMovesByATick) {
  const std::uint64_t key = stream_key(3, "apportion");
  for (std::uint64_t c = 0; c < 500; ++c) {
    const auto total = static_cast<std::int64_t>(std::exp2(40 * uniform_at(key, 20 * c)));
    std::vector<double> shares;
    for (std::uint64_t i = 0; i < 7; ++i) shares.push_back(uniform_at(key, 20 * c + 1 + i));
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share *= static_cast<double>(total) / sum;
    const auto whole = apportion(total, shares);
    EXPECT_EQ(sum_of(whole), total);
    // Rounded shares add up to the total but for less than a tick, so each moves by less than one, and by the rounding
    // of doubles below 2^40.
    for (std::size_t i = 0; i < shares.size(); ++i)
      EXPECT_LT(std::abs(static_cast<double>(whole[i]) - shares[i]), 1.0 + 0x1p-10) << c;
  }
}

TEST(Apportion, SumsAreExactBeyondThePrecisionOfDoubles) {
  const std::int64_t total = (std::int64_t{1} << 61) + 12345;  // 16 years of 1 kW in ticks of 2^-32 J
  const auto whole = apportion(total, {0x1p60, 0x1p60 - 3.0, 7.5});
  EXPECT_EQ(sum_of(whole), total);
  EXPECT_NEAR(static_cast<double>(whole[2]), 7.5, 1.0);
}

TEST(Apportion, SharesThatAreNoneAreRefused) {
  EXPECT_THROW(apportion(3, {}), Error);
  EXPECT_THROW(apportion(3, {4.0, -1.0}), Error);
  EXPECT_THROW(apportion(3, {std::nan("")}), Error);
  EXPECT_THROW(apportion(3, {std::numeric_limits<double>::infinity()}), Error);
}

}  // namespace
}  // namespace molen::ledger
