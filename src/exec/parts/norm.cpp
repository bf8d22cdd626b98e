#include "exec/parts/part.h"

namespace molen::exec {
namespace {

Kernel bind_final_norm(const PartCall& call) {
  const Operands& o = call.operands;
  const bool plain = call.common.arch.norm == arch::Norm::kLayerPlain;
  auto x = o.rows(Arg::kX);
  auto stats = o.stats();
  auto norm = plain ? model::NormWeights{} : o.param().final_norm();
  if (!call.backward())
    return [=, common = call.common, y = o.rows(Arg::kY)](RunState&, math::Scratch& s) mutable {
      model::final_norm_forward(common.context(s), x, norm, stats, y);
    };
  auto d_y = o.rows(Arg::kDY), d_x = o.rows(Arg::kDX);
  auto d_norm = plain ? model::NormWeights{} : o.grad().final_norm();
  return [=, common = call.common](RunState&, math::Scratch& s) mutable {
    model::final_norm_backward(common.context(s), d_y, x, stats, norm, d_x, d_norm);
  };
}

}  // namespace

std::vector<PartBinding> norm_bindings() {
  return {{arch::Part::kFinalNorm, bind_final_norm}};
}

}  // namespace molen::exec
