// Split backwards. program/signature.cpp gives what each half reads and writes (backward_input, backward_weights).
#include "exec/operands.h"

namespace molen::exec {
namespace {

using arch::Part;

// A norm and the linear layer after it.
struct NormHalf {
  at::Tensor d_out, x, d_x, before;
  model::NormSaved stats;
  model::NormWeights norm, d_norm;
  model::Linear product, d_product;

  NormHalf(const Operands& o, const Common& common, bool qkv)
      : d_out(o.rows(qkv && common.half == model::Half::kInput ? Arg::kDProjected : Arg::kDY)),
        x(o.rows(Arg::kX)),
        stats(o.stats()) {
    const auto norm_of = [&](const UnitWeights& unit) { return qkv ? unit.attention_norm() : unit.mlp_norm(); };
    const auto product_of = [&](const UnitWeights& unit) { return qkv ? unit.qkv() : unit.up(); };
    norm = norm_of(o.param());
    if (common.half == model::Half::kWeights) {
      d_product = product_of(o.grad());
      return;
    }
    d_x = o.rows(Arg::kDX);
    before = o.residual_gradient_beside();
    product = product_of(o.param());
    if (common.arch.norm != arch::Norm::kLayerPlain) d_norm = norm_of(o.grad());
  }
  void bring_over() {
    if (before.defined()) d_x.copy_(before);
  }
};

Kernel bind_norm_half(const Operands& o, const Common& common, const program::Compute& op,
                      const model::RopeTable& rope) {
  const bool qkv = op.part == Part::kNormQkv;
  NormHalf h(o, common, qkv);
  return [=, &rope](RunState&, math::Scratch& s) mutable {
    h.bring_over();
    const model::Context context = common.context(s);
    if (qkv)
      model::norm_qkv_backward(context, h.d_out, h.x, h.stats, h.norm, h.product, rope, h.d_x, h.d_norm, h.d_product);
    else
      model::norm_up_backward(context, h.d_out, h.x, h.stats, h.norm, h.product, h.d_x, h.d_norm, h.d_product);
  };
}

Kernel bind_product_half(const Operands& o, const Common& common, const program::Compute& op) {
  const bool output = op.part == Part::kOutProjection;
  const bool weights = common.half == model::Half::kWeights;
  const auto product_of = [&](const UnitWeights& unit) { return output ? unit.output() : unit.down(); };
  const at::Tensor d_out = o.rows(Arg::kDY);
  at::Tensor in, d_in;
  model::Linear product, d_product;
  if (weights) {
    in = o.rows(Arg::kX);
    d_product = product_of(o.grad());
  } else {
    product = product_of(o.param());
    d_in = o.rows(Arg::kDX);
  }
  return [=](RunState&, math::Scratch& s) mutable {
    const model::Context context = common.context(s);
    if (output)
      model::output_projection_backward(context, d_out, in, product, d_in, d_product);
    else
      model::down_backward(context, d_out, in, product, d_in, d_product);
  };
}

}  // namespace

Kernel bind_half(const Operands& o, const Common& common, const program::Compute& op, const model::RopeTable& rope) {
  return op.part == Part::kNormQkv || op.part == Part::kNormUp ? bind_norm_half(o, common, op, rope)
                                                               : bind_product_half(o, common, op);
}

}  // namespace molen::exec
