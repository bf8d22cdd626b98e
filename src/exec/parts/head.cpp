// The head of a chunk, with the loss. Gradients are those of the mean loss over all positions of the global batch,
// times the step's loss scale. ClipScale corrects for positions without a label and removes the scale.
#include "exec/parts/part.h"

namespace molen::exec {
namespace {

// The rows of one chunk.
struct ChunkOfHead {
  std::int64_t first, count;  // tokens of the micro-batch
  std::int64_t largest;       // tokens of the largest chunk
  double grad_scale;
  Role table;

  explicit ChunkOfHead(const PartCall& call) {
    const program::Attributes& a = call.step.attributes;
    first = call.op.portion * a.tile;
    count = call.common.shape.chunk;
    largest = std::min(a.tile, a.rows.count());
    grad_scale = 1.0 / static_cast<double>(a.positions);
    table = call.common.arch.tied ? Role::kEmbedding : Role::kHead;
  }
  at::Tensor part(at::Tensor rows) const { return rows.narrow(0, first, count); }
};

// Adds the losses to scalars[kLossSum], in order and in double.
void add_losses(const at::Tensor& losses, at::Tensor& scalars) {
  if (!losses.device().is_cpu()) {
    scalars.select(0, program::kLossSum).add_(losses.sum(at::kDouble));
    return;
  }
  // The loop does not use ATen, whose sum would allocate.
  double sum = 0.0;
  for (std::int64_t i = 0; i < losses.numel(); ++i)
    sum += losses.scalar_type() == at::kDouble ? losses.data_ptr<double>()[i]
                                               : static_cast<double>(losses.data_ptr<float>()[i]);
  scalars.data_ptr<double>()[program::kLossSum] += sum;
}

Kernel bind_head(const PartCall& call) {
  const Operands& o = call.operands;
  const ChunkOfHead c(call);
  auto y = c.part(o.rows(Arg::kX)), labels = c.part(o.view(Arg::kLabels, {o.tokens()}));
  auto head = o.table(o.param(), c.table);
  auto losses = c.part(o.view(Arg::kLosses, {o.tokens()}));
  auto scalars = o.flat(Arg::kScalars);
  if (!call.backward())
    return [=, common = call.common](RunState&, math::Scratch& s) mutable {
      model::head_loss_forward(common.context(s), y, labels, head, losses);
      add_losses(losses, scalars);
    };
  auto d_y = c.part(o.rows(Arg::kDX)), d_head = o.table(o.grad(), c.table);
  return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
    model::head_loss(common.context(s), y, labels, head, c.grad_scale * run.step.input->loss_scale, losses, d_y,
                     d_head);
    add_losses(losses, scalars);
  };
}

// The head of tensor ranks has two ops. The first computes the logits and sums of a chunk; the second computes losses
// and gradient from all ranks' sums.
Kernel bind_head_logits(const PartCall& call) {
  const Operands& o = call.operands;
  const ChunkOfHead c(call);
  auto y = c.part(o.rows(Arg::kX)), labels = c.part(o.view(Arg::kLabels, {o.tokens()})),
       head = o.table(o.param(), c.table);
  auto logits = o.flat(Arg::kLogits).narrow(0, 0, c.count * head.size(0)).view({c.count, -1}),
       sums = o.view(Arg::kSums, {c.largest, 2}).narrow(0, 0, c.count);
  return [=, common = call.common](RunState&, math::Scratch& s) mutable {
    model::head_logits_sums(common.context(s), y, labels, head, logits, sums);
  };
}

Kernel bind_head_loss(const PartCall& call) {
  const Operands& o = call.operands;
  const ChunkOfHead c(call);
  auto sums = o.view(Arg::kSums, {call.common.share.ranks, c.largest, 2}),
       labels = c.part(o.view(Arg::kLabels, {o.tokens()}));
  auto losses = c.part(o.view(Arg::kLosses, {o.tokens()})), scalars = o.flat(Arg::kScalars);
  if (!call.backward())
    return [=, common = call.common](RunState&, math::Scratch& s) mutable {
      model::head_shared_loss(common.context(s), sums, labels, losses);
      add_losses(losses, scalars);
    };
  auto y = c.part(o.rows(Arg::kX)), head = o.table(o.param(), c.table), d_y = c.part(o.rows(Arg::kDX)),
       d_head = o.table(o.grad(), c.table);
  auto logits = o.flat(Arg::kLogits).narrow(0, 0, c.count * head.size(0)).view({c.count, -1});
  return [=, common = call.common](RunState& run, math::Scratch& s) mutable {
    model::head_shared_gradient(common.context(s), sums, labels, logits, y, head,
                                c.grad_scale * run.step.input->loss_scale, losses, d_y, d_head);
    add_losses(losses, scalars);
  };
}

}  // namespace

std::vector<PartBinding> head_bindings() {
  return {{arch::Part::kHead, bind_head},
          {arch::Part::kHeadLogits, bind_head_logits},
          {arch::Part::kHeadLoss, bind_head_loss}};
}

}  // namespace molen::exec
