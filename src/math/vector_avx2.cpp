// Vector kernels on AVX2 with fused multiply-add. Compiled with flags of its own: plain headers only.
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>

namespace {
struct Simd {
  static constexpr int kLanes = 8;
  typedef float F __attribute__((vector_size(32)));
  typedef int32_t I __attribute__((vector_size(32)));
  static F fma(F a, F b, F c) { return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
};
}  // namespace

#define MOLEN_VECTOR_TABLE kVectorAvx2
#define MOLEN_VECTOR_NAME "avx2"
#include "math/vector_inl.h"
#endif
