// Compute ops: passes the operands of a step to the functions of model/parts.h.
#include "exec/bind_compute.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "exec/bind_context.h"
#include "exec/operands.h"
#include "program/signature.h"

namespace molen::exec {
namespace {

using arch::Part;

Kernel bind_forward(const Operands& o, const Common& common, const program::Compute& op, const model::RopeTable& rope) {
  const std::int64_t n = o.tokens();
  switch (op.part) {
    case Part::kEmbed: {
      auto ids = o.view(Arg::kIds, {n}), table = o.table(o.param(), Role::kEmbedding),
           positions = o.param().weight(Role::kPositions);
      auto x = o.rows(Arg::kY);
      return [=](RunState&, math::Scratch& s) mutable {
        model::embed_forward(common.context(s), ids, table, positions, x);
      };
    }
    case Part::kNormQkv: {
      auto x = o.rows(Arg::kX), out = o.rows(Arg::kY);
      auto norm = o.param().attention_norm();
      auto qkv = o.param().qkv();
      auto stats = o.stats();
      return [=, &rope](RunState&, math::Scratch& s) mutable {
        model::norm_qkv_forward(common.context(s), x, norm, qkv, rope, stats, out);
      };
    }
    case Part::kAttention: {
      auto qkv = o.rows(Arg::kQkv), out = o.rows(Arg::kY);
      auto lse = o.view(Arg::kLse, {common.shape.batch, common.arch.heads, common.shape.sequence});
      return [=](RunState&, math::Scratch& s) mutable { model::attention_forward(common.context(s), qkv, out, lse); };
    }
    case Part::kOutProjection: {
      auto attention = o.rows(Arg::kX), x = o.residual(), mid = o.rows(Arg::kY);
      auto output = o.param().output();
      return [=](RunState&, math::Scratch& s) mutable {
        model::output_projection_forward(common.context(s), attention, x, output, mid);
      };
    }
    case Part::kNormUp: {
      auto mid = o.rows(Arg::kX), out = o.rows(Arg::kY);
      auto norm = o.param().mlp_norm();
      auto up = o.param().up();
      auto stats = o.stats();
      return [=](RunState&, math::Scratch& s) mutable {
        model::norm_up_forward(common.context(s), mid, norm, up, stats, out);
      };
    }
    case Part::kActivation: {
      auto up = o.rows(Arg::kX), a = o.rows(Arg::kY);
      return [=](RunState&, math::Scratch& s) mutable { model::activation_forward(common.context(s), up, a); };
    }
    case Part::kDown: {
      auto a = o.rows(Arg::kX), mid = o.residual(), y = o.rows(Arg::kY);
      auto down = o.param().down();
      return [=](RunState&, math::Scratch& s) mutable { model::down_forward(common.context(s), a, mid, down, y); };
    }
    case Part::kFinalNorm: {
      auto x = o.rows(Arg::kX), y = o.rows(Arg::kY);
      auto norm = common.arch.norm == arch::Norm::kLayerPlain ? model::NormWeights{} : o.param().final_norm();
      auto stats = o.stats();
      return
          [=](RunState&, math::Scratch& s) mutable { model::final_norm_forward(common.context(s), x, norm, stats, y); };
    }
    case Part::kHead:
    case Part::kHeadLogits:
    case Part::kHeadLoss:
      break;
  }
  throw Error("the head is bound apart");
}

Kernel bind_backward(const Operands& o, const Common& common, const program::Compute& op,
                     const model::RopeTable& rope) {
  const std::int64_t n = o.tokens();
  switch (op.part) {
    case Part::kEmbed: {
      auto ids = o.view(Arg::kIds, {n}), d_x = o.rows(Arg::kDY);
      auto d_table = o.table(o.grad(), Role::kEmbedding), d_positions = o.grad().weight(Role::kPositions);
      return [=](RunState&, math::Scratch& s) mutable {
        model::embed_backward(common.context(s), ids, d_x, d_table, d_positions);
      };
    }
    case Part::kNormQkv: {
      auto d_qkv = o.rows(Arg::kDY), x = o.rows(Arg::kX), d_x = o.rows(Arg::kDX);
      auto stats = o.stats();
      auto norm = o.param().attention_norm(), d_norm = o.grad().attention_norm();
      auto qkv = o.param().qkv(), d_w = o.grad().qkv();
      auto before = o.residual_gradient_beside();
      return [=, &rope](RunState&, math::Scratch& s) mutable {
        if (before.defined()) d_x.copy_(before);
        model::norm_qkv_backward(common.context(s), d_qkv, x, stats, norm, qkv, rope, d_x, d_norm, d_w);
      };
    }
    case Part::kAttention: {
      auto d_o = o.rows(Arg::kDY), qkv = o.rows(Arg::kQkv), out = o.rows(Arg::kY), d_qkv = o.rows(Arg::kDQkv);
      auto lse = o.view(Arg::kLse, {common.shape.batch, common.arch.heads, common.shape.sequence});
      return [=](RunState&, math::Scratch& s) mutable {
        model::attention_backward(common.context(s), d_o, qkv, out, lse, d_qkv);
      };
    }
    case Part::kOutProjection: {
      auto d_x = o.rows(Arg::kDY), attention = o.rows(Arg::kX), d_o = o.rows(Arg::kDX);
      auto output = o.param().output(), d_w = o.grad().output();
      return [=](RunState&, math::Scratch& s) mutable {
        model::output_projection_backward(common.context(s), d_x, attention, output, d_o, d_w);
      };
    }
    case Part::kNormUp: {
      auto d_up = o.rows(Arg::kDY), mid = o.rows(Arg::kX), d_x = o.rows(Arg::kDX);
      auto stats = o.stats();
      auto norm = o.param().mlp_norm(), d_norm = o.grad().mlp_norm();
      auto up = o.param().up(), d_w = o.grad().up();
      auto before = o.residual_gradient_beside();
      return [=](RunState&, math::Scratch& s) mutable {
        if (before.defined()) d_x.copy_(before);
        model::norm_up_backward(common.context(s), d_up, mid, stats, norm, up, d_x, d_norm, d_w);
      };
    }
    case Part::kActivation: {
      auto d_a = o.rows(Arg::kDY), up = o.rows(Arg::kX), d_up = o.rows(Arg::kDX);
      return [=](RunState&, math::Scratch& s) mutable { model::activation_backward(common.context(s), d_a, up, d_up); };
    }
    case Part::kDown: {
      auto d_x = o.rows(Arg::kDY), a = o.rows(Arg::kX), d_a = o.rows(Arg::kDX);
      auto down = o.param().down(), d_w = o.grad().down();
      return
          [=](RunState&, math::Scratch& s) mutable { model::down_backward(common.context(s), d_x, a, down, d_a, d_w); };
    }
    case Part::kFinalNorm: {
      auto d_y = o.rows(Arg::kDY), x = o.rows(Arg::kX), d_x = o.rows(Arg::kDX);
      auto stats = o.stats();
      const bool plain = common.arch.norm == arch::Norm::kLayerPlain;
      auto norm = plain ? model::NormWeights{} : o.param().final_norm(),
           d_norm = plain ? model::NormWeights{} : o.grad().final_norm();
      return [=](RunState&, math::Scratch& s) mutable {
        model::final_norm_backward(common.context(s), d_y, x, stats, norm, d_x, d_norm);
      };
    }
    case Part::kHead:
    case Part::kHeadLogits:
    case Part::kHeadLoss:
      break;
  }
  throw Error("the head is bound apart");
}

Kernel bind_head(const Operands& o, const Common& common, std::int64_t first, const program::Compute& op,
                 double grad_scale) {
  const std::int64_t count = common.shape.chunk;
  const Role role = common.arch.tied ? Role::kEmbedding : Role::kHead;
  auto y = o.rows(Arg::kX).narrow(0, first, count), labels = o.view(Arg::kLabels, {o.tokens()}).narrow(0, first, count);
  auto head = o.table(o.param(), role);
  auto losses = o.view(Arg::kLosses, {o.tokens()}).narrow(0, first, count);
  auto scalars = o.view(Arg::kScalars, {program::kNumScalars});
  if (op.pass == program::ComputePass::kForward)
    return [=](RunState&, math::Scratch& s) mutable {
      model::head_loss_forward(common.context(s), y, labels, head, losses);
      add_losses(losses, scalars);
    };
  auto d_y = o.rows(Arg::kDX).narrow(0, first, count), d_head = o.table(o.grad(), role);
  return [=](RunState& run, math::Scratch& s) mutable {
    model::head_loss(common.context(s), y, labels, head, grad_scale * run.input->loss_scale, losses, d_y, d_head);
    add_losses(losses, scalars);
  };
}

}  // namespace

void add_losses(const at::Tensor& losses, at::Tensor& scalars) {
  if (!losses.device().is_cpu()) {
    scalars.select(0, program::kLossSum).add_(losses.sum(at::kDouble));
    return;
  }
  // Adds in order and in double, without ATen: its sum would allocate.
  double sum = 0.0;
  for (std::int64_t i = 0; i < losses.numel(); ++i)
    sum += losses.scalar_type() == at::kDouble ? losses.data_ptr<double>()[i]
                                               : static_cast<double>(losses.data_ptr<float>()[i]);
  scalars.data_ptr<double>()[program::kLossSum] += sum;
}

Kernel bind_compute(const BindContext& context, const program::Step& step, const program::Compute& op) {
  const auto& p = context.program;
  const auto& setting = p.setting;
  const bool piece = program::by_chunks(setting, op.part);
  const Operands operands(context, step, piece ? op.chunk : -1);
  const model::RopeTable& rope = context.rope.at(piece ? static_cast<std::size_t>(op.chunk) : 0);
  Common common{p.local,
                {setting.micro_batch, setting.local_sequence(), 0, setting.compute, setting.threads, setting.kernels},
                step.updates(Arg::kGrad),
                operands.share(),
                positions_of(context.program.setting, context.coordinates)};
  if (piece) {
    // A piece is either whole sequences, or consecutive rows with a RoPE table of their own.
    const std::int64_t rows = operands.tokens(), length = setting.local_sequence();
    const bool whole = program::chunk_rows(setting, op.chunk).first % length == 0 && rows % length == 0;
    common.shape.batch = whole ? rows / length : 1;
    common.shape.sequence = rows / common.shape.batch;
  }
  if (arch::is_head(op.part)) {
    common.shape.chunk = setting.head_chunk_tokens(op.chunk);
    // Gradients belong to the mean over all positions of the global batch, times the step's loss scale. ClipScale
    // corrects for positions without a label and removes the scale.
    const double scale = 1.0 / (static_cast<double>(setting.global_batch) * static_cast<double>(setting.sequence));
    const std::int64_t first = op.chunk * setting.head_chunk;
    return op.part == Part::kHead ? bind_head(operands, common, first, op, scale)
                                  : bind_shared_head(operands, common, first, op, scale, setting.head_chunk_tokens(0));
  }
  if (op.pass == program::ComputePass::kInput) common.half = model::Half::kInput;
  if (op.pass == program::ComputePass::kWeights) common.half = model::Half::kWeights;
  if (op.part == Part::kAttention && setting.document_mask) common.documents = operands.flat(Arg::kDocuments);
  if (op.part == Part::kAttention && setting.context())
    return setting.ring() ? bind_ring_attention(operands, common, op, setting, context.coordinates)
                          : bind_gathered_attention(operands, common, op, setting);
  if (op.part == Part::kNormQkv && setting.tensor() && arch::kv_replicated(p.arch, setting.tensor_ranks()))
    return bind_copied_qkv(operands, common, p.arch, op, rope);
  if (common.half != model::Half::kBoth && arch::has_halves(op.part)) return bind_half(operands, common, op, rope);
  return program::is_backward(op.pass) ? bind_backward(operands, common, op, rope)
                                       : bind_forward(operands, common, op, rope);
}

}  // namespace molen::exec
