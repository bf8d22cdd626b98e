// Compute ops whose binding on tensor ranks differs from the binding on a single rank.
#include <optional>

#include "exec/operands.h"

namespace molen::exec {
namespace {

using arch::Part;

// q|k|v of a rank that holds all key and value heads. Copies the rows that the rank's heads need together for a use,
// and spreads gradients back to the rows where they belong.
class CopiedQkv {
 public:
  CopiedQkv(const arch::Architecture& all, const Common& common, UnitWeights weights)
      : weights_(std::move(weights)),
        heads_(arch::kv_heads_of(all, common.share.rank, common.share.ranks)),
        rows_(common.arch.qkv_size()),
        head_dim_(common.arch.head_dim) {}

  // Copies the weights together, in the op's scratch.
  model::Linear assemble(math::Scratch& scratch) const {
    model::Linear all = empty(scratch);
    each([&](at::Tensor part, const at::Tensor& source) { part.copy_(source); }, all);
    return all;
  }
  model::Linear empty(math::Scratch& scratch) const {
    const at::Tensor q = weights_.weight(Role::kQuery), bias = weights_.weight(Role::kQueryBias);
    const auto make = [&](at::IntArrayRef shape, std::int64_t elements) {
      if (!q.device().is_cpu()) return at::empty(shape, q.options());
      return at::from_blob(scratch.take_bytes(elements * q.element_size()), shape, q.options());
    };
    model::Linear all{make({rows_, q.size(1)}, rows_ * q.size(1)), {}};
    if (bias.defined()) all.bias_O = make({rows_}, rows_);
    return all;
  }
  // Returns space for gradients that are computed anew; the norm's gradients are the unit's own and may be added to.
  model::Linear fresh(math::Scratch& scratch, bool adds) const {
    model::Linear d_w = empty(scratch);
    if (adds) {
      d_w.weight_OI.zero_();
      if (d_w.bias_O.defined()) d_w.bias_O.zero_();
    }
    return d_w;
  }
  // Treats these weights as gradients: writes or adds the gradients in `all`; the key and value heads of other ranks
  // get zero.
  void spread(const model::Linear& all, bool accumulate) const {
    if (!accumulate)
      for (const Role role : {Role::kKey, Role::kValue, Role::kKeyBias, Role::kValueBias})
        if (at::Tensor w = weights_.weight(role); w.defined()) w.zero_();
    const std::int64_t query = weights_.weight(Role::kQuery).size(0);
    std::int64_t row = 0;
    each(
        [&](const at::Tensor& part, at::Tensor target) {
          // Two of the rank's query heads may share one key head.
          if (accumulate || row >= query)
            target.add_(part);
          else
            target.copy_(part);
          row += part.size(0);
          if (row == rows_) row = 0;  // the weights are done, the biases follow
        },
        all);
  }

 private:
  // Calls f(part of `all`, the source rows of that part), in order.
  template <class F>
  void each(F&& f, const model::Linear& all) const {
    const auto one = [&](const at::Tensor& whole, Role query, Role key, Role value) {
      const at::Tensor q = weights_.weight(query);
      std::int64_t row = q.size(0);
      f(whole.narrow(0, 0, row), q);
      for (const Role role : {key, value})
        for (const std::int64_t head : heads_) {
          f(whole.narrow(0, row, head_dim_), weights_.weight(role).narrow(0, head * head_dim_, head_dim_));
          row += head_dim_;
        }
    };
    one(all.weight_OI, Role::kQuery, Role::kKey, Role::kValue);
    if (all.bias_O.defined()) one(all.bias_O, Role::kQueryBias, Role::kKeyBias, Role::kValueBias);
  }

  UnitWeights weights_;
  std::vector<std::int64_t> heads_;
  std::int64_t rows_, head_dim_;
};

}  // namespace

// The head of tensor ranks: computes logits and sums of a chunk; then, from all ranks' sums, losses and gradient.
Kernel bind_shared_head(const Operands& o, const Common& common, std::int64_t first, const program::Compute& op,
                        double grad_scale, std::int64_t largest) {
  const std::int64_t count = common.shape.chunk;
  const Role role = common.arch.tied ? Role::kEmbedding : Role::kHead;
  const auto part = [&](at::Tensor rows) { return rows.narrow(0, first, count); };
  if (op.part == Part::kHeadLogits) {
    auto y = part(o.rows(Arg::kX)), labels = part(o.view(Arg::kLabels, {o.tokens()})), head = o.table(o.param(), role);
    auto logits = o.flat(Arg::kLogits).narrow(0, 0, count * head.size(0)).view({count, -1}),
         sums = o.view(Arg::kSums, {largest, 2}).narrow(0, 0, count);
    return [=](RunState&, math::Scratch& s) mutable {
      model::head_logits_sums(common.context(s), y, labels, head, logits, sums);
    };
  }
  auto sums = o.view(Arg::kSums, {common.share.ranks, largest, 2}), labels = part(o.view(Arg::kLabels, {o.tokens()}));
  auto losses = part(o.view(Arg::kLosses, {o.tokens()})), scalars = o.view(Arg::kScalars, {program::kNumScalars});
  if (op.pass == program::ComputePass::kForward)
    return [=](RunState&, math::Scratch& s) mutable {
      model::head_shared_loss(common.context(s), sums, labels, losses);
      add_losses(losses, scalars);
    };
  auto y = part(o.rows(Arg::kX)), head = o.table(o.param(), role), d_y = part(o.rows(Arg::kDX)),
       d_head = o.table(o.grad(), role);
  auto logits = o.flat(Arg::kLogits).narrow(0, 0, count * head.size(0)).view({count, -1});
  return [=](RunState& run, math::Scratch& s) mutable {
    model::head_shared_gradient(common.context(s), sums, labels, logits, y, head, grad_scale * run.input->loss_scale,
                                losses, d_y, d_head);
    add_losses(losses, scalars);
  };
}

namespace {

Kernel bind_copied_qkv_weights(const Operands& o, const Common& common, const arch::Architecture& all,
                               const model::RopeTable& rope) {
  auto d_qkv = o.rows(Arg::kDY), x = o.rows(Arg::kX);
  auto stats = o.stats();
  auto norm = o.param().attention_norm();
  const CopiedQkv gradients(all, common, o.grad());
  return [=, &rope](RunState&, math::Scratch& s) mutable {
    const model::Context context = common.context(s);
    model::Linear d_w = gradients.fresh(s, context.accumulate);
    at::Tensor d_x;
    model::NormWeights d_norm;
    model::norm_qkv_backward(context, d_qkv, x, stats, norm, {}, rope, d_x, d_norm, d_w);
    gradients.spread(d_w, context.accumulate);
  };
}

}  // namespace

Kernel bind_copied_qkv(const Operands& o, const Common& common, const arch::Architecture& all,
                       const program::Compute& op, const model::RopeTable& rope) {
  if (!program::is_backward(op.pass)) {
    auto x = o.rows(Arg::kX), out = o.rows(Arg::kY);
    auto norm = o.param().attention_norm();
    const CopiedQkv weights(all, common, o.param());
    auto stats = o.stats();
    return [=, &rope](RunState&, math::Scratch& s) mutable {
      model::norm_qkv_forward(common.context(s), x, norm, weights.assemble(s), rope, stats, out);
    };
  }
  if (op.pass == program::ComputePass::kWeights) return bind_copied_qkv_weights(o, common, all, rope);
  const bool whole = op.pass == program::ComputePass::kBackward;
  const bool plain = all.norm == arch::Norm::kLayerPlain;
  auto d_qkv = o.rows(whole ? Arg::kDY : Arg::kDProjected), x = o.rows(Arg::kX), d_x = o.rows(Arg::kDX);
  auto stats = o.stats();
  auto norm = o.param().attention_norm(), d_norm = whole || !plain ? o.grad().attention_norm() : model::NormWeights{};
  auto before = o.residual_gradient_beside();
  const CopiedQkv weights(all, common, o.param());
  std::optional<CopiedQkv> gradients;
  if (whole) gradients.emplace(all, common, o.grad());
  return [=, &rope](RunState&, math::Scratch& s) mutable {
    if (before.defined()) d_x.copy_(before);
    const model::Linear qkv = weights.assemble(s);
    const model::Context context = common.context(s);
    model::Linear d_w;
    if (gradients) d_w = gradients->fresh(s, context.accumulate);
    model::norm_qkv_backward(context, d_qkv, x, stats, norm, qkv, rope, d_x, d_norm, d_w);
    if (gradients) gradients->spread(d_w, context.accumulate);
  };
}

}  // namespace molen::exec
