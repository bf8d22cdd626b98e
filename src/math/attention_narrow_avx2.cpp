// Attention over rows in bf16 on AVX2 with FMA. Compiled with flags of its own
// (CMakeLists.txt): plain headers only.
#if defined(__x86_64__)
#define MOLEN_SIMD_BITS 256

#include "math/attention_narrow_inl.h"

namespace molen::math::attention_detail {
const NarrowAttention kNarrowAvx2 = {forward_rows, backward_columns, finish_queries, backward_rows};
}
#endif
