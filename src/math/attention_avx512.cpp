// Attention on AVX-512. Compiled with flags of its own (CMakeLists.txt): plain headers only.
#if defined(__x86_64__)
#include <immintrin.h>

#include "math/attention_kernels.h"

namespace {

struct Simd {
  static constexpr int kLanes = 16, kVectors = 4;
  typedef float F __attribute__((vector_size(64)));
  typedef int I __attribute__((vector_size(64)));
  static F set1(float x) { return (F)_mm512_set1_ps(x); }
  static F fma(F a, F b, F c) { return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
  static F max(F a, F b) {
    return (F)_mm512_maskz_max_ps((__mmask16)-1, (__m512)a, (__m512)b);
  }  // gcc 12 warns of the plain one
  static F zero_below(F value, F x, F limit) {
    return (F)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, (__m512)limit, _CMP_NLT_UQ), (__m512)value);
  }
};

}  // namespace

#include "math/attention_inl.h"

namespace molen::math::attention_detail {
const Kernels kAvx512Kernels = {forward_rows, backward_columns, backward_rows};
}
#endif
