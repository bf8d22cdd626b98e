// The vector type of the attention kernels, for the instruction set that the including file selects: MOLEN_SIMD_BITS
// 512 (AVX-512), 256 (AVX2 with FMA) or 128 (any processor: vectors of four floats). A product's block is 6 rows by
// kVectors vectors.
#ifndef MOLEN_SIMD_BITS
#error "MOLEN_SIMD_BITS: which instruction set?"
#endif
#if MOLEN_SIMD_BITS > 128
#include <immintrin.h>
#endif

namespace {

#if MOLEN_SIMD_BITS == 512
struct Simd {
  static constexpr int kLanes = 16, kVectors = 4;
  typedef float F __attribute__((vector_size(64)));
  typedef int I __attribute__((vector_size(64)));
  static F set1(float x) { return (F)_mm512_set1_ps(x); }
  static F fma(F a, F b, F c) { return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
  static F max(F a, F b) {
    return (F)_mm512_maskz_max_ps((__mmask16)-1, (__m512)a, (__m512)b);
  }  // the masked form is used because gcc 12 warns about the plain one
  static F zero_below(F value, F x, F limit) {
    return (F)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, (__m512)limit, _CMP_NLT_UQ), (__m512)value);
  }
};
#elif MOLEN_SIMD_BITS == 256
struct Simd {
  static constexpr int kLanes = 8, kVectors = 2;
  typedef float F __attribute__((vector_size(32)));
  typedef int I __attribute__((vector_size(32)));
  static F set1(float x) { return (F)_mm256_set1_ps(x); }
  static F fma(F a, F b, F c) { return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
  static F max(F a, F b) { return (F)_mm256_max_ps((__m256)a, (__m256)b); }
  static F zero_below(F value, F x, F limit) {
    return (F)_mm256_and_ps((__m256)value, _mm256_cmp_ps((__m256)x, (__m256)limit, _CMP_NLT_UQ));
  }
};
#else
struct Simd {
  static constexpr int kLanes = 4, kVectors = 2;
  typedef float F __attribute__((vector_size(16)));
  typedef int I __attribute__((vector_size(16)));
  static F set1(float x) { return F{x, x, x, x}; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F max(F a, F b) { return a > b ? a : b; }
  // Returns value where x is not below limit, and zero elsewhere. A NaN is not below any limit.
  static F zero_below(F value, F x, F limit) { return x < limit ? F{} : value; }
};
#endif

}  // namespace
