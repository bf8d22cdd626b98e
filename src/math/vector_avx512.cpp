// Vector kernels on AVX-512. Compiled with flags of its own: plain headers only.
#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>

namespace {
struct Simd {
  static constexpr int kLanes = 16;
  typedef float F __attribute__((vector_size(64)));
  typedef int32_t I __attribute__((vector_size(64)));
  static F fma(F a, F b, F c) { return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
};
}  // namespace

#define MOLEN_VECTOR_TABLE kVectorAvx512
#define MOLEN_VECTOR_NAME "avx512"
#include "math/vector_inl.h"
#endif
