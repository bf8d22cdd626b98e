// Attention over rows in bf16 on AVX-512 with dot products of bf16. Compiled with flags of its own
// (CMakeLists.txt): plain headers only.
#if defined(__x86_64__)
#define MOLEN_SIMD_BITS 512

#include "math/attention_narrow_inl.h"

namespace molen::math::attention_detail {
const NarrowAttention kNarrowAvx512Bf16 = {forward_rows, backward_columns, finish_queries, backward_rows};
}
#endif
