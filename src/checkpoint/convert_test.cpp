// Tests every 16-bit pattern both ways, and compares roundings with a search for the nearest value in double.
#include "checkpoint/convert.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/test_golden.h"
#include "checkpoint/transpose.h"

namespace molen::checkpoint {
namespace {

template <class To, class From>
To one(DType from, From value, DType to) {
  To result{};
  convert(from, &value, to, &result, 1);
  return result;
}

// Computes the finite values of a 16-bit type from its definition, indexed by magnitude bits.
std::vector<double> magnitudes(int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  std::vector<double> values;
  for (int bits = 0; bits < ((1 << exponent_bits) - 1) << fraction_bits; ++bits) {
    const int exponent = bits >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                   : std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits));
  }
  return values;
}

// Returns the nearest value with ties to even, by comparing distances; infinity lies beyond the last value plus half a
// step.
std::uint16_t nearest(const std::vector<double>& values, double value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double x = std::fabs(value);
  const auto above = std::upper_bound(values.begin(), values.end(), x);
  const auto low = static_cast<std::size_t>(above - values.begin()) - 1;
  const double next = above == values.end() ? 2 * values.back() - values[values.size() - 2] : *above;
  const double down = x - values[low], up = next - x;
  const bool round_up = up < down || (up == down && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (low + (round_up ? 1 : 0)));
}

struct Kind {
  DType dtype;
  int exponent_bits, fraction_bits;
};
const Kind kKinds[] = {{DType::kF16, 5, 10}, {DType::kBF16, 8, 7}};

TEST(Convert, WidensEveryPatternExactlyAndBack) {
  for (const auto& [dtype, e, f] : kKinds) {
    const auto values = magnitudes(e, f);
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto half = static_cast<std::uint16_t>(bits);
      const float wide = one<float>(dtype, half, DType::kF32);
      const std::uint32_t magnitude = bits & 0x7FFF;
      if (magnitude < values.size()) {
        ASSERT_EQ(std::fabs(wide), values[magnitude]);
        ASSERT_EQ(std::signbit(wide), bits >= 0x8000);
      } else if (magnitude == values.size()) {
        ASSERT_TRUE(std::isinf(wide));
      } else {
        ASSERT_TRUE(std::isnan(wide));
        ASSERT_TRUE(std::isnan(one<float>(dtype, one<std::uint16_t>(DType::kF32, wide, dtype), DType::kF32)));
        continue;
      }
      ASSERT_EQ(one<std::uint16_t>(DType::kF32, wide, dtype), half);
      ASSERT_EQ(one<std::uint16_t>(DType::kF64, static_cast<double>(wide), dtype), half);
    }
  }
}

TEST(Convert, RoundsEveryBorderToEven) {
  for (const auto& [dtype, e, f] : kKinds) {
    const auto values = magnitudes(e, f);
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
      const double middle = (values[i] + values[i + 1]) / 2;
      for (const double x : {middle, std::nextafter(middle, 0.0), std::nextafter(middle, 1e300), -middle}) {
        // A double just beside the border rounds wrongly if it goes through a rounded float.
        ASSERT_EQ(one<std::uint16_t>(DType::kF64, x, dtype), nearest(values, x)) << x;
        ASSERT_EQ(one<std::uint16_t>(DType::kF32, static_cast<float>(x), dtype), nearest(values, static_cast<float>(x)))
            << x;
      }
    }
  }
}

RC_GTEST_PROP(Convert, RoundsAnyFloat, (std::uint32_t bits)) {
  const auto value = std::bit_cast<float>(bits);
  for (const auto& [dtype, e, f] : kKinds) {
    const auto got = one<std::uint16_t>(DType::kF32, value, dtype);
    if (std::isnan(value)) {
      RC_ASSERT(std::isnan(one<float>(dtype, got, DType::kF32)));
    } else if (!std::isinf(value)) {
      RC_ASSERT(got == nearest(magnitudes(e, f), value));
    }
  }
}

// fp64 to bf16 through float rounds once, even closer to a tie of bf16 than a float can resolve.
TEST(Convert, DoublesRoundOnce) {
  for (const std::uint32_t high : {0x3f80u, 0x3f81u, 0x4240u, 0xbf80u, 0xc0d3u})
    for (const std::uint32_t low : {0x7fffu, 0x8000u, 0x8001u})
      for (const double off : {-0x1p-30, 0.0, 0x1p-30}) {
        const double value = static_cast<double>(std::bit_cast<float>(high << 16 | low)) * (1 + off);
        const double below = std::bit_cast<float>(high << 16), above = std::bit_cast<float>((high + 1) << 16);
        const double to_below = std::fabs(value - below), to_above = std::fabs(above - value);
        const std::uint32_t want = to_below < to_above ? high : to_above < to_below ? high + 1 : high + (high & 1);
        std::uint16_t got = 0;
        convert(DType::kF64, &value, DType::kBF16, &got, 1);
        EXPECT_EQ(got, want) << high << " " << low << " " << off;
      }
}

TEST(Convert, ToFloatFromEachType) {
  EXPECT_EQ((one<float, std::uint16_t>(DType::kBF16, 0xc020, DType::kF32)), -2.5f);
  EXPECT_EQ((one<float, std::uint16_t>(DType::kF16, 0xc100, DType::kF32)), -2.5f);
  EXPECT_EQ((one<float, float>(DType::kF32, -2.5f, DType::kF32)), -2.5f);
  EXPECT_EQ((one<float, double>(DType::kF64, -2.5, DType::kF32)), -2.5f);
}

TEST(Convert, KeepsSpecialValues) {
  const GoldenMessages golden;
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(one<std::uint16_t>(DType::kF32, inf, DType::kF16), 0x7C00);
  EXPECT_EQ(one<std::uint16_t>(DType::kF32, -inf, DType::kBF16), 0xFF80);
  EXPECT_EQ(one<std::uint16_t>(DType::kF32, 65520.0f, DType::kF16), 0x7C00);
  EXPECT_EQ(one<std::uint16_t>(DType::kF32, 65519.0f, DType::kF16), 0x7BFF);
  EXPECT_EQ(one<std::uint16_t>(DType::kF64, 1e300, DType::kF16), 0x7C00);
  EXPECT_EQ(one<float>(DType::kF64, 0.1, DType::kF32), 0.1f);
  EXPECT_EQ(one<double>(DType::kBF16, std::uint16_t{0x3F80}, DType::kF64), 1.0);
  EXPECT_EQ(one<std::uint16_t>(DType::kF32, std::bit_cast<float>(0x7F800001u), DType::kBF16), 0x7FC0);
  std::int32_t integer = 1;
  EXPECT_NOTED(convert(DType::kI32, &integer, DType::kF32, &integer, 1), Error);
}

RC_GTEST_PROP(Transpose, IsItsOwnInverse, ()) {
  const std::int64_t rows = *rc::gen::inRange(1, 80), columns = *rc::gen::inRange(1, 80),
                     size = std::int64_t{1} << *rc::gen::inRange(0, 4);
  std::vector<char> in(static_cast<std::size_t>(rows * columns * size)), turned(in.size()), back(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<char>(i * 37 + i / 251);
  transpose(in.data(), rows, columns, size, turned.data());
  const std::int64_t i = *rc::gen::inRange<std::int64_t>(0, rows), j = *rc::gen::inRange<std::int64_t>(0, columns);
  RC_ASSERT(std::equal(in.begin() + (i * columns + j) * size, in.begin() + (i * columns + j + 1) * size,
                       turned.begin() + (j * rows + i) * size));
  transpose(turned.data(), columns, rows, size, back.data());
  RC_ASSERT(back == in);
}

}  // namespace
}  // namespace molen::checkpoint
