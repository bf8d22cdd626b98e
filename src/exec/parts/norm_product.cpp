// A norm and the product after it. program/parts/norm_product.cpp says what each half of a backward reads and writes.
// In one half, the operands that only the other half takes are undefined.
#include <optional>

#include "exec/parts/copied_qkv.h"

namespace molen::exec {
namespace {

// Operands of a backward, or of a half of it.
struct NormBackward {
  at::Tensor d_out, x, d_x, before;
  model::NormSaved stats;
  model::NormWeights norm, d_norm;

  NormBackward(const PartCall& call, model::NormWeights (UnitWeights::*weights)() const) {
    const Operands& o = call.operands;
    const arch::Pass half = call.common.pass;
    d_out = o.rows(Arg::kDY);
    x = o.rows(Arg::kX);
    stats = o.stats();
    norm = (o.param().*weights)();
    if (half == arch::Pass::kBackwardWeights) return;
    d_x = o.rows(Arg::kDX);
    before = o.residual_gradient_beside();
    if (call.common.arch.norm != arch::Norm::kLayerPlain) d_norm = (o.grad().*weights)();
  }
  void bring_over(RunState& run) {
    if (before.defined()) run.copy(program::Epilogue::kCopy, d_x, before);
  }
};

// Sets the product's weights and gradients, as far as the half needs them.
void set_product(const PartCall& call, model::Linear (UnitWeights::*weights)() const, model::Linear& product,
                 model::Linear& d_product) {
  if (call.common.pass != arch::Pass::kBackwardWeights) product = (call.operands.param().*weights)();
  if (call.common.pass != arch::Pass::kBackwardInput) d_product = (call.operands.grad().*weights)();
}

Kernel bind_copied_qkv(const PartCall& call) {
  const arch::Architecture& all = call.context.program.arch;
  const Operands& o = call.operands;
  if (!call.backward()) {
    auto x = o.rows(Arg::kX), out = o.rows(Arg::kY);
    auto norm = o.param().attention_norm();
    const CopiedQkv weights(all, call.common, o.param());
    auto stats = o.stats();
    return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
      model::Linear qkv;
      run.epilogue(program::Epilogue::kAssemble, [&] {
        qkv = weights.assemble(s);
        return 2 * CopiedQkv::bytes_of(qkv);
      });
      model::norm_qkv_forward(common.context(s), x, norm, qkv, stats, out);
    };
  }
  NormBackward h(call, &UnitWeights::attention_norm);
  std::optional<CopiedQkv> weights, gradients;
  if (call.common.pass != arch::Pass::kBackwardWeights) weights.emplace(all, call.common, o.param());
  if (call.common.pass != arch::Pass::kBackwardInput) gradients.emplace(all, call.common, o.grad());
  return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
    h.bring_over(run);
    model::Linear qkv, d_w;
    const model::Context context = common.context(s);
    run.epilogue(program::Epilogue::kAssemble, [&] {
      if (weights) qkv = weights->assemble(s);
      if (gradients) d_w = gradients->fresh(s, context.accumulate);
      return (weights ? 2 * CopiedQkv::bytes_of(qkv) : 0) +
             (gradients && context.accumulate ? CopiedQkv::bytes_of(d_w) : 0);
    });
    model::norm_qkv_backward(context, h.d_out, h.x, h.stats, h.norm, qkv, h.d_x, h.d_norm, d_w);
    if (gradients)
      run.epilogue(program::Epilogue::kAssemble, [&] { return gradients->spread(d_w, context.accumulate); });
  };
}

Kernel bind_norm_qkv(const PartCall& call) {
  const int tensor_ranks = call.ranks(mesh::Axis::kTp);
  if (tensor_ranks > 1 && arch::kv_replicated(call.context.program.arch, tensor_ranks)) return bind_copied_qkv(call);
  const Operands& o = call.operands;
  if (!call.backward()) {
    auto x = o.rows(Arg::kX), out = o.rows(Arg::kY);
    auto norm = o.param().attention_norm();
    auto qkv = o.param().qkv();
    auto stats = o.stats();
    return [=, common = call.common](RunState&, math::Scratch& s) mutable {
      model::norm_qkv_forward(common.context(s), x, norm, qkv, stats, out);
    };
  }
  NormBackward h(call, &UnitWeights::attention_norm);
  model::Linear qkv, d_w;
  set_product(call, &UnitWeights::qkv, qkv, d_w);
  return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
    h.bring_over(run);
    model::norm_qkv_backward(common.context(s), h.d_out, h.x, h.stats, h.norm, qkv, h.d_x, h.d_norm, d_w);
  };
}

Kernel bind_norm_up(const PartCall& call) {
  const Operands& o = call.operands;
  if (!call.backward()) {
    auto mid = o.rows(Arg::kX), out = o.rows(Arg::kY);
    auto norm = o.param().mlp_norm();
    auto up = o.param().up();
    auto stats = o.stats();
    return [=, common = call.common](RunState&, math::Scratch& s) mutable {
      model::norm_up_forward(common.context(s), mid, norm, up, stats, out);
    };
  }
  NormBackward h(call, &UnitWeights::mlp_norm);
  model::Linear up, d_w;
  set_product(call, &UnitWeights::up, up, d_w);
  return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
    h.bring_over(run);
    model::norm_up_backward(common.context(s), h.d_out, h.x, h.stats, h.norm, up, h.d_x, h.d_norm, d_w);
  };
}

}  // namespace

std::vector<PartBinding> norm_product_bindings() {
  return {{arch::Part::kNormQkv, bind_norm_qkv}, {arch::Part::kNormUp, bind_norm_up}};
}

}  // namespace molen::exec
