// Attention on any processor: vectors of four floats, which every 64-bit machine has.
#define MOLEN_SIMD_BITS 128

#include "math/attention_inl.h"

namespace molen::math::attention_detail {
const Kernels kGenericKernels = {forward_rows, backward_columns, backward_rows};
}
