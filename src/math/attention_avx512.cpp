// Attention on AVX-512. Compiled with flags of its own (CMakeLists.txt): plain headers only.
#if defined(__x86_64__)
#define MOLEN_SIMD_BITS 512

#include "math/attention_inl.h"

namespace molen::math::attention_detail {
const Kernels kAvx512Kernels = {forward_rows, backward_columns, backward_rows};
}
#endif
