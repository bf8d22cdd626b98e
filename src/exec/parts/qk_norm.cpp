#include "exec/parts/part.h"

namespace molen::exec {
namespace {

Kernel bind_qk_norm(const PartCall& call) {
  const Operands& o = call.operands;
  const auto x = o.rows(Arg::kX);
  const auto norms = o.param().qk_norm();
  if (!call.backward())
    return [=, common = call.common, y = o.rows(Arg::kY)](RunState&, math::Scratch& s) mutable {
      model::qk_norm_forward(common.context(s), x, norms, y);
    };
  return [=, common = call.common, d_qkv = o.rows(Arg::kDQkv), d_norms = o.grad().qk_norm()](RunState&,
                                                                                             math::Scratch& s) mutable {
    model::qk_norm_backward(common.context(s), x, norms, d_qkv, d_norms);
  };
}

}  // namespace

std::vector<PartBinding> qk_norm_bindings() {
  return {{arch::Part::kQkNorm, bind_qk_norm}};
}

}  // namespace molen::exec
