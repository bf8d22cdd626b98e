// Tests molen's products of rows in bf16 against sums in double, at sizes that end inside each kind of block.
#include "math/gemm_narrow.h"

#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "math/test_close.h"

namespace molen::math {
namespace {

using Halves = std::vector<std::uint16_t>;
using Floats = std::vector<float>;

Halves random(std::int64_t count, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  Halves v(static_cast<std::size_t>(count));
  for (std::uint16_t& x : v) x = c10::BFloat16(normal(engine)).x;
  return v;
}
double wide(std::uint16_t x) {
  return static_cast<double>(static_cast<float>(c10::BFloat16(x, c10::BFloat16::from_bits())));
}

struct Sizes {
  std::int64_t m, n, k;
};

// Puts guards after C and the scratch. Both begin as NaN when they are overwritten.
Floats run(int threads, const Sizes& s, const Halves& a, const Halves& b, bool accumulate, float start) {
  constexpr std::size_t kGuard = 32;
  Floats c(static_cast<std::size_t>(s.m * s.n) + kGuard, accumulate ? start : NAN),
      scratch(static_cast<std::size_t>(weight_gradient_scratch(threads, s.n, s.k)) / 4 + kGuard, NAN);
  std::fill(c.end() - kGuard, c.end(), 77.0f);
  std::fill(scratch.end() - kGuard, scratch.end(), 77.0f);
  weight_gradient(threads, s.m, s.n, s.k, a.data(), b.data(), accumulate, c.data(), scratch.data());
  for (std::size_t g = 1; g <= kGuard; ++g) {
    EXPECT_EQ(c[c.size() - g], 77.0f);
    EXPECT_EQ(scratch[scratch.size() - g], 77.0f);
  }
  c.resize(c.size() - kGuard);
  return c;
}

class NarrowProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!own_products_available()) GTEST_SKIP() << "this processor has no dot products of bf16";
  }
};

// Blocks have 6 rows and 64 columns (vectors of 16), 96 rows and 512 columns, 256 terms in pairs and 2048 terms.
TEST_F(NarrowProducts, IsTheSumOfProducts) {
  for (const Sizes& s : {Sizes{1, 1, 1},
                         {5, 15, 2},
                         {7, 16, 3},
                         {6, 80, 256},
                         {97, 33, 257},
                         {13, 513, 31},
                         {101, 64, 511},
                         {19, 17, 2051}}) {
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " of " << s.k << " terms");
    const Halves a = random(s.m * s.k, 1), b = random(s.n * s.k, 2);
    for (const bool accumulate : {false, true}) {
      std::vector<double> want(static_cast<std::size_t>(s.m * s.n), accumulate ? 0.75 : 0.0);
      for (std::int64_t p = 0; p < s.k; ++p)
        for (std::int64_t i = 0; i < s.m; ++i)
          for (std::int64_t j = 0; j < s.n; ++j)
            want[static_cast<std::size_t>(i * s.n + j)] +=
                wide(a[static_cast<std::size_t>(p * s.m + i)]) * wide(b[static_cast<std::size_t>(p * s.n + j)]);
      const Floats got = run(2, s, a, b, accumulate, 0.75f);
      // Each term has two fp32 roundings, because a pair's products are exact.
      EXPECT_TRUE(testing::close({got.begin(), got.end()}, want, {0x1p-24, s.k, 4, 1}));
    }
  }
}

TEST_F(NarrowProducts, SameBitsForAnyNumberOfThreads) {
  const Sizes s{110, 130, 600};
  const Halves a = random(s.m * s.k, 1), b = random(s.n * s.k, 2);
  const Floats one = run(1, s, a, b, true, 0.3f);
  for (const int threads : {1, 2, 3, 7, 30}) EXPECT_EQ(run(threads, s, a, b, true, 0.3f), one) << threads;
}

// Tensor ranks compute a range of the rows or of the columns of the gradient.
TEST_F(NarrowProducts, PartsAreTheSameBits) {
  const Sizes s{40, 90, 300};
  const Halves a = random(s.m * s.k, 1), b = random(s.n * s.k, 2);
  const Floats whole = run(2, s, a, b, false, 0);
  const std::int64_t row = 17, column = 37;
  Halves some_a, some_b;
  for (std::int64_t p = 0; p < s.k; ++p) {
    some_a.insert(some_a.end(), a.begin() + p * s.m + row, a.begin() + (p + 1) * s.m);
    some_b.insert(some_b.end(), b.begin() + p * s.n + column, b.begin() + (p + 1) * s.n);
  }
  const Sizes part{s.m - row, s.n - column, s.k};
  const Floats got = run(2, part, some_a, some_b, false, 0);
  for (std::int64_t i = 0; i < part.m; ++i)
    for (std::int64_t j = 0; j < part.n; ++j)
      ASSERT_EQ(got[static_cast<std::size_t>(i * part.n + j)],
                whole[static_cast<std::size_t>((i + row) * s.n + j + column)]);
}

TEST_F(NarrowProducts, LongSumsAreRoundedOnce) {
  for (const Sizes& s : {Sizes{1, 1, 1}, {7, 16, 511}, {97, 33, 2053}, {5, 530, 100}, {13, 64, 4097}}) {
    const Halves a = random(s.m * s.k, 1), b = random(s.n * s.k, 2);
    for (const int threads : {1, 3}) {
      constexpr std::uint16_t kGuard = 0x7fc1;
      Halves c(static_cast<std::size_t>(s.m * s.n) + 1, kGuard);
      Floats scratch(static_cast<std::size_t>(long_product_scratch(threads, s.m, s.n, s.k)) / 4 + 1, NAN);
      scratch.back() = 77.0f;
      long_product(threads, s.m, s.n, s.k, a.data(), b.data(), c.data(), scratch.data());
      EXPECT_EQ(c.back(), kGuard);
      EXPECT_EQ(scratch.back(), 77.0f);
      for (std::int64_t i = 0; i < s.m; ++i)
        for (std::int64_t j = 0; j < s.n; ++j) {
          double want = 0.0, terms = 0.0;
          for (std::int64_t p = 0; p < s.k; ++p) {
            const double term =
                wide(a[static_cast<std::size_t>(i * s.k + p)]) * wide(b[static_cast<std::size_t>(p * s.n + j)]);
            want += term, terms += std::abs(term);
          }
          const double bound = 0x1p-8 * std::abs(want) + 0x1p-24 * std::sqrt(static_cast<double>(s.k)) * terms;
          ASSERT_NEAR(wide(c[static_cast<std::size_t>(i * s.n + j)]), want, bound) << i << " " << j << " of " << s.k;
        }
    }
  }
}

TEST_F(NarrowProducts, NoTermsAreZero) {
  EXPECT_EQ(run(2, {2, 3, 0}, {}, {}, false, 0), Floats(6, 0.0f));
  EXPECT_EQ(run(2, {2, 3, 0}, {}, {}, true, 1.5f), Floats(6, 1.5f));
}

}  // namespace
}  // namespace molen::math
