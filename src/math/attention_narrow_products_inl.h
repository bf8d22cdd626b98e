// Products of the attention kernels over rows in bf16, on vectors: a block of up to 6 rows by kVectors vectors of C
// stays in registers while the loop runs over the depth.
#include "math/attention_narrow_blocks_inl.h"

namespace molen::math::attention_detail {
namespace {

constexpr i64 kBlockRows = kRowsPerBlock;  // of C, in one product
constexpr i64 kKeyColumns = kStrip;        // of C, in one product whose A is interleaved

// C = A B or, with `scale`, C = diag(scale) C + A B, over `depth` pairs. A stores a row's pairs next to each other or,
// with kInterleaved, the pairs of all rows together: element (pair p, row r) is at a[p * lda + r].
template <int R, int NV, bool kInterleaved>
[[gnu::noinline]] void dot_block(const Pair* a, i64 lda, const Pair* b, i64 ldb, i64 depth, float* c, i64 ldc,
                                 const float* scale) {
  F acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = F{};
  for (i64 p = 0; p < depth; ++p) {
    I column[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) column[v] = load_pairs(b + v * kL);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const I x = I{} + (kInterleaved ? a[r] : a[r * lda]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = dot(acc[r][v], x, column[v]);
    }
    a += kInterleaved ? lda : 1;
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

typedef void (*DotBlock)(const Pair*, i64, const Pair*, i64, i64, float*, i64, const float*);

template <int NV, bool kInterleaved>
constexpr DotBlock kDotBlocks[kRowsPerBlock + 1] = {nullptr,
                                                    dot_block<1, NV, kInterleaved>,
                                                    dot_block<2, NV, kInterleaved>,
                                                    dot_block<3, NV, kInterleaved>,
                                                    dot_block<4, NV, kInterleaved>,
                                                    dot_block<5, NV, kInterleaved>,
                                                    dot_block<6, NV, kInterleaved>};

// Computes C [rows <= 6, columns, a multiple of 16] from A [rows, depth] and B [depth, columns], with the depth in
// pairs.
template <bool kInterleaved>
inline void dot_product(i64 rows, i64 columns, const Pair* a, i64 lda, const Pair* b, i64 ldb, i64 depth, float* c,
                        i64 ldc, const float* scale = nullptr) {
  i64 at = 0;
  for (; at + kV * kL <= columns; at += kV * kL)
    kDotBlocks<kV, kInterleaved>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
  if constexpr (kV > 2) {
    if (columns - at == 3 * kL)
      return kDotBlocks<3, kInterleaved>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
    if (columns - at == 2 * kL)
      return kDotBlocks<2, kInterleaved>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
  }
  if (columns - at == kL) kDotBlocks<1, kInterleaved>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
}

}  // namespace
}  // namespace molen::math::attention_detail
