// Attention over rows in bf16 on any processor: vectors of four floats, which every 64-bit machine has. Compiled with
// flags of its own (CMakeLists.txt): plain headers only.
#define MOLEN_SIMD_BITS 128

#include "math/attention_narrow_inl.h"

namespace molen::math::attention_detail {
const NarrowAttention kNarrowGeneric = {forward_rows, backward_columns, finish_queries, backward_rows};
}
