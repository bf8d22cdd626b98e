// Tests the fp32 products of each library against the double reference, in the shapes of each code path, on one thread
// and two; repeated calls with operands of the same alignment give the same bits.
#include "math/gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>

#include "base/error.h"
#include "math/reference.h"
#include "math/scratch.h"
#include "math/test_close.h"

// libtorch exports this function but does not declare it in its headers.
namespace at::native {
[[gnu::weak]] void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);
}

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

using Fast = void (*)(GemmLibrary, std::int64_t, std::int64_t, std::int64_t, const float*, const float*, bool, float*);
template <class T>
using Plain = void (*)(int, std::int64_t, std::int64_t, std::int64_t, const T*, const T*, bool, T*);

// Memory aligned as that of a run (Scratch::kAlignment), or `past` values past such an address. MKL chooses its order
// of additions by the alignment of its operands, so that only calls with the same alignment give the same bits.
class Operand {
 public:
  explicit Operand(const std::vector<float>& values, std::size_t past = 0)
      : memory_(static_cast<float*>(std::aligned_alloc(Scratch::kAlignment, bytes(values.size() + past))), &std::free),
        values_(memory_.get() + past, values.size()) {
    std::copy(values.begin(), values.end(), values_.begin());
  }
  float* data() const { return values_.data(); }
  std::vector<float> values() const { return {values_.begin(), values_.end()}; }

 private:
  static std::size_t bytes(std::size_t count) {
    return static_cast<std::size_t>(Scratch::aligned(static_cast<std::int64_t>(count * sizeof(float))));
  }
  std::unique_ptr<float, decltype(&std::free)> memory_;
  std::span<float> values_;
};

void check(GemmLibrary library, Fast fast, Plain<double> plain, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto a = random(m * k, 1), b = random(k * n, 2), start = random(m * n, 3);
  const auto da = wide(a), db = wide(b);
  const Operand fast_a(a), fast_b(b);
  for (const bool accumulate : {false, true}) {
    auto want = wide(start);
    plain(2, m, n, k, da.data(), db.data(), accumulate, want.data());
    const auto product = [&](std::size_t past) {
      // An overwritten C may hold anything.
      const Operand c(accumulate ? start : std::vector<float>(start.size(), NAN), past);
      fast(library, m, n, k, fast_a.data(), fast_b.data(), accumulate, c.data());
      return c.values();
    };
    const auto got = product(0);
    EXPECT_TRUE(testing::close(wide(got), want, {0x1p-24, k, 4, 0}))
        << name_of(library) << " " << m << " " << n << " " << k;
    EXPECT_EQ(got, product(0));
    EXPECT_TRUE(testing::close(wide(product(3)), want, {0x1p-24, k, 4, 0}))
        << name_of(library) << " " << m << " " << n << " " << k << ", C not aligned";
  }
}

class Gemm : public ::testing::TestWithParam<GemmLibrary> {};

TEST_P(Gemm, AllForms) {
  if (!gemm_library_available(GetParam())) GTEST_SKIP() << "this libtorch has no products by " << name_of(GetParam());
  const int before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    for (const auto& [m, n, k] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 7, 5},
                                  {17, 3, 29},
                                  {31, 4099, 37},
                                  {67, 61, 257},
                                  {131, 99, 203},
                                  {1, 1501, 1499}}) {
      check(GetParam(), matmul_nt, reference::matmul_nt<double>, m, n, k);
      check(GetParam(), matmul_nn, reference::matmul_nn<double>, m, n, k);
      check(GetParam(), matmul_tn, reference::matmul_tn<double>, m, n, k);
    }
  }
  at::set_num_threads(before);
}

// Products of small integers are exact in any order. Nothing may be written outside C.
TEST_P(Gemm, RandomShapesExactlyAndNowhereElse) {
  if (!gemm_library_available(GetParam())) GTEST_SKIP() << "this libtorch has no products by " << name_of(GetParam());
  std::mt19937_64 engine(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  };
  const auto integers = [&](std::int64_t count) {
    std::vector<float> v(static_cast<std::size_t>(count));
    for (float& x : v) x = static_cast<float>(draw(-2, 2));
    return v;
  };
  constexpr std::size_t kMargin = 4096;
  for (int i = 0; i < 60; ++i) {
    const std::int64_t m = draw(1, 3) == 1 ? draw(1, 40) : draw(40, 400), n = draw(1, 400), k = draw(1, 400);
    const auto a = integers(m * k), b = integers(k * n);
    const bool accumulate = i % 2 == 1;
    std::vector<float> c(static_cast<std::size_t>(m * n) + 2 * kMargin, -7), plain(static_cast<std::size_t>(m * n), -7);
    const std::initializer_list<std::pair<Fast, Plain<float>>> all = {{matmul_nt, reference::matmul_nt<float>},
                                                                      {matmul_nn, reference::matmul_nn<float>},
                                                                      {matmul_tn, reference::matmul_tn<float>}};
    for (const auto& [fast, want] : all) {
      std::fill(c.begin(), c.end(), -7.0F);
      std::fill(plain.begin(), plain.end(), -7.0F);
      fast(GetParam(), m, n, k, a.data(), b.data(), accumulate, c.data() + kMargin);
      want(2, m, n, k, a.data(), b.data(), accumulate, plain.data());
      EXPECT_TRUE(std::equal(plain.begin(), plain.end(), c.begin() + kMargin)) << m << " " << n << " " << k;
      const auto untouched = [](float x) { return x == -7; };
      EXPECT_TRUE(std::all_of(c.begin(), c.begin() + kMargin, untouched) &&
                  std::all_of(c.end() - kMargin, c.end(), untouched))
          << m << " " << n << " " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Libraries, Gemm, ::testing::Values(GemmLibrary::kAten, GemmLibrary::kOneDnn),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Without this test, all tests of oneDNN would be skipped when oneDNN is not found.
TEST(GemmLibrary, OneDnnIsThereWhereLibtorchMultipliesByIt) {
  bool multiplies = false;
  if (at::native::mkldnn_matmul && at::hasMKLDNN()) {
    const at::Tensor a = at::full({20, 30}, 2.0), b = at::full({30, 40}, 3.0);
    at::Tensor c = at::zeros({20, 40});
    try {
      at::native::mkldnn_matmul(a, b, c, 0.0F, 1.0F);
      multiplies = at::equal(c, at::full({20, 40}, 180.0));
    } catch (const std::exception&) {  // the processor has no fast path
    }
  }
  EXPECT_EQ(gemm_library_available(GemmLibrary::kOneDnn), multiplies);
  EXPECT_TRUE(gemm_library_available(GemmLibrary::kAten));
}

// The environment is read once, so each case runs in its own process.
class GemmLibraryDeathTest : public ::testing::Test {
 protected:
  // Exits with 0 when the environment chooses `wanted`, with 1 when it chooses another library, and with 2 when it is
  // refused.
  [[noreturn]] static void choose(const char* name, const char* variable, GemmLibrary wanted) {
    for (const char* each : {"MOLEN_GEMM", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"}) unsetenv(each);
    setenv("MOLEN_GEMM", name, 1);
    if (variable) setenv(variable, "BF16", 1);
    try {
      std::_Exit(gemm_library() == wanted ? 0 : 1);
    } catch (const UsageError&) {
      std::_Exit(2);
    }
  }
};

TEST_F(GemmLibraryDeathTest, IsChosenByTheEnvironmentAndElseByTheProcessor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ended = ::testing::ExitedWithCode(0), refused = ::testing::ExitedWithCode(2);
  const bool onednn = gemm_library_available(GemmLibrary::kOneDnn);
  EXPECT_EXIT(choose("aten", nullptr, GemmLibrary::kAten), ended, "");
  EXPECT_EXIT(choose("onednn", nullptr, GemmLibrary::kOneDnn), ::testing::ExitedWithCode(onednn ? 0 : 2), "");
  EXPECT_EXIT(choose("mkl", nullptr, GemmLibrary::kAten), refused, "");
#if defined(__x86_64__)
  const bool faster = onednn && !__builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f");
  EXPECT_EXIT(choose("", nullptr, faster ? GemmLibrary::kOneDnn : GemmLibrary::kAten), ended, "");
#endif
  for (const char* rounds : {"ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"})
    EXPECT_EXIT(choose("", rounds, GemmLibrary::kAten), ended, "");
}

// Products without a named library use the chosen library.
TEST(GemmLibrary, TheChosenOneMultiplies) {
  ASSERT_TRUE(gemm_library_available(gemm_library()));
  const std::int64_t m = 131, n = 99, k = 1203;
  const auto a = random(m * k, 1), b = random(k * n, 2);
  std::vector<float> chosen(static_cast<std::size_t>(m * n)), named = chosen;
  matmul_nn(m, n, k, a.data(), b.data(), false, chosen.data());
  matmul_nn(gemm_library(), m, n, k, a.data(), b.data(), false, named.data());
  EXPECT_EQ(chosen, named);
}

}  // namespace
}  // namespace molen::math
