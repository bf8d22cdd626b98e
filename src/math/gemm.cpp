#include "math/gemm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

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

// A short and very wide product (the head's logits): each thread makes its own columns with a product of its own. MKL
// cuts such shapes worse: 28 ms against 32 for 256 x 32000 x 512 on two cores.
void wide_product_nt(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                     bool accumulate, float* c) {
  constexpr std::int64_t kGrain = 64;
  const std::int64_t blocks = (n + kGrain - 1) / kGrain;
#pragma omp parallel num_threads(threads)
  {
    const c10::InferenceMode guard;  // a property of the thread
    const std::int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
    const std::int64_t first = std::min(n, blocks * t / count * kGrain),
                       last = std::min(n, blocks * (t + 1) / count * kGrain);
    if (first < last) {
      at::Tensor out = at::from_blob(c + first, {m, last - first}, {n, 1}, at::TensorOptions().dtype(at::kFloat));
      const at::Tensor right = view(b + first * k, last - first, k).t();
      if (accumulate)
        at::addmm_out(out, out, view(a, m, k), right);
      else
        at::mm_out(out, view(a, m, k), right);
    }
  }
}

}  // namespace

void matmul_nt(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate,
               float* c) {
  const c10::InferenceMode guard;
  const int threads = at::get_num_threads();
  if (threads > 1 && m > 1 && n >= 16 * m && n >= 1024 * threads && !omp_in_parallel())
    return wide_product_nt(threads, m, n, k, a, b, accumulate, c);
  product(view(a, m, k), view(b, n, k).t(), accumulate, c, m, n);
}
void matmul_nn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate,
               float* c) {
  const c10::InferenceMode guard;
  product(view(a, m, k), view(b, k, n), accumulate, c, m, n);
}
void matmul_tn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b, bool accumulate,
               float* c) {
  const c10::InferenceMode guard;
  product(view(a, k, m).t(), view(b, k, n), accumulate, c, m, n);
}

}  // namespace molen::math
