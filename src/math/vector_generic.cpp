// Vector kernels on the instructions that every machine of this architecture has.
#include <stdint.h>

namespace {
struct Simd {
  static constexpr int kLanes = 4;
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  static F fma(F a, F b, F c) { return a * b + c; }
};
}  // namespace

#define MOLEN_VECTOR_TABLE kVectorGeneric
#define MOLEN_VECTOR_NAME "generic"
#include "math/vector_inl.h"
