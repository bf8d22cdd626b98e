// Attention of a context rank on AVX2 with FMA. Compiled with flags of its own (CMakeLists.txt): plain headers only.
#if defined(__x86_64__)
#define MOLEN_SIMD_BITS 256

#include "math/context_attention_inl.h"

namespace molen::math::attention_detail {
const ContextKernels kAvx2ContextKernels = {context_forward_rows, context_backward_keys, context_backward_rows};
}
#endif
