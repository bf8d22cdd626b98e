#include "optim/balance.h"

#include "math/reference_routing.h"

namespace molen::optim {

void balance(double rate, const at::Tensor& tokens, const at::Tensor& bias) {
  if (bias.scalar_type() == at::kDouble)
    math::reference::update_bias(bias.numel(), rate, tokens.const_data_ptr<double>(), bias.data_ptr<double>());
  else
    math::reference::update_bias(bias.numel(), rate, tokens.const_data_ptr<float>(), bias.data_ptr<float>());
}

}  // namespace molen::optim
