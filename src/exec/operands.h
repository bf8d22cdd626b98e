// Shared parts of the binding of compute ops: the operands of a step as tensors with the shapes of model/parts.h.
#pragma once

#include <ATen/ATen.h>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "exec/bind.h"
#include "exec/weights.h"
#include "program/signature.h"
#include "program/value_memory.h"

namespace molen::exec {

using arch::Role;
using program::Arg;

// The operands of one step as tensors with the shapes of model/parts.h.
class Operands {
 public:
  // `chunk`: the piece of the rows that the op belongs to (program/layout.h: chunk_rows); -1: all rows.
  Operands(const BindContext& context, const program::Step& step, std::int64_t chunk = -1)
      : c_(context), step_(step), chunk_(chunk), rows_(program::chunk_rows(context.program.setting, chunk)) {}

  std::int64_t tokens() const { return rows_.second - rows_.first; }
  bool has(Arg arg) const { return step_.find(arg) != nullptr; }
  at::Tensor flat(Arg arg) const { return c_.flat(step_.operand(arg).buffer); }
  at::Tensor view(Arg arg, at::IntArrayRef shape) const { return flat(arg).view(shape); }
  // Returns the rows of a value that the op works on: all of them, or a piece. The buffer holds all rows, or only this
  // piece.
  at::Tensor rows(Arg arg) const {
    if (chunk_ < 0 || program::chunk_apart(c_.program, signature().operand(arg))) return view(arg, {tokens(), -1});
    return view(arg, {c_.program.setting.tokens(), -1}).narrow(0, rows_.first, tokens());
  }
  // Returns the residual gradient that a norm's backward adds to, when the op writes the sum to another buffer because
  // the old value is still to be read. Undefined when the op adds in place or reads none: nothing must be copied.
  at::Tensor residual_gradient_beside() const {
    return has(Arg::kDResidual) ? view(Arg::kDResidual, {tokens(), -1}) : at::Tensor();
  }

  model::NormSaved stats() const {
    const at::Tensor all = flat(Arg::kStats);
    model::NormSaved saved;
    saved.rstd_N = all.narrow(0, rows_.first, tokens());
    if (c_.program.arch.norm != arch::Norm::kRms)
      saved.mean_N = all.narrow(0, c_.program.setting.tokens() + rows_.first, tokens());
    return saved;
  }

  // The weights (or gradients) of the unit that a buffer holds.
  UnitWeights unit(int buffer) const {
    const int u = c_.program.unit_of_buffer(buffer);
    MOLEN_CHECK(u >= 0, "operand {} is no unit", c_.program.buffers[static_cast<std::size_t>(buffer)].name);
    const program::Unit& unit = c_.program.units[static_cast<std::size_t>(u)];
    // A one-layer unit always uses its own layer; a program text may name that unit's weights for another layer's op.
    const auto* compute = std::get_if<program::Compute>(&step_.op);
    const std::int64_t layer = compute && unit.end - unit.first > 1 ? compute->layer : unit.first;
    return {c_.program.local, c_.program.parameters, unit, layer, c_.flat(buffer)};
  }
  UnitWeights param() const { return unit(step_.operand(Arg::kParam).buffer); }
  UnitWeights grad() const { return unit(step_.operand(Arg::kGrad).buffer); }

  // Returns this rank's rows of a table of the vocabulary.
  at::Tensor table(const UnitWeights& weights, Role role) const {
    const auto [first, last] = vocabulary();
    return weights.weight(role).narrow(0, 0, last - first);
  }
  Bounds vocabulary() const {
    const auto& s = c_.program.setting;
    return arch::even_range(c_.program.arch.vocabulary, c_.coordinates[mesh::Axis::kTp], s.tensor_ranks());
  }
  // Returns the rows of the residual stream to which this rank adds what counts once. A value that is kept by rows
  // contains only these rows.
  at::Tensor residual() const {
    const auto& s = c_.program.setting;
    const auto [first, last] = program::row_range(s, c_.coordinates, chunk_);
    if (s.sharded_rows()) {
      const std::int64_t kept = program::first_kept_row(s, c_.coordinates, chunk_), d = c_.program.arch.hidden;
      return flat(Arg::kResidual).narrow(0, kept * d, (last - first) * d).view({last - first, -1});
    }
    return rows(Arg::kResidual).narrow(0, first, last - first);
  }
  model::Share share() const {
    const auto& s = c_.program.setting;
    model::Share share;
    if (!s.tensor()) return share;
    // When the rows are cut into pieces, an op on all rows adds nothing to the rank's own rows: the products do.
    const auto [first, last] =
        s.chunked_rows() && chunk_ < 0 ? Bounds{0, 0} : program::row_range(s, c_.coordinates, chunk_);
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
  program::Signature signature() const {
    return program::signature(c_.program, step_.op, program::unit_of_step(c_.program, step_));
  }

  const BindContext& c_;
  const program::Step& step_;
  std::int64_t chunk_;
  Bounds rows_;
};

struct Common {
  arch::Architecture arch;
  arch::PartShape shape;
  bool accumulate;
  model::Share share;
  std::vector<PositionRun> positions;  // of this context rank
  model::Half half = model::Half::kBoth;
  at::Tensor documents{};  // for attention within documents: where they begin
  model::Context context(math::Scratch& scratch) const {
    return {arch, shape, scratch, accumulate, share, half, positions, documents.defined() ? &documents : nullptr};
  }
};

// scalars[kLossSum] += the losses, in order and in double.
void add_losses(const at::Tensor& losses, at::Tensor& scalars);

// Binds parts of ranks that share a layer when they are not simply the whole part at local sizes (bind_tensor.cpp): the
// head in two ops, and q|k|v when every rank holds all keys and values. `first`: token where the chunk begins;
// `largest`: number of tokens of the largest chunk.
Kernel bind_shared_head(const Operands& operands, const Common& common, std::int64_t first, const program::Compute& op,
                        double grad_scale, std::int64_t largest);
// Binds the halves of a split backward (bind_halves.cpp); returns nothing for parts without halves.
Kernel bind_half(const Operands& operands, const Common& common, const program::Compute& op,
                 const model::RopeTable& rope);
Kernel bind_copied_qkv(const Operands& operands, const Common& common, const arch::Architecture& whole,
                       const program::Compute& op, const model::RopeTable& rope);

}  // namespace molen::exec
