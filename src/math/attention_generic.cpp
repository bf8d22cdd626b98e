// Attention on any processor: vectors of four floats, which every 64-bit machine has.
#include "math/attention_kernels.h"

namespace {

struct Simd {
  static constexpr int kLanes = 4, kVectors = 2;  // a product's block is 6 rows by kVectors vectors
  typedef float F __attribute__((vector_size(16)));
  typedef int I __attribute__((vector_size(16)));
  static F set1(float x) { return F{x, x, x, x}; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F max(F a, F b) { return a > b ? a : b; }
  // value where x is not below limit (NaN is not), zero elsewhere
  static F zero_below(F value, F x, F limit) { return x < limit ? F{} : value; }
};

}  // namespace

#include "math/attention_inl.h"

namespace molen::math::attention_detail {
const Kernels kGenericKernels = {forward_rows, backward_columns, backward_rows};
}
