// The fp32 products against the double reference, in the shapes that take each way, one thread and two; repeated calls
// give the same bits.
#include "math/gemm.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <random>

#include "math/reference.h"
#include "math/test_close.h"

namespace molen::math {
namespace {

std::vector<float> random(std::int64_t count, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<std::size_t>(count));
  for (float& x : v) x = normal(engine);
  return v;
}
std::vector<double> wide(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}

using Fast = void (*)(std::int64_t, std::int64_t, std::int64_t, const float*, const float*, bool, float*);
using Plain = void (*)(int, std::int64_t, std::int64_t, std::int64_t, const double*, const double*, bool, double*);

void check(Fast fast, Plain plain, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto a = random(m * k, 1), b = random(k * n, 2), start = random(m * n, 3);
  const auto da = wide(a), db = wide(b);
  for (const bool accumulate : {false, true}) {
    auto want = wide(start);
    plain(2, m, n, k, da.data(), db.data(), accumulate, want.data());
    std::vector<float> got = start, again = start;
    if (!accumulate) got.assign(got.size(), NAN);  // what is overwritten may hold anything
    fast(m, n, k, a.data(), b.data(), accumulate, got.data());
    if (accumulate || m * n < 100000) fast(m, n, k, a.data(), b.data(), accumulate, again.data());
    EXPECT_TRUE(testing::close(wide(got), want, {0x1p-24, k, 4, 0})) << m << " " << n << " " << k;
    if (accumulate) {
      EXPECT_EQ(got, again);
    }
  }
}

TEST(Gemm, AllForms) {
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (const auto& [m, n, k] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 7, 5}, {17, 3, 29}, {31, 4099, 37}, {67, 61, 257}}) {
      check(matmul_nt, reference::matmul_nt<double>, m, n, k);
      check(matmul_nn, reference::matmul_nn<double>, m, n, k);
      check(matmul_tn, reference::matmul_tn<double>, m, n, k);
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace molen::math
