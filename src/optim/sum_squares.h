// The sum of squares of flat gradients, for clipping by their global norm.
#pragma once

#include <cstdint>

namespace molen::optim {

// Returns the sum of squares in double, in an order that does not depend on `threads`.
template <class T>
double sum_squares(const T* values, std::int64_t count, int threads);
extern template double sum_squares<float>(const float*, std::int64_t, int);
extern template double sum_squares<double>(const double*, std::int64_t, int);

}  // namespace molen::optim
