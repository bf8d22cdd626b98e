// Attention of a context rank on any processor: vectors of four floats, which every 64-bit machine has.
#define MOLEN_SIMD_BITS 128

#include "math/context_attention_inl.h"

namespace molen::math::attention_detail {
const ContextKernels kGenericContextKernels = {context_forward_rows, context_backward_keys, context_backward_rows};
}
