#include "exec/parts/part.h"

namespace molen::exec {
namespace {

Kernel bind_activation(const PartCall& call) {
  const Operands& o = call.operands;
  const auto up = o.rows(Arg::kX);
  if (!call.backward())
    return [=, common = call.common, a = o.rows(Arg::kY)](RunState&, math::Scratch& s) mutable {
      model::activation_forward(common.context(s), up, a);
    };
  return [=, common = call.common, d_a = o.rows(Arg::kDY), d_up = o.rows(Arg::kDX)](
             RunState&, math::Scratch& s) mutable { model::activation_backward(common.context(s), d_a, up, d_up); };
}

}  // namespace

std::vector<PartBinding> activation_bindings() {
  return {{arch::Part::kActivation, bind_activation}, {arch::Part::kSharedActivation, bind_activation}};
}

}  // namespace molen::exec
