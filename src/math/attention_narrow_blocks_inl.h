// Building blocks of the attention kernels over rows in bf16. They use the vectors, the exponential and the
// transposition of attention_blocks_inl.h.
//
// Products multiply bf16 with bf16 and add in fp32, two terms a step. A pair is two neighbours along the depth in one
// lane of 32 bits, with the first in the lower half, as VDPBF16PS takes them. A is read along its rows as they are
// stored (a pair is 4 bytes), or from rows that are interleaved in pairs. B always has its rows interleaved in pairs:
// for K^T and V^T, this is a transposition of 32-bit lanes. Without VDPBF16PS, both halves are widened and multiplied
// one after the other; results then differ only in rounding. The products themselves are in
// attention_narrow_products_inl.h, for vectors, and attention_narrow_tiles_inl.h, for tiles.
#include "math/attention_blocks_inl.h"

namespace molen::math::attention_detail {
namespace {

typedef unsigned short u16;
typedef int Pair __attribute__((may_alias));  // two values in bf16
typedef int UnalignedPairs __attribute__((vector_size(sizeof(F)), aligned(2), may_alias));
typedef u16 Halves __attribute__((vector_size(sizeof(F) / 2)));
typedef unsigned Words __attribute__((vector_size(sizeof(F))));

inline I load_pairs(const Pair* p) {
  return (I) * reinterpret_cast<const UnalignedPairs*>(p);
}
inline void store_pairs(Pair* p, I x) {
  *reinterpret_cast<UnalignedPairs*>(p) = (UnalignedPairs)x;
}
inline Words load_halves(const u16* p) {  // each value in the lower half of a lane
  Halves h;
  memcpy(&h, p, sizeof h);
  return __builtin_convertvector(h, Words);
}
inline F widened(const u16* p) {
  return (F)(load_halves(p) << 16);
}
inline float widened_one(u16 x) {
  const unsigned bits = (unsigned)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to the nearest, ties to even, in the upper half of each lane; NaN stays NaN.
inline Words rounded(F x) {
  const Words bits = (Words)x, quiet = Words{} + 0x7fc00000u;
  const Words nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return x == x ? nearest : quiet;
}

inline F dot(F sum, I a, I b);           // sum + lower a * lower b + upper a * upper b
inline void store_narrow(u16* to, F x);  // kL values
inline I paired(F lower, F upper);       // lane by lane

#ifdef __AVX512BF16__
inline F dot(F sum, I a, I b) {
  return (F)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}
inline void store_narrow(u16* to, F x) {
  const __m256bh h = _mm512_cvtneps_pbh((__m512)x);
  memcpy(to, &h, sizeof h);
}
inline I paired(F lower, F upper) {
  Words interleave;  // of 16-bit lanes: 0, 16, 1, 17, ...
  for (int l = 0; l < kL; ++l) interleave[l] = (unsigned)(l | (l + kL) << 16);
  return (I)_mm512_permutexvar_epi16((__m512i)interleave, (__m512i)_mm512_cvtne2ps_pbh((__m512)upper, (__m512)lower));
}
#else
inline F dot(F sum, I a, I b) {
  const I upper = I{} + (int)0xffff0000;
  sum = Simd::fma((F)(a & upper), (F)(b & upper), sum);
  return Simd::fma((F)(a << 16), (F)(b << 16), sum);
}
inline void store_narrow(u16* to, F x) {
  const Halves h = __builtin_convertvector(rounded(x) >> 16, Halves);
  memcpy(to, &h, sizeof h);
}
inline I paired(F lower, F upper) {
  return (I)(rounded(lower) >> 16 | rounded(upper));
}
#endif

inline u16 narrowed(float x) {  // rounds as store_narrow does
  u16 all[kL];
  store_narrow(all, Simd::set1(x));
  return all[0];
}
// Returns the number of pairs that D values, or D rows, form.
inline i64 pairs_of(i64 n) {
  return (n + 1) / 2;
}
// Returns the number of pairs from one row of A to the next. It is padded, because rows a power of two apart would
// share few cache sets.
inline i64 pair_width(i64 D) {
  return round16(pairs_of(D)) + 16;
}
constexpr i64 kLdPairs = kTileColumns / 2 + 16;

// ---- packing ----

// to [n, ld] = rows of D values; the last pair is filled up with zero.
[[maybe_unused]] void copy_rows(Pair* to, i64 ld, const u16* from, i64 ld_from, i64 n, i64 D) {
  for (i64 r = 0; r < n; ++r, to += ld, from += ld_from) {
    i64 d = 0;
    for (; d + 2 * kL <= D; d += 2 * kL) {
      I x;
      memcpy(&x, from + d, sizeof x);
      store_pairs(to + d / 2, x);
    }
    for (; d < D; d += 2) to[d / 2] = (int)((unsigned)from[d] | (d + 1 < D ? (unsigned)from[d + 1] << 16 : 0u));
  }
}

// to [pairs of n, ld] = rows interleaved in pairs. Columns (to a multiple of 16) and the last row (to a multiple of 2)
// are filled up with zeros.
[[maybe_unused]] void interleave_rows(Pair* to, i64 ld, const u16* from, i64 ld_from, i64 n, i64 D) {
  for (i64 r = 0; r < n; r += 2, to += ld, from += 2 * ld_from) {
    const u16* second = from + ld_from;
    const bool both = r + 1 < n;
    i64 d = 0;
    for (; d + kL <= D; d += kL) {
      Words x = load_halves(from + d);
      if (both) x |= load_halves(second + d) << 16;
      store_pairs(to + d, (I)x);
    }
    for (; d < round16(D); ++d) to[d] = d < D ? (int)((unsigned)from[d] | (both ? (unsigned)second[d] << 16 : 0u)) : 0;
  }
}

// to [strip][pairs of D][64] = from [n, D] transposed, n <= kTileColumns. Columns up to a multiple of 16 are zero.
[[maybe_unused]] void transpose_pairs(Pair* to, const u16* from, i64 ld_from, i64 n, i64 D) {
  const i64 depth = pairs_of(D);
  for (i64 j = 0; j < round16(n); j += kL) {
    Pair* strip = to + j / kStrip * kStrip * depth + j % kStrip;
    const i64 full = smaller(n - j, kL);
    i64 p = 0;
    if (full == kL) {
      for (; 2 * (p + kL) <= D; p += kL) {
        F x[kL];
#pragma GCC unroll 16
        for (int l = 0; l < kL; ++l) memcpy(&x[l], from + (j + l) * ld_from + 2 * p, sizeof(F));
        transpose_square(x);
#pragma GCC unroll 16
        for (int l = 0; l < kL; ++l) store_pairs(strip + (p + l) * kStrip, (I)x[l]);
      }
    }
    for (; p < depth; ++p)
      for (i64 l = 0; l < kL; ++l) {
        const u16* at = from + (j + l) * ld_from + 2 * p;
        strip[p * kStrip + l] = l < full ? (int)((unsigned)at[0] | (2 * p + 1 < D ? (unsigned)at[1] << 16 : 0u)) : 0;
      }
  }
}

// to [D] = from * factor, rounded once.
inline void narrow_row(u16* to, const float* from, i64 D, float factor) {
  i64 d = 0;
  for (; d + kL <= D; d += kL) store_narrow(to + d, load(from + d) * Simd::set1(factor));
  for (; d < D; ++d) to[d] = narrowed(from[d] * factor);
}

// Returns the sum of a[d] * b[d].
inline float dot_rows(const u16* a, const u16* b, i64 D) {
  F sum = F{};
  i64 d = 0;
  for (; d + kL <= D; d += kL) sum = Simd::fma(widened(a + d), widened(b + d), sum);
  float total = sum_of(sum);
  for (; d < D; ++d) total += widened_one(a[d]) * widened_one(b[d]);
  return total;
}

}  // namespace
}  // namespace molen::math::attention_detail
