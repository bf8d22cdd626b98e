// Initial weights: a pure function of (seed, parameter name, global element index), so every layout starts from the
// same bits.
#pragma once

#include <cstdint>

#include "exec/executor.h"

namespace molen::launch {

// Fills "param" (and "master" when it exists) of every unit; moments and gradients are zero from the start.
void initialize_parameters(exec::Executor& executor, std::uint64_t seed, int threads);

// Returns a parameter's view in the executor's "param" storage; for layouts that keep parameters whole.
at::Tensor parameter_view(const exec::Executor& executor, int parameter);

}  // namespace molen::launch
