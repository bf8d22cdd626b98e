// Selects the table of vector kernels by the instruction sets that the processor reports.
#include "math/vector_kernels.h"

namespace molen::math {

const VectorKernels& vector_kernels() {
#if defined(__x86_64__)
  static const VectorKernels& best = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                                         ? kVectorAvx512
                                     : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? kVectorAvx2
                                                                                                       : kVectorGeneric;
  return best;
#else
  return kVectorGeneric;
#endif
}

}  // namespace molen::math
