// For tests: the tables of vector kernels that this processor can run.
#pragma once

#include <cstring>
#include <vector>

#include "math/vector_kernels.h"

namespace molen::math::testing {

inline std::vector<const VectorKernels*> tables() {
  std::vector<const VectorKernels*> list{&kVectorGeneric};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list.push_back(&kVectorAvx2);
  if (std::strcmp(vector_kernels().name, "avx512") == 0) list.push_back(&kVectorAvx512);
#endif
  return list;
}

}  // namespace molen::math::testing
