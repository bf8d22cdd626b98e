#include "math/gemm_narrow.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "math/gemm_narrow_kernels.h"

namespace molen::math {
namespace {

using namespace gemm_detail;
using i64 = std::int64_t;

constexpr i64 kSpace = kTerms / 2 * (kRows + 16) + 6 * kPanel;  // words per thread

i64 ceil_div(i64 a, i64 b) {
  return (a + b - 1) / b;
}
i64 packed_words(i64 n, i64 k) {
  return ceil_div(std::min<i64>(n, kColumns), kPanel) * kPanel * ceil_div(std::min<i64>(k, kMostTerms), kTerms) *
         (kTerms / 2);
}

#if defined(__x86_64__)
// All threads pack B, and then each thread adds to its own rows. The threads' ranges differ by at most one block of
// registers.
void columns_and_terms(const SumKernels& f, const Sums& g, float* space) {
  const i64 panels = ceil_div(g.columns, kPanel), pieces = panels * ceil_div(g.terms, kTerms);
#pragma omp for schedule(static)
  for (i64 piece = 0; piece < pieces; ++piece) f.pack(g, piece % panels, piece / panels);
  const i64 t = omp_get_thread_num(), threads = omp_get_num_threads(), blocks = ceil_div(g.m, 6);
  const i64 i0 = std::min(g.m, 6 * (blocks * t / threads)), i1 = std::min(g.m, 6 * (blocks * (t + 1) / threads));
  f.rows(g, i0, i1, space + t * kSpace);
#pragma omp barrier
}
#endif

void add_products(int threads, bool terms_first, i64 m, i64 n, i64 k, const std::uint16_t* a, const std::uint16_t* b,
                  bool accumulate, float* c, void* scratch) {
  MOLEN_CHECK(own_products_available(), "this processor lacks dot products of bf16");
  if (k == 0 && !accumulate) std::fill(c, c + m * n, 0.0f);
#if defined(__x86_64__)
  auto* packed = static_cast<std::int32_t*>(scratch);
  float* space = static_cast<float*>(scratch) + packed_words(n, k);
#pragma omp parallel num_threads(threads)
  for (i64 column = 0; column < n; column += kColumns)
    for (i64 first = 0; first < k; first += kMostTerms)
      columns_and_terms(kSumsAvx512Bf16,
                        {terms_first, m, n, k, a, b, c, column, std::min<i64>(kColumns, n - column), first,
                         std::min<i64>(kMostTerms, k - first), accumulate || first > 0, packed},
                        space);
#endif
}

}  // namespace

bool own_products_available() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

bool own_products() {
#if defined(__x86_64__)
  static const bool own = [] {
    const char* named = std::getenv("MOLEN_GEMM");
    return own_products_available() && !__builtin_cpu_supports("amx-bf16") && (!named || *named == '\0');
  }();
  return own;
#else
  return false;
#endif
}

i64 weight_gradient_scratch(int threads, i64 n, i64 k) {
  return 4 * (packed_words(n, k) + threads * kSpace);
}
i64 long_product_scratch(int threads, i64 m, i64 n, i64 k) {
  return weight_gradient_scratch(threads, n, k) + 4 * ceil_div(m * n, 16) * 16;
}

void weight_gradient(int threads, i64 m, i64 n, i64 k, const std::uint16_t* a, const std::uint16_t* b, bool accumulate,
                     float* c, void* scratch) {
  add_products(threads, true, m, n, k, a, b, accumulate, c, scratch);
}

void long_product(int threads, i64 m, i64 n, i64 k, const std::uint16_t* a, const std::uint16_t* b, std::uint16_t* c,
                  void* scratch) {
  float* sums = static_cast<float*>(scratch) + weight_gradient_scratch(threads, n, k) / 4;
  add_products(threads, false, m, n, k, a, b, false, sums, scratch);
#if defined(__x86_64__)
#pragma omp parallel for num_threads(threads) schedule(static)
  for (i64 i = 0; i < m; ++i) kSumsAvx512Bf16.narrow(n, sums + i * n, c + i * n);
#endif
}

}  // namespace molen::math
