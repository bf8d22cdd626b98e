// Attention on AVX2 with FMA. Compiled with flags of its own (CMakeLists.txt): plain headers only.
#if defined(__x86_64__)
#include <immintrin.h>

#include "math/attention_kernels.h"

namespace {

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

}  // namespace

#include "math/attention_inl.h"

namespace molen::math::attention_detail {
const Kernels kAvx2Kernels = {forward_rows, backward_columns, backward_rows};
}
#endif
