// The sum of squares of flat gradients, for clipping by their global norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace molen::optim {

// Returns the sum of squares in double, in an order that does not depend on `threads`.
template <class T>
double sum_squares(const T* values, std::int64_t count, int threads);
extern template double sum_squares<float>(const float*, std::int64_t, int);
extern template double sum_squares<double>(const double*, std::int64_t, int);

// Returns the sum of squares of a flat gradient as an fp64 scalar on the gradient's device. Squares of an fp32 gradient
// add up in fp32 within blocks of 1024, whose sums add up in fp64. Squares below 1e-38 lose digits and then count as 0;
// a block whose sum exceeds 3e38 is infinite.
at::Tensor sum_squares_by_aten(const at::Tensor& grad);

}  // namespace molen::optim
