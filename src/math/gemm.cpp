#include "math/gemm.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

namespace molen::math {
namespace {

at::Tensor view(const float* data, std::int64_t rows, std::int64_t columns) {
  return at::from_blob(const_cast<float*>(data), {rows, columns}, at::TensorOptions().dtype(at::kFloat));
}

void product(const at::Tensor& a, const at::Tensor& b, bool accumulate, float* c, std::int64_t m, std::int64_t n) {
  at::Tensor out = view(c, m, n);
  if (accumulate)
    at::addmm_out(out, out, a, b);
  else
    at::mm_out(out, a, b);
}

}  // namespace

void matmul_nt(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate, float* c) {
  const c10::InferenceMode guard;
  product(view(a, m, k), view(b, n, k).t(), accumulate, c, m, n);
}
void matmul_nn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate, float* c) {
  const c10::InferenceMode guard;
  product(view(a, m, k), view(b, k, n), accumulate, c, m, n);
}
void matmul_tn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate, float* c) {
  const c10::InferenceMode guard;
  product(view(a, k, m).t(), view(b, k, n), accumulate, c, m, n);
}

}  // namespace molen::math
