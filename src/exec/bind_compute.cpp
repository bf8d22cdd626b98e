// Compute ops: operands by position to the functions of model/parts.h.
#include "exec/bind_compute.h"

#include <ATen/ATen.h>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "exec/weights.h"
#include "program/signature.h"

namespace molen::exec {
namespace {

using arch::Part;
using arch::Role;

// The operands of one step as tensors of the shapes that model/parts.h names.
class Operands {
 public:
  Operands(const BindContext& context, const program::Step& step) : c_(context), step_(step) {}

  std::int64_t tokens() const { return c_.program.setting.tokens(); }
  at::Tensor read(std::size_t i, at::IntArrayRef shape) const { return c_.flat(step_.reads.at(i).buffer).view(shape); }
  at::Tensor write(std::size_t i, at::IntArrayRef shape) const {
    return c_.flat(step_.writes.at(i).buffer).view(shape);
  }
  at::Tensor read_flat(std::size_t i) const { return c_.flat(step_.reads.at(i).buffer); }
  at::Tensor write_flat(std::size_t i) const { return c_.flat(step_.writes.at(i).buffer); }
  at::Tensor read_rows(std::size_t i) const { return read(i, {tokens(), -1}); }
  at::Tensor write_rows(std::size_t i) const { return write(i, {tokens(), -1}); }

  model::NormSaved stats(int buffer) const {
    const at::Tensor flat = c_.flat(buffer);
    model::NormSaved saved;
    saved.rstd_N = flat.narrow(0, 0, tokens());
    if (c_.program.arch.norm != arch::Norm::kRms) saved.mean_N = flat.narrow(0, tokens(), tokens());
    return saved;
  }
  model::NormSaved read_stats(std::size_t i) const { return stats(step_.reads.at(i).buffer); }
  model::NormSaved write_stats(std::size_t i) const { return stats(step_.writes.at(i).buffer); }

  // The weights (or gradients) of the unit that a buffer holds.
  UnitWeights unit(int buffer) const {
    const int u = c_.program.unit_of_buffer(buffer);
    MOLEN_CHECK(u >= 0, "operand {} is no unit", c_.program.buffers[static_cast<std::size_t>(buffer)].name);
    return {c_.program.local, c_.program.parameters, c_.program.units[static_cast<std::size_t>(u)], c_.flat(buffer)};
  }
  UnitWeights read_unit(std::size_t i) const { return unit(step_.reads.at(i).buffer); }
  UnitWeights write_unit(std::size_t i) const { return unit(step_.writes.at(i).buffer); }

  // The rows that this rank has of a table of the vocabulary.
  at::Tensor table(const UnitWeights& weights, Role role) const {
    const auto [first, last] = vocabulary();
    return weights.weight(role).narrow(0, 0, last - first);
  }
  Bounds vocabulary() const {
    const auto& s = c_.program.setting;
    return arch::even_range(c_.program.arch.vocabulary, c_.coordinates[mesh::Axis::kTp], s.tensor_ranks());
  }
  // The residual stream's rows to which this rank adds what counts once. A value that is kept by rows has no others.
  at::Tensor read_residual(std::size_t i) const {
    const auto& s = c_.program.setting;
    const auto [first, last] = program::row_range(s, c_.coordinates);
    if (s.sharded_rows())
      return c_.flat(step_.reads.at(i).buffer)
          .narrow(0, 0, (last - first) * c_.program.arch.hidden)
          .view({last - first, -1});
    return read_rows(i).narrow(0, first, last - first);
  }
  model::Share share() const {
    const auto& s = c_.program.setting;
    model::Share share;
    if (!s.tensor()) return share;
    const auto [first, last] = program::row_range(s, c_.coordinates);
    share.rank = c_.coordinates[mesh::Axis::kTp];
    share.ranks = s.tensor_ranks();
    share.first_row = first;
    share.rows = last - first;
    share.vocabulary_first = vocabulary().first;
    share.vocabulary_all = c_.program.arch.vocabulary;
    share.all_heads = c_.program.arch.heads;
    share.residual_rows = s.sharded_rows();
    return share;
  }

 private:
  const BindContext& c_;
  const program::Step& step_;
};

struct Common {
  arch::Architecture arch;
  arch::PartShape shape;
  bool accumulate;
  model::Share share;
  model::Context context(math::Scratch& scratch) const { return {arch, shape, scratch, accumulate, share}; }
};

Kernel bind_forward(const Operands& o, const Common& common, const program::Compute& op, const model::RopeTable& rope) {
  const std::int64_t n = o.tokens();
  switch (op.part) {
    case Part::kEmbed: {
      auto ids = o.read(0, {n}), table = o.table(o.read_unit(1), Role::kEmbedding),
           positions = o.read_unit(1).weight(Role::kPositions);
      auto x = o.write_rows(0);
      return [=](RunState&, math::Scratch& s) mutable {
        model::embed_forward(common.context(s), ids, table, positions, x);
      };
    }
    case Part::kNormQkv: {
      auto x = o.read_rows(0), out = o.write_rows(0);
      auto norm = o.read_unit(1).attention_norm();
      auto qkv = o.read_unit(1).qkv();
      auto stats = o.write_stats(1);
      return [=, &rope](RunState&, math::Scratch& s) mutable {
        model::norm_qkv_forward(common.context(s), x, norm, qkv, rope, stats, out);
      };
    }
    case Part::kAttention: {
      auto qkv = o.read_rows(0), out = o.write_rows(0);
      auto lse = o.write(1, {common.shape.batch, common.arch.heads, common.shape.sequence});
      return [=](RunState&, math::Scratch& s) mutable { model::attention_forward(common.context(s), qkv, out, lse); };
    }
    case Part::kOutProjection: {
      auto attention = o.read_rows(0), x = o.read_residual(1), mid = o.write_rows(0);
      auto output = o.read_unit(2).output();
      return [=](RunState&, math::Scratch& s) mutable {
        model::output_projection_forward(common.context(s), attention, x, output, mid);
      };
    }
    case Part::kNormUp: {
      auto mid = o.read_rows(0), out = o.write_rows(0);
      auto norm = o.read_unit(1).mlp_norm();
      auto up = o.read_unit(1).up();
      auto stats = o.write_stats(1);
      return [=](RunState&, math::Scratch& s) mutable {
        model::norm_up_forward(common.context(s), mid, norm, up, stats, out);
      };
    }
    case Part::kActivation: {
      auto up = o.read_rows(0), a = o.write_rows(0);
      return [=](RunState&, math::Scratch& s) mutable { model::activation_forward(common.context(s), up, a); };
    }
    case Part::kDown: {
      auto a = o.read_rows(0), mid = o.read_residual(1), y = o.write_rows(0);
      auto down = o.read_unit(2).down();
      return [=](RunState&, math::Scratch& s) mutable { model::down_forward(common.context(s), a, mid, down, y); };
    }
    case Part::kFinalNorm: {
      auto x = o.read_rows(0), y = o.write_rows(0);
      auto norm = common.arch.norm == arch::Norm::kLayerPlain ? model::NormWeights{} : o.read_unit(1).final_norm();
      auto stats = o.write_stats(1);
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
      auto ids = o.read(0, {n}), d_x = o.read_rows(1);
      auto d_table = o.table(o.write_unit(0), Role::kEmbedding), d_positions = o.write_unit(0).weight(Role::kPositions);
      return [=](RunState&, math::Scratch& s) mutable {
        model::embed_backward(common.context(s), ids, d_x, d_table, d_positions);
      };
    }
    case Part::kNormQkv: {
      auto d_qkv = o.read_rows(0), x = o.read_rows(1), d_x = o.write_rows(0);
      auto stats = o.read_stats(2);
      auto norm = o.read_unit(3).attention_norm(), d_norm = o.write_unit(1).attention_norm();
      auto qkv = o.read_unit(3).qkv(), d_w = o.write_unit(1).qkv();
      return [=, &rope](RunState&, math::Scratch& s) mutable {
        model::norm_qkv_backward(common.context(s), d_qkv, x, stats, norm, qkv, rope, d_x, d_norm, d_w);
      };
    }
    case Part::kAttention: {
      auto d_o = o.read_rows(0), qkv = o.read_rows(1), out = o.read_rows(2), d_qkv = o.write_rows(0);
      auto lse = o.read(3, {common.shape.batch, common.arch.heads, common.shape.sequence});
      return [=](RunState&, math::Scratch& s) mutable {
        model::attention_backward(common.context(s), d_o, qkv, out, lse, d_qkv);
      };
    }
    case Part::kOutProjection: {
      auto d_x = o.read_rows(0), attention = o.read_rows(1), d_o = o.write_rows(0);
      auto output = o.read_unit(2).output(), d_w = o.write_unit(1).output();
      return [=](RunState&, math::Scratch& s) mutable {
        model::output_projection_backward(common.context(s), d_x, attention, output, d_o, d_w);
      };
    }
    case Part::kNormUp: {
      auto d_up = o.read_rows(0), mid = o.read_rows(1), d_x = o.write_rows(0);
      auto stats = o.read_stats(2);
      auto norm = o.read_unit(3).mlp_norm(), d_norm = o.write_unit(1).mlp_norm();
      auto up = o.read_unit(3).up(), d_w = o.write_unit(1).up();
      return [=](RunState&, math::Scratch& s) mutable {
        model::norm_up_backward(common.context(s), d_up, mid, stats, norm, up, d_x, d_norm, d_w);
      };
    }
    case Part::kActivation: {
      auto d_a = o.read_rows(0), up = o.read_rows(1), d_up = o.write_rows(0);
      return [=](RunState&, math::Scratch& s) mutable { model::activation_backward(common.context(s), d_a, up, d_up); };
    }
    case Part::kDown: {
      auto d_x = o.read_rows(0), a = o.read_rows(1), d_a = o.write_rows(0);
      auto down = o.read_unit(2).down(), d_w = o.write_unit(1).down();
      return
          [=](RunState&, math::Scratch& s) mutable { model::down_backward(common.context(s), d_x, a, down, d_a, d_w); };
    }
    case Part::kFinalNorm: {
      auto d_y = o.read_rows(0), x = o.read_rows(1), d_x = o.write_rows(0);
      auto stats = o.read_stats(2);
      const bool plain = common.arch.norm == arch::Norm::kLayerPlain;
      auto norm = plain ? model::NormWeights{} : o.read_unit(3).final_norm(),
           d_norm = plain ? model::NormWeights{} : o.write_unit(1).final_norm();
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

void add_losses(const at::Tensor& losses, at::Tensor& scalars) {
  if (!losses.device().is_cpu()) {
    scalars.select(0, program::kLossSum).add_(losses.sum(at::kDouble));
    return;
  }
  // In order and in double, without ATen: its sum would allocate.
  double sum = 0.0;
  for (std::int64_t i = 0; i < losses.numel(); ++i)
    sum += losses.scalar_type() == at::kDouble ? losses.data_ptr<double>()[i]
                                               : static_cast<double>(losses.data_ptr<float>()[i]);
  scalars.data_ptr<double>()[program::kLossSum] += sum;
}

Kernel bind_head(const Operands& o, const Common& common, std::int64_t first, const program::Compute& op,
                 double grad_scale) {
  const std::int64_t count = common.shape.chunk;
  const Role role = common.arch.tied ? Role::kEmbedding : Role::kHead;
  auto y = o.read_rows(0).narrow(0, first, count), labels = o.read(1, {o.tokens()}).narrow(0, first, count);
  auto head = o.table(o.read_unit(2), role);
  auto losses = o.write(0, {o.tokens()}).narrow(0, first, count);
  auto scalars = o.write(1, {program::kNumScalars});
  if (op.pass == program::ComputePass::kForward)
    return [=](RunState&, math::Scratch& s) mutable {
      model::head_loss_forward(common.context(s), y, labels, head, losses);
      add_losses(losses, scalars);
    };
  auto d_y = o.write_rows(2).narrow(0, first, count), d_head = o.table(o.write_unit(3), role);
  return [=](RunState&, math::Scratch& s) mutable {
    model::head_loss(common.context(s), y, labels, head, grad_scale, losses, d_y, d_head);
    add_losses(losses, scalars);
  };
}

// The head of tensor ranks: logits and sums of a chunk; then, from everyone's sums, losses and gradient.
Kernel bind_shared_head(const Operands& o, const Common& common, std::int64_t first, const program::Compute& op,
                        double grad_scale, std::int64_t largest) {
  const std::int64_t count = common.shape.chunk;
  const Role role = common.arch.tied ? Role::kEmbedding : Role::kHead;
  const auto part = [&](at::Tensor rows) { return rows.narrow(0, first, count); };
  if (op.part == Part::kHeadLogits) {
    auto y = part(o.read_rows(0)), labels = part(o.read(1, {o.tokens()})), head = o.table(o.read_unit(2), role);
    auto logits = o.write_flat(0).narrow(0, 0, count * head.size(0)).view({count, -1}),
         sums = o.write(1, {largest, 2}).narrow(0, 0, count);
    return [=](RunState&, math::Scratch& s) mutable {
      model::head_logits_sums(common.context(s), y, labels, head, logits, sums);
    };
  }
  auto sums = o.read(0, {common.share.ranks, largest, 2}), labels = part(o.read(1, {o.tokens()}));
  auto losses = part(o.write(0, {o.tokens()})), scalars = o.write(1, {program::kNumScalars});
  if (op.pass == program::ComputePass::kForward)
    return [=](RunState&, math::Scratch& s) mutable {
      model::head_shared_loss(common.context(s), sums, labels, losses);
      add_losses(losses, scalars);
    };
  auto y = part(o.read_rows(3)), head = o.table(o.read_unit(4), role), d_y = part(o.write_rows(2)),
       d_head = o.table(o.write_unit(3), role);
  auto logits = o.read_flat(2).narrow(0, 0, count * head.size(0)).view({count, -1});
  return [=](RunState&, math::Scratch& s) mutable {
    model::head_shared_gradient(common.context(s), sums, labels, logits, y, head, grad_scale, losses, d_y, d_head);
    add_losses(losses, scalars);
  };
}

// q|k|v of a rank that holds all key and value heads: the rows that its heads need, put together for a use, and
// gradients brought back to where they belong.
class CopiedQkv {
 public:
  CopiedQkv(const arch::Architecture& all, const Common& common, UnitWeights weights)
      : weights_(std::move(weights)),
        heads_(arch::kv_heads_of(all, common.share.rank, common.share.ranks)),
        rows_(common.arch.qkv_size()),
        head_dim_(common.arch.head_dim) {}

  // In scratch of the op.
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
  // Of these weights as gradients: what `all` has is written or added; key and value heads of other ranks get zero.
  void spread(const model::Linear& all, bool accumulate) const {
    if (!accumulate)
      for (const Role role : {Role::kKey, Role::kValue, Role::kKeyBias, Role::kValueBias})
        if (at::Tensor w = weights_.weight(role); w.defined()) w.zero_();
    const std::int64_t query = weights_.weight(Role::kQuery).size(0);
    std::int64_t row = 0;
    each(
        [&](const at::Tensor& part, at::Tensor target) {
          // Two of the rank's heads may share one head of keys.
          if (accumulate || row >= query)
            target.add_(part);
          else
            target.copy_(part);
          row += part.size(0);
          if (row == rows_) row = 0;  // weights, then biases
        },
        all);
  }

 private:
  // f(part of `all`, the rows that it stands for), in order.
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

Kernel bind_copied_qkv(const Operands& o, const Common& common, const arch::Architecture& all,
                       const program::Compute& op, const model::RopeTable& rope) {
  if (op.pass != program::ComputePass::kBackward) {
    auto x = o.read_rows(0), out = o.write_rows(0);
    auto norm = o.read_unit(1).attention_norm();
    const CopiedQkv weights(all, common, o.read_unit(1));
    auto stats = o.write_stats(1);
    return [=, &rope](RunState&, math::Scratch& s) mutable {
      model::norm_qkv_forward(common.context(s), x, norm, weights.assemble(s), rope, stats, out);
    };
  }
  auto d_qkv = o.read_rows(0), x = o.read_rows(1), d_x = o.write_rows(0);
  auto stats = o.read_stats(2);
  auto norm = o.read_unit(3).attention_norm(), d_norm = o.write_unit(1).attention_norm();
  const CopiedQkv weights(all, common, o.read_unit(3)), gradients(all, common, o.write_unit(1));
  return [=, &rope](RunState&, math::Scratch& s) mutable {
    const model::Linear qkv = weights.assemble(s);
    model::Linear d_w = gradients.empty(s);
    const model::Context context = common.context(s);
    // These gradients are made anew; those of the norm are the unit's own, and may be added to.
    if (context.accumulate) {
      d_w.weight_OI.zero_();
      if (d_w.bias_O.defined()) d_w.bias_O.zero_();
    }
    model::norm_qkv_backward(context, d_qkv, x, stats, norm, qkv, rope, d_x, d_norm, d_w);
    gradients.spread(d_w, context.accumulate);
  };
}

}  // namespace

Kernel bind_compute(const BindContext& context, const program::Step& step, const program::Compute& op) {
  const auto& p = context.program;
  const auto& setting = p.setting;
  const Operands operands(context, step);
  Common common{p.local,
                {setting.micro_batch, setting.sequence, 0, setting.compute, setting.threads, setting.kernels},
                op.accumulate,
                operands.share()};
  if (arch::is_head(op.part)) {
    common.shape.chunk = setting.head_chunk_tokens(op.chunk);
    // Gradients are of the mean over all places of the global batch; ClipScale corrects for places without a label.
    const double scale = 1.0 / (static_cast<double>(setting.global_batch) * static_cast<double>(setting.sequence));
    const std::int64_t first = op.chunk * setting.head_chunk;
    return op.part == Part::kHead ? bind_head(operands, common, first, op, scale)
                                  : bind_shared_head(operands, common, first, op, scale, setting.head_chunk_tokens(0));
  }
  if (op.part == Part::kNormQkv && setting.tensor() && arch::kv_replicated(p.arch, setting.tensor_ranks()))
    return bind_copied_qkv(operands, common, p.arch, op, context.rope);
  return op.pass == program::ComputePass::kBackward ? bind_backward(operands, common, op, context.rope)
                                                    : bind_forward(operands, common, op, context.rope);
}

}  // namespace molen::exec
