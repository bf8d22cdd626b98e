// Products whose results are added to the residual stream. program/parts/projection.cpp says what each half of a
// backward reads and writes. In one half, the operands that only the other half takes are undefined.
#include "exec/parts/part.h"

namespace molen::exec {
namespace {

// The projections differ in the place of their weights and in the functions that compute them.
struct Projection {
  model::Linear (UnitWeights::*weights)() const;
  decltype(&model::down_forward) forward;
  decltype(&model::down_backward) backward;
};

Kernel bind_projection(const PartCall& call, const Projection& part) {
  const Operands& o = call.operands;
  if (!call.backward()) {
    auto in = o.rows(Arg::kX), residual = o.residual(), out = o.rows(Arg::kY);
    auto product = (o.param().*part.weights)();
    return [=, common = call.common](RunState&, math::Scratch& s) mutable {
      part.forward(common.context(s), in, residual, product, out);
    };
  }
  const arch::Pass half = call.common.pass;
  const at::Tensor d_out = o.rows(Arg::kDY);
  at::Tensor in, d_in;
  model::Linear product, d_product;
  if (half != arch::Pass::kBackwardInput) {
    in = o.rows(Arg::kX);
    d_product = (o.grad().*part.weights)();
  }
  if (half != arch::Pass::kBackwardWeights) {
    product = (o.param().*part.weights)();
    d_in = o.rows(Arg::kDX);
  }
  return [=, common = call.common](RunState&, math::Scratch& s) mutable {
    part.backward(common.context(s), d_out, in, product, d_in, d_product);
  };
}

Kernel bind_out_projection(const PartCall& call) {
  return bind_projection(call,
                         {&UnitWeights::output, &model::output_projection_forward, &model::output_projection_backward});
}

Kernel bind_down(const PartCall& call) {
  return bind_projection(call, {&UnitWeights::down, &model::down_forward, &model::down_backward});
}

Kernel bind_shared_down(const PartCall& call) {
  return bind_projection(call, {&UnitWeights::shared_down, &model::down_forward, &model::down_backward});
}

}  // namespace

std::vector<PartBinding> projection_bindings() {
  return {{arch::Part::kOutProjection, bind_out_projection},
          {arch::Part::kDown, bind_down},
          {arch::Part::kSharedDown, bind_shared_down}};
}

}  // namespace molen::exec
