// AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2, in PyTorch's form) and sums over flat gradients.
#pragma once

#include <cstdint>

namespace molen::optim {

struct AdamW {
  double lr = 3e-4, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

// One update of `count` elements; `step` counts from 1. The gradient is multiplied by `grad_scale` (clipping and
// averaging) as it is read:  p *= 1 - lr*wd;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
//                 p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)
// Element-wise, so any split of the range gives the same bits.
template <class T>
void adamw_update(const AdamW& options, std::int64_t step, bool decay, double grad_scale, std::int64_t count,
                  int threads, const T* grad, T* param, T* m, T* v);
extern template void adamw_update<float>(const AdamW&, std::int64_t, bool, double, std::int64_t, int, const float*,
                                         float*, float*, float*);
extern template void adamw_update<double>(const AdamW&, std::int64_t, bool, double, std::int64_t, int, const double*,
                                          double*, double*, double*);

// Returns the sum of squares in double, in an order that does not depend on `threads`.
template <class T>
double sum_squares(const T* values, std::int64_t count, int threads);
extern template double sum_squares<float>(const float*, std::int64_t, int);
extern template double sum_squares<double>(const double*, std::int64_t, int);

}  // namespace molen::optim
