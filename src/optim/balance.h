// The update of a router's bias (arXiv 2408.15664), which has no gradient.
#pragma once

#include <ATen/core/Tensor.h>

namespace molen::optim {

// Moves the bias of each expert by `rate`: up where the expert had fewer tokens than the mean, down where it had
// more. Both tensors are on the host, in fp32 or in fp64.
void balance(double rate, const at::Tensor& tokens_E, const at::Tensor& bias_E);

}  // namespace molen::optim
