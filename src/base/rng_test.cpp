#include "base/rng.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/test_golden.h"

namespace molen {
namespace {

std::vector<std::uint64_t> permutation(std::uint64_t key, std::uint64_t n) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t i = 0; i < n; ++i) all.push_back(permute_at(key, i, n));
  return all;
}

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
TEST(Rng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox(0, 0, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ull, ~0ull, ~0ull), (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, NormalMoments) {
  constexpr int kCount = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = normal_at(stream_key(7, "w"), static_cast<std::uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  // Five standard errors of the mean and of the variance of kCount standard normals.
  EXPECT_LT(std::abs(sum / kCount), 5 / std::sqrt(kCount));
  EXPECT_LT(std::abs(squares / kCount - 1), 5 * std::sqrt(2.0 / kCount));
}

TEST(Rng, NamesAndSeedsGiveDifferentStreams) {
  EXPECT_NE(stream_key(1, "a"), stream_key(1, "b"));
  EXPECT_NE(stream_key(1, "a"), stream_key(2, "a"));
}

// Initial weights and the order of samples follow from these values: a later version that resumes a run must compute
// the same ones.
TEST(Rng, ValuesStayAsTheyAre) {
  EXPECT_EQ(stream_key(7, "data.train[0]"), 3637843058465516851u);
  EXPECT_EQ(permutation(41, 12), (std::vector<std::uint64_t>{5, 6, 7, 4, 0, 3, 2, 11, 10, 9, 8, 1}));
  EXPECT_DOUBLE_EQ(normal_at(3, 0), 0.44592406723503097);
  EXPECT_DOUBLE_EQ(normal_at(3, 1), -0.85944669049193267);
  EXPECT_DOUBLE_EQ(normal_at(3, 123456789), -0.44525369206939969);
}

// The upper 53 of the 64 bits, the first word above the second.
TEST(Rng, UniformsAreTheBitsOfPhilox) {
  EXPECT_EQ(uniform_at(0, 0), static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
  EXPECT_EQ(uniform_at(~0ull, ~0ull), static_cast<double>(philox(~0ull, ~0ull)[0]) * 0x1p-32 +
                                          static_cast<double>(philox(~0ull, ~0ull)[1] >> 11) * 0x1p-53);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(uniform_at(5, i), 0.0);
    EXPECT_LT(uniform_at(5, i), 1.0);
  }
}

TEST(Rng, PermutationsOfOneAndOfMany) {
  const GoldenMessages golden;
  EXPECT_EQ(permute_at(9, 0, 1), 0u);
  EXPECT_NOTED(permute_at(9, 1, 1), Error);
  EXPECT_NOTED(permute_at(9, 0, 0), Error);
  constexpr std::uint64_t kMany = std::uint64_t{1} << 40;
  std::set<std::uint64_t> places;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::uint64_t place = permute_at(9, i * (kMany / 1000), kMany);
    EXPECT_LT(place, kMany);
    places.insert(place);
  }
  EXPECT_EQ(places.size(), 1000u);
  EXPECT_LT(*places.begin(), kMany / 100);
  EXPECT_GT(*places.rbegin(), kMany - kMany / 100);
}

// Each element goes to each place about equally often over keys: five standard deviations of a binomial count.
TEST(Rng, PermutationsAreEven) {
  constexpr int kKeys = 4000, kSize = 12;
  std::array<std::array<int, kSize>, kSize> seen{};
  for (std::uint64_t key = 0; key < kKeys; ++key)
    for (std::uint64_t i = 0; i < kSize; ++i) ++seen[i][permute_at(key * 0x9E3779B97F4A7C15u, i, kSize)];
  const double mean = 1.0 * kKeys / kSize, allowed = 5 * std::sqrt(mean * (1 - 1.0 / kSize));
  for (const auto& row : seen)
    for (const int count : row) EXPECT_NEAR(count, mean, allowed);
}

RC_GTEST_PROP(Rng, PermutationIsABijection, ()) {
  const auto n = *rc::gen::inRange<std::uint64_t>(1, 600);
  const auto key = *rc::gen::arbitrary<std::uint64_t>();
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto p = permute_at(key, i, n);
    RC_ASSERT(p < n);
    seen.insert(p);
  }
  RC_ASSERT(seen.size() == n);
}

}  // namespace
}  // namespace molen
