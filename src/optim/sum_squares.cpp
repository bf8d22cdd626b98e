#include "optim/sum_squares.h"

#include <ATen/ATen.h>

#include <vector>

#include "optim/blocks.h"

namespace molen::optim {
namespace {

// Keeps eight interleaved partial sums: a fixed order that the compiler may hold in one vector register.
template <class T>
MOLEN_INLINE double squares_block(const T* x, std::int64_t n) {
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
double sum_squares(const T* values, std::int64_t count, int threads) {
  std::vector<double> partial(static_cast<std::size_t>((count + kBlock - 1) / kBlock));
  for_blocks(count, threads, [&](std::int64_t at, std::int64_t n, std::int64_t block) {
    if constexpr (sizeof(T) == 4)
      partial[static_cast<std::size_t>(block)] = squares_f32(values + at, n);
    else
      partial[static_cast<std::size_t>(block)] = squares_f64(values + at, n);
  });
  double sum = 0;
  for (const double value : partial) sum += value;
  return sum;
}

template double sum_squares<float>(const float*, std::int64_t, int);
template double sum_squares<double>(const double*, std::int64_t, int);

at::Tensor sum_squares_by_aten(const at::Tensor& grad) {
  // ATen would write an fp64 copy of all elements first, which takes seven times as long on an H200 as these blocks.
  constexpr std::int64_t kAtOnce = 1024;
  const std::int64_t in_blocks = grad.scalar_type() == at::kFloat ? grad.numel() / kAtOnce * kAtOnce : 0;
  at::Tensor rest = grad.narrow(0, in_blocks, grad.numel() - in_blocks).to(at::kDouble).square().sum();
  if (in_blocks == 0) return rest;
  const at::Tensor norms = at::linalg_vector_norm(grad.narrow(0, 0, in_blocks).view({-1, kAtOnce}), 2, {1});
  return norms.to(at::kDouble).square().sum().add_(rest);
}

}  // namespace molen::optim
