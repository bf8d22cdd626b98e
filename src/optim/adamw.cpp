#include "optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace molen::optim {
namespace {

constexpr std::int64_t kBlock = 1 << 14;

template <class T>
struct Coefficients {
  T keep, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_root, eps, grad_scale;
};

// clang-format off
// The function that chooses a clone runs before a sanitizer is ready.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOLEN_VECTOR_TARGETS __attribute__((target_clones("avx512f", "avx2,fma", "default")))
#else
#define MOLEN_VECTOR_TARGETS
#endif
// clang-format on

template <class T>
inline __attribute__((always_inline)) void update_block(const Coefficients<T>& c, std::int64_t n, const T* __restrict g,
                                                        T* __restrict p, T* __restrict m, T* __restrict v) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T gi = g[i] * c.grad_scale;
    const T mi = c.beta1 * m[i] + c.one_minus_beta1 * gi;
    const T vi = c.beta2 * v[i] + c.one_minus_beta2 * gi * gi;
    m[i] = mi;
    v[i] = vi;
    p[i] = p[i] * c.keep - c.step_size * mi / (std::sqrt(vi) * c.inverse_root + c.eps);
  }
}

// target_clones does not apply to templates, so there are two plain functions.
MOLEN_VECTOR_TARGETS void update_f32(const Coefficients<float>& c, std::int64_t n, const float* g, float* p, float* m,
                                     float* v) {
  update_block(c, n, g, p, m, v);
}
MOLEN_VECTOR_TARGETS void update_f64(const Coefficients<double>& c, std::int64_t n, const double* g, double* p,
                                     double* m, double* v) {
  update_block(c, n, g, p, m, v);
}

// Keeps eight interleaved partial sums: a fixed order that the compiler may hold in one vector register.
template <class T>
inline __attribute__((always_inline)) double squares_block(const T* x, std::int64_t n) {
  double partial[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) partial[k] += static_cast<double>(x[i + k]) * static_cast<double>(x[i + k]);
  double sum = 0;
  for (const double value : partial) sum += value;
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}
MOLEN_VECTOR_TARGETS double squares_f32(const float* x, std::int64_t n) {
  return squares_block(x, n);
}
MOLEN_VECTOR_TARGETS double squares_f64(const double* x, std::int64_t n) {
  return squares_block(x, n);
}

}  // namespace

template <class T>
void adamw_update(const AdamW& o, std::int64_t step, bool decay, double grad_scale, std::int64_t count, int threads,
                  const T* grad, T* param, T* m, T* v) {
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(o.beta2, static_cast<double>(step));
  const Coefficients<T> c{static_cast<T>(decay ? 1.0 - o.lr * o.weight_decay : 1.0),
                          static_cast<T>(o.beta1),
                          static_cast<T>(1.0 - o.beta1),
                          static_cast<T>(o.beta2),
                          static_cast<T>(1.0 - o.beta2),
                          static_cast<T>(o.lr / correction1),
                          static_cast<T>(1.0 / std::sqrt(correction2)),
                          static_cast<T>(o.eps),
                          static_cast<T>(grad_scale)};
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t at = b * kBlock, n = std::min(kBlock, count - at);
    if constexpr (sizeof(T) == 4)
      update_f32(c, n, grad + at, param + at, m + at, v + at);
    else
      update_f64(c, n, grad + at, param + at, m + at, v + at);
  }
}

template <class T>
double sum_squares(const T* values, std::int64_t count, int threads) {
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> partial(static_cast<std::size_t>(blocks));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t at = b * kBlock, n = std::min(kBlock, count - at);
    if constexpr (sizeof(T) == 4)
      partial[static_cast<std::size_t>(b)] = squares_f32(values + at, n);
    else
      partial[static_cast<std::size_t>(b)] = squares_f64(values + at, n);
  }
  double sum = 0;
  for (const double value : partial) sum += value;
  return sum;
}

template void adamw_update<float>(const AdamW&, std::int64_t, bool, double, std::int64_t, int, const float*, float*,
                                  float*, float*);
template void adamw_update<double>(const AdamW&, std::int64_t, bool, double, std::int64_t, int, const double*, double*,
                                   double*, double*);
template double sum_squares<float>(const float*, std::int64_t, int);
template double sum_squares<double>(const double*, std::int64_t, int);

}  // namespace molen::optim
