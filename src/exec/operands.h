// Shared parts of the binding of compute ops: the operands of a step as tensors with the shapes of model/parts.h.
#pragma once

#include <ATen/ATen.h>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "exec/bind.h"
#include "exec/weights.h"

namespace molen::exec {

using arch::Role;
using program::Arg;

// The operands of one step as tensors with the shapes of model/parts.h.
class Operands {
 public:
  // `chunk` is the piece of the rows that the op works on (program/ir/layout.h: rows_of_piece), or -1 for all rows.
  Operands(const BindContext& context, const program::Step& step, std::int64_t chunk = -1)
      : c_(context),
        step_(step),
        chunk_(chunk),
        all_(step.attributes.rows),
        rows_(program::rows_of_piece(all_, chunk)) {}

  std::int64_t tokens() const { return rows_.second - rows_.first; }
  bool has(Arg arg) const { return step_.find(arg) != nullptr; }
  at::Tensor flat(Arg arg) const { return c_.flat(step_.operand(arg).buffer); }
  at::Tensor view(Arg arg, at::IntArrayRef shape) const { return flat(arg).view(shape); }
  // Returns the rows of a value that the op works on, which are all rows or one piece. The buffer has all rows or only
  // this piece.
  at::Tensor rows(Arg arg) const {
    const bool apart = c_.program.buffers[static_cast<std::size_t>(step_.operand(arg).buffer)].portion >= 0;
    if (chunk_ < 0 || apart) return view(arg, {tokens(), -1});
    return view(arg, {all_.count(), -1}).narrow(0, rows_.first, tokens());
  }
  // Returns the residual gradient that a norm's backward adds to, when the op writes the sum to another buffer because
  // the old value is still to be read. The result is undefined when the op adds in place or reads no residual gradient,
  // because then nothing must be copied.
  at::Tensor residual_gradient_beside() const {
    return has(Arg::kDResidual) ? view(Arg::kDResidual, {tokens(), -1}) : at::Tensor();
  }

  // Returns RoPE's table of a sequence.
  model::RopeTable rope() const {
    const at::Tensor halves = view(Arg::kRope, {2, all_.length, -1});
    return {halves.select(0, 0), halves.select(0, 1)};
  }

  model::NormSaved stats() const {
    const at::Tensor all = flat(Arg::kStats);
    model::NormSaved saved;
    saved.rstd_N = all.narrow(0, rows_.first, tokens());
    if (c_.program.arch.norm != arch::Norm::kRms) saved.mean_N = all.narrow(0, all_.count() + rows_.first, tokens());
    return saved;
  }

  // Returns the weights (or gradients) of the unit that a buffer holds.
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
    return arch::even_range(c_.program.arch.vocabulary, c_.coordinates[mesh::Axis::kTp], tensor_ranks());
  }
  // Returns the rows of the residual stream to which this rank adds the terms that count once. A value that is kept by
  // rows contains only these rows.
  at::Tensor residual() const {
    const program::Grid& grid = c_.program.grid;
    const auto [first, last] = program::row_range(all_, grid, c_.coordinates, chunk_);
    if (all_.sharded) {
      const std::int64_t kept = program::first_kept_row(all_, grid, c_.coordinates, chunk_), d = c_.program.arch.hidden;
      return flat(Arg::kResidual).narrow(0, kept * d, (last - first) * d).view({last - first, -1});
    }
    return rows(Arg::kResidual).narrow(0, first, last - first);
  }
  model::TensorSlice share() const {
    model::TensorSlice share;
    if (tensor_ranks() == 1) return share;
    // When the rows are cut into pieces, the products of the pieces add to the rank's own rows. An op on all rows adds
    // nothing to them.
    const auto [first, last] = all_.in_pieces() && chunk_ < 0
                                   ? Bounds{0, 0}
                                   : program::row_range(all_, c_.program.grid, c_.coordinates, chunk_);
    share.rank = c_.coordinates[mesh::Axis::kTp];
    share.ranks = tensor_ranks();
    share.first_row = first;
    share.rows = last - first;
    share.vocabulary_first = vocabulary().first;
    share.vocabulary_all = c_.program.arch.vocabulary;
    share.residual_rows = all_.sharded;
    return share;
  }

 private:
  int tensor_ranks() const { return c_.program.grid.sizes[mesh::Axis::kTp]; }

  const BindContext& c_;
  const program::Step& step_;
  std::int64_t chunk_;
  program::Rows all_;
  Bounds rows_;  // rows that the op works on
};

// The values that the bindings of all parts need.
struct PartContext {
  arch::Architecture arch;
  arch::PartShape shape;
  bool accumulate;
  model::TensorSlice share;
  std::vector<PositionRun> positions;  // of this context rank
  arch::Pass pass = arch::Pass::kBackward;
  at::Tensor documents{};  // for attention within documents: where each document begins
  at::Tensor slopes{};     // ALiBi's slopes
  model::Context context(math::Scratch& scratch) const {
    return {arch,
            shape,
            scratch,
            accumulate,
            share,
            pass,
            positions,
            documents.defined() ? &documents : nullptr,
            slopes.defined() ? &slopes : nullptr};
  }
};

}  // namespace molen::exec
