// Building blocks of the attention kernels, written once over a vector type `Simd` that the including file defines for
// its instruction set. Everything is in an anonymous namespace: each including file has its own copy, compiled with its
// own flags.
//
// All matrix products use one kernel: a block of up to 6 rows by kVectors vectors of C stays in registers while the
// loop runs over the depth, multiplying a broadcast element of A with a vector of B. B therefore needs contiguous
// columns (K^T and V^T are packed, in strips of 64 columns that fit L1); A may be read along rows or columns (both P
// and P^T). Row-major tiles have rows of D rounded up to 16, plus 16: rows a power of two apart would share few cache
// sets.
#include <math.h>
#include <string.h>

#include "math/attention_kernels.h"
#include "math/attention_simd_inl.h"

namespace molen::math::attention_detail {
namespace {

using F = Simd::F;
using I = Simd::I;
typedef float Unaligned __attribute__((vector_size(sizeof(F)), aligned(4), may_alias));

constexpr int kL = Simd::kLanes, kV = Simd::kVectors, kRowsPerBlock = 6;
constexpr i64 kStrip = 64;
constexpr float kLog2e = 1.44269504088896340736f, kLn2 = 0.693147180559945309417f;
constexpr i64 kLdP = kTileColumns + 16;

inline F load(const float* p) {
  return (F) * reinterpret_cast<const Unaligned*>(p);
}
inline void store(float* p, F x) {
  *reinterpret_cast<Unaligned*>(p) = (Unaligned)x;
}
inline i64 smaller(i64 a, i64 b) {
  return a < b ? a : b;
}
inline i64 larger(i64 a, i64 b) {
  return a > b ? a : b;
}
inline i64 round16(i64 n) {
  return (n + 15) / 16 * 16;
}
inline i64 width(i64 D) {
  return round16(D) + 16;
}

// ---- elementary functions ----

// Returns 2^x for x <= about 0, with an error of 1 ulp. The result is 0 for x below -100 (1e-30 of a sum that is at
// least 1). x = n + f with an integer n and |f| <= 1/2; n is added to the exponent by a sum with 1.5*2^23. The
// coefficients are the minimax ones of the relative error.
inline F exp2_vector(F x) {
  const F magic = Simd::set1(12582912.0f + 127.0f);
  const F t = x + magic;
  const F f = x - (t - magic);
  F p = Simd::set1(0.0001534581242594868f);
  p = Simd::fma(p, f, Simd::set1(0.0013399930903688073f));
  p = Simd::fma(p, f, Simd::set1(0.009618489071726799f));
  p = Simd::fma(p, f, Simd::set1(0.05550328642129898f));
  p = Simd::fma(p, f, Simd::set1(0.24022646248340607f));
  p = Simd::fma(p, f, Simd::set1(0.6931471824645996f));
  p = Simd::fma(p, f, Simd::set1(1.0f));
  const F power = (F)((I)t << 23);
  return Simd::zero_below(p * power, x, Simd::set1(-100.0f));
}

template <int kShift>
inline F rotate(F x) {
  I index;
  for (int l = 0; l < kL; ++l) index[l] = (l + kShift) % kL;
  return __builtin_shuffle(x, index);
}
inline float sum_of(F x) {
  if constexpr (kL >= 16) x = x + rotate<8>(x);
  if constexpr (kL >= 8) x = x + rotate<4>(x);
  x = x + rotate<2>(x);
  x = x + rotate<1>(x);
  return x[0];
}
inline float max_of(F x) {
  if constexpr (kL >= 16) x = Simd::max(x, rotate<8>(x));
  if constexpr (kL >= 8) x = Simd::max(x, rotate<4>(x));
  x = Simd::max(x, rotate<2>(x));
  x = Simd::max(x, rotate<1>(x));
  return x[0];
}

// ---- matrix products ----

// C = A B or, with `scale`, C = diag(scale) C + A B. Blocks of 6 rows and 4 vectors do nearly all the work.
template <int R, int NV, bool kTransposed>
[[gnu::noinline]] void block(const float* a, i64 lda, const float* b, i64 ldb, i64 depth, float* c, i64 ldc,
                             const float* scale) {
  F acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = F{};
  for (i64 p = 0; p < depth; ++p) {
    F column[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) column[v] = load(b + v * kL);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F x = Simd::set1(kTransposed ? a[r] : a[r * lda]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = Simd::fma(x, column[v], acc[r][v]);
    }
    a += kTransposed ? lda : 1;
    b += ldb;
  }
  if (scale) {
    const float* from = c;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r, from += ldc) {
      const F factor = Simd::set1(scale[r]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = Simd::fma(factor, load(from + v * kL), acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r, c += ldc)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(c + v * kL, acc[r][v]);
}
constexpr float kOnes[kRowsPerBlock] = {1, 1, 1, 1, 1, 1};  // scale of C += A B

typedef void (*Block)(const float*, i64, const float*, i64, i64, float*, i64, const float*);

template <int NV, bool kTransposed>
constexpr Block kBlocks[kRowsPerBlock + 1] = {nullptr,
                                              block<1, NV, kTransposed>,
                                              block<2, NV, kTransposed>,
                                              block<3, NV, kTransposed>,
                                              block<4, NV, kTransposed>,
                                              block<5, NV, kTransposed>,
                                              block<6, NV, kTransposed>};

// Computes C [rows <= 6, columns, a multiple of kL] from A [rows, depth] (or its transpose in memory) and B [depth,
// columns].
template <bool kTransposed>
inline void product(i64 rows, i64 columns, const float* a, i64 lda, const float* b, i64 ldb, i64 depth, float* c,
                    i64 ldc, const float* scale = nullptr) {
  i64 at = 0;
  for (; at + kV * kL <= columns; at += kV * kL)
    kBlocks<kV, kTransposed>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
  if constexpr (kV > 2) {
    if (columns - at == 3 * kL) return kBlocks<3, kTransposed>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
    if (columns - at == 2 * kL) return kBlocks<2, kTransposed>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
  }
  if (columns - at == kL) kBlocks<1, kTransposed>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
}

// ---- packing ----

// to [n, ld] = from [n, D], padded with zeros to a multiple of 16.
[[maybe_unused]] void pack_rows(float* to, i64 ld, const float* from, i64 ld_from, i64 n, i64 D) {
  for (i64 r = 0; r < n; ++r, to += ld, from += ld_from) {
    i64 d = 0;
    for (; d + kL <= D; d += kL) store(to + d, load(from + d));
    for (; d < D; ++d) to[d] = from[d];
    for (; d < round16(D); ++d) to[d] = 0;
  }
}

// Transposes a square of vectors by a perfect-shuffle network: log2(kL) rounds of interleaving row i with row i + kL/2.
inline void transpose_square(F (&x)[kL]) {
  I low, high;
  for (int l = 0; l < kL; ++l) {
    low[l] = l / 2 + (l % 2) * kL;
    high[l] = kL / 2 + l / 2 + (l % 2) * kL;
  }
#pragma GCC unroll 4
  for (int round = 1; round < kL; round *= 2) {
    F y[kL];
#pragma GCC unroll 16
    for (int i = 0; i < kL / 2; ++i) {
      y[2 * i] = __builtin_shuffle(x[i], x[i + kL / 2], low);
      y[2 * i + 1] = __builtin_shuffle(x[i], x[i + kL / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kL; ++i) x[i] = y[i];
  }
}

// to [strip][D][64] = scale * from [n, D] transposed, n <= kTileColumns. Columns up to a multiple of 16 are zero.
[[maybe_unused]] void pack_transposed(float* to, const float* from, i64 ld_from, i64 n, i64 D, float scale) {
  for (i64 j = 0; j < round16(n); j += kL) {
    float* strip = to + j / kStrip * kStrip * D + j % kStrip;
    const i64 full = smaller(n - j, kL);
    i64 d = 0;
    if (full == kL) {
      for (; d + kL <= D; d += kL) {
        F x[kL];
#pragma GCC unroll 16
        for (int l = 0; l < kL; ++l) x[l] = load(from + (j + l) * ld_from + d) * Simd::set1(scale);
        transpose_square(x);
#pragma GCC unroll 16
        for (int l = 0; l < kL; ++l) store(strip + (d + l) * kStrip, x[l]);
      }
    }
    for (; d < D; ++d)
      for (i64 l = 0; l < kL; ++l) strip[d * kStrip + l] = l < full ? from[(j + l) * ld_from + d] * scale : 0.0f;
  }
}

// scores [rows, kLdP], columns [strip begin, columns) += A [rows, D] times one strip that pack_transposed has packed.
inline void product_strip(i64 rows, i64 columns, i64 strip, const float* a, i64 lda, const float* packed, i64 D,
                          float* scores) {
  const i64 begin = strip * kStrip, n = smaller(columns - begin, kStrip);
  if (n > 0) product<false>(rows, n, a, lda, packed + begin * D, kStrip, D, scores + begin, kLdP);
}

// x[c] += slope * (j0 + c - i), in units of log2.
inline void add_alibi(float* x, i64 columns, i64 i, i64 j0, float slope) {
  const float distance = (float)(j0 - i);
  for (i64 c = 0; c < columns; c += kL) {
    F bias;
    for (int l = 0; l < kL; ++l) bias[l] = slope * (distance + (float)(c + l));
    store(x + c, load(x + c) + bias);
  }
}

}  // namespace
}  // namespace molen::math::attention_detail
