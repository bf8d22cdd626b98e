// Values for the tests of optimizers.
#pragma once

#include <ATen/ATen.h>

#include "base/rng.h"

namespace molen::optim {

// Returns n values of a normal distribution with standard deviation `scale`; each key gives other values.
inline at::Tensor normal_values(std::uint64_t key, std::int64_t n, at::ScalarType type = at::kDouble,
                                double scale = 1.0) {
  at::Tensor x = at::empty({n}, at::kDouble);
  for (std::int64_t i = 0; i < n; ++i) x.data_ptr<double>()[i] = scale * normal_at(key, static_cast<std::uint64_t>(i));
  return x.to(type);
}

}  // namespace molen::optim
