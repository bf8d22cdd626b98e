// AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2, in PyTorch's form).
#pragma once

#include <cstdint>

#include "optim/update.h"

namespace molen::optim {

// Makes one update of `count` elements; `step` counts from 1. The gradient is multiplied by `grad_scale` (clipping and
// averaging) as it is read: p *= 1 - lr*wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
//                 p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)
// Element-wise, so any split of the range gives the same bits.
template <class T>
void adamw_update(const Options& options, std::int64_t step, bool decay, double grad_scale, std::int64_t count,
                  int threads, const T* grad, T* param, T* m, T* v);
extern template void adamw_update<float>(const Options&, std::int64_t, bool, double, std::int64_t, int, const float*,
                                         float*, float*, float*);
extern template void adamw_update<double>(const Options&, std::int64_t, bool, double, std::int64_t, int, const double*,
                                          double*, double*, double*);

// Is the rule of `optimizer.kind = "adamw"`, with states m and v.
void adamw(const Update& update, const Piece& piece);

}  // namespace molen::optim
