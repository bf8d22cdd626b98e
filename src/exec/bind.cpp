#include "exec/bind.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "base/match.h"
#include "exec/bind_compute.h"
#include "exec/bind_context.h"
#include "exec/bind_experts.h"
#include "exec/groups.h"
#include "optim/balance.h"
#include "optim/sum_squares.h"
#include "optim/update.h"
#include "program/values/optimizer.h"
#include "program/values/value_memory.h"

namespace molen::exec {

// Predictions count what the program declares, so a kernel must not do an epilogue that its op does not declare.
void RunState::require_declared(const program::Step& op, bool first) const {
  const bool by_routing = std::holds_alternative<program::AllToAll>(op.op);
  for (const program::Epilogue kind : program::kAllEpilogues) {
    const auto declared = std::ranges::find(op.epilogues, kind, &program::EpilogueCost::kind);
    const bool is_declared = declared != op.epilogues.end();
    const auto k = static_cast<std::size_t>(kind);
    MOLEN_CHECK(ran_[k] == is_declared, "the epilogue '{}' {}", name_of(kind),
                is_declared ? "is declared and did not run" : "ran and is not declared");
    if (!is_declared || !first || by_routing) continue;
    const std::int64_t bytes = declared->moved.value;
    MOLEN_CHECK(moved_[k] == bytes, "the epilogue '{}' moved {} bytes and is declared with {}", name_of(kind),
                moved_[k], bytes);
  }
}

namespace {

using program::Arg;
using program::Epilogue;
using program::Program;
using program::Step;

// Returns the elements of a unit's buffer that a use names, as a view.
at::Tensor view_of(const BindContext& c, const program::Use& use) {
  const auto [held, held_end] = held_of(c.program, use.buffer, c.coordinates);
  const auto [first, last] = range_of(c.program, use, c.coordinates);
  const int unit = c.program.unit_of_buffer(use.buffer);
  if (unit < 0) return c.flat(use.buffer).narrow(0, first - held, last - first);
  const auto place = [&](std::int64_t at) {
    return program::elements_before(c.program, c.program.buffers[static_cast<std::size_t>(use.buffer)].role,
                                    c.program.units[static_cast<std::size_t>(unit)], at);
  };
  return c.flat(use.buffer).narrow(0, place(first) - place(held), place(last) - place(first));
}

Kernel bind_load(const BindContext& c, const Step& step) {
  if (c.program.grid.sizes[mesh::Axis::kCp] > 1) return bind_load_part(c, step);
  auto ids = c.flat(step.operand(Arg::kIds).buffer), labels = c.flat(step.operand(Arg::kLabels).buffer),
       scalars = c.flat(step.operand(Arg::kScalars).buffer);
  at::Tensor documents;
  if (const program::Use* use = step.find(Arg::kDocuments)) documents = c.flat(use->buffer);
  const bool counted = std::get<program::LoadBatch>(step.op).counts_tokens;
  if (ids.device().is_cpu())
    return [=](RunState& run, math::Scratch&) {
      const std::int64_t valid =
          run.step.input->load({ids.data_ptr<std::int32_t>(), labels.data_ptr<std::int32_t>(),
                                documents.defined() ? documents.data_ptr<std::int32_t>() : nullptr});
      if (counted) scalars.data_ptr<double>()[program::kValidTokens] += static_cast<double>(valid);
    };
  return [=](RunState& run, math::Scratch&) mutable {
    const MicroBatch host = run.step.staged(static_cast<std::size_t>(ids.numel()), documents.defined());
    const std::int64_t valid = run.step.input->load(host);
    ids.copy_(at::from_blob(host.ids, {ids.numel()}, at::kInt));
    labels.copy_(at::from_blob(host.labels, {labels.numel()}, at::kInt));
    if (documents.defined()) documents.copy_(at::from_blob(host.document_start, {documents.numel()}, at::kInt));
    if (counted) scalars.select(0, program::kValidTokens).add_(static_cast<double>(valid));
  };
}

// Returns the parts of a range of a unit that hold gradients. The elements of a router's bias are left out, because
// they hold the load of the experts instead.
std::vector<Bounds> of_gradients(const BindContext& c, const program::Unit& unit, Bounds range) {
  std::vector<Bounds> parts;
  std::int64_t from = range.first;
  for (const auto& entry : unit.entries) {
    const auto& parameter = c.program.parameters[static_cast<std::size_t>(entry.parameter)];
    if (!arch::moved_by_load(parameter.role)) continue;
    const std::int64_t begin = std::clamp(entry.offset, from, range.second),
                       end = std::clamp(entry.offset + parameter.elements(), from, range.second);
    if (begin == end) continue;
    if (from < begin) parts.emplace_back(from, begin);
    from = end;
  }
  if (from < range.second || parts.empty()) parts.emplace_back(from, range.second);
  return parts;
}

Kernel bind_sum_squares(const BindContext& c, const Step& step) {
  const program::Use& of = step.operand(Arg::kGrad);
  const auto [held, held_end] = held_of(c.program, of.buffer, c.coordinates);
  const auto [first, last] = range_of(c.program, of, c.coordinates);
  const auto& unit = c.program.units[static_cast<std::size_t>(c.program.unit_of_buffer(of.buffer))];
  const auto [from, to] = program::squares_once(c.program.grid, c.coordinates, unit, first, last);
  std::vector<at::Tensor> grads;
  for (const auto& [begin, end] : of_gradients(c, unit, {from, to}))
    grads.push_back(c.flat(of.buffer).narrow(0, begin - held, end - begin));
  auto scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const int threads = step.attributes.threads;
  return [=](RunState&, math::Scratch&) mutable {
    for (const at::Tensor& grad : grads) {
      if (!grad.device().is_cpu()) {
        scalars.select(0, program::kSumSquares).add_(optim::sum_squares_by_aten(grad));
        continue;
      }
      const double sum = grad.scalar_type() == at::kDouble
                             ? optim::sum_squares(grad.data_ptr<double>(), grad.numel(), threads)
                             : optim::sum_squares(grad.data_ptr<float>(), grad.numel(), threads);
      if (scalars.device().is_cpu())
        scalars.data_ptr<double>()[program::kSumSquares] += sum;
      else
        scalars.select(0, program::kSumSquares).add_(sum);
    }
  };
}

Kernel bind_clip(const BindContext& c, const Step& step) {
  auto scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const auto positions = static_cast<double>(step.attributes.positions);
  return [=](RunState& run, math::Scratch&) mutable {
    auto host = scalars.device().is_cpu() ? scalars : scalars.to(at::kCPU);
    double* s = host.data_ptr<double>();
    const double mean =
        s[program::kValidTokens] > 0 ? positions / s[program::kValidTokens] / run.step.input->loss_scale : 0.0;
    const double norm = std::sqrt(s[program::kSumSquares]) * mean;
    s[program::kGradNorm] = norm;
    // This is the factor of torch.nn.utils.clip_grad_norm_: min(1, clip / (norm + 1e-6)).
    const double clip = run.step.input->clip;
    s[program::kGradScale] = mean * (clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0);
    if (!scalars.device().is_cpu()) scalars.copy_(host);
  };
}

Kernel bind_set_flag(const BindContext& c, const Step& step) {
  auto scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const bool scaled = step.attributes.scaled;
  return [=](RunState& run, math::Scratch&) {
    const auto host = scalars.to(at::kCPU);
    const double* s = host.data_ptr<double>();
    const bool loss = std::isfinite(s[program::kLossSum]) && s[program::kValidTokens] > 0,
               gradient = std::isfinite(s[program::kGradNorm]);
    run.step.non_finite = !loss || !gradient;
    run.step.overflow = scaled && loss && !gradient;
  };
}

// Consecutive elements of one parameter that this rank updates. When the optimizer updates a wider copy of the
// parameter, `rounded` is the parameter in the compute type; otherwise it is undefined.
struct Run {
  optim::Piece piece;
  at::Tensor rounded;
  bool by_load = false;  // a router's bias, which no optimizer updates
};

// Returns the parts of a parameter's direction that the tensor ranks have computed. `all` holds the directions of one
// rank after another. Within each rank's directions, this parameter takes the range [first, last). The numbers of that
// range after the parameter's elements are the part's optim::Block::beside.
std::vector<optim::Block> blocks_of(const BindContext& c, const program::UnitEntry& entry, const at::Tensor& all,
                                    std::int64_t first, std::int64_t last) {
  const int ranks = c.program.grid.sizes[mesh::Axis::kTp], own = c.coordinates[mesh::Axis::kTp];
  const auto index = static_cast<std::size_t>(entry.parameter);
  const arch::Parameter whole = arch::parameters(c.program.arch)[index], &local = c.program.parameters[index];
  const std::int64_t count = all.numel() / ranks;
  std::vector<optim::Block> blocks;
  for (int rank = 0; rank < ranks; ++rank) {
    if (local.shard == arch::ShardDim::kNone && rank != own) continue;  // every rank has all of it
    const arch::Block b = arch::block_of(whole, local, rank, ranks);
    const at::Tensor part = all.narrow(0, rank * count + first, b.rows * b.columns),
                     beside = all.narrow(0, rank * count + first + entry.whole, last - first - entry.whole);
    blocks.push_back({b.first_row, b.first_column, part.view({b.rows, b.columns}), rank == own, beside});
  }
  return blocks;
}

std::vector<Run> runs_of(const BindContext& c, const Step& step) {
  const int unit = c.program.unit_of_buffer(step.operand(Arg::kGrad).buffer);
  const auto& u = c.program.units[static_cast<std::size_t>(unit)];
  const auto [first, last] = range_of(c.program, step.operand(Arg::kGrad), c.coordinates);
  const program::Use* master = step.find(Arg::kMaster);
  const auto& [kind, stage] = std::get<program::OptimizerStep>(step.op);
  const auto& optimizer = program::optimizer_named(kind);
  std::vector<Run> runs;
  for (const auto& entry : u.entries) {
    const auto& parameter = c.program.parameters[static_cast<std::size_t>(entry.parameter)];
    const std::int64_t from = std::max(first, entry.offset), to = std::min(last, entry.offset + parameter.elements());
    if (from >= to) continue;
    // Returns the range of this parameter's numbers in a buffer.
    const auto range = [&](const program::Use& use) -> Bounds {
      const program::Value role = c.program.buffers[static_cast<std::size_t>(use.buffer)].role;
      const auto place = [&](std::int64_t at) { return program::elements_before(c.program, role, u, at); };
      const std::int64_t held = place(held_of(c.program, use.buffer, c.coordinates).first);
      return {place(from) - held, place(to) - held};
    };
    const auto part = [&](const program::Use& use) {
      const auto [begin, end] = range(use);
      return c.flat(use.buffer).narrow(0, begin, end - begin);
    };
    Run run;
    run.piece.decay = parameter.decay;
    run.by_load = arch::moved_by_load(parameter.role);
    run.piece.grad = part(step.operand(Arg::kGrad));
    if (const program::Use* param = step.find(Arg::kParam)) run.piece.param = part(*param);
    if (master) run.rounded = std::exchange(run.piece.param, part(*master));
    if (entry.whole > 0) {
      MOLEN_CHECK(to - from == entry.whole, "{} of {} elements of a matrix that is updated whole", to - from,
                  entry.whole);
      run.piece.rows = entry.rows;
      run.piece.columns = entry.columns;
      const program::Use* direction = step.find(Arg::kDirection);
      if (stage == program::UpdateStage::kDirection) {
        run.piece.direction = part(*direction).narrow(0, 0, entry.whole);
        run.piece.beside = part(*direction).narrow(0, entry.whole, part(*direction).numel() - entry.whole);
      }
      if (stage == program::UpdateStage::kApply) {
        const auto [begin, end] = range(*direction);
        const int ranks = c.program.grid.sizes[mesh::Axis::kTp];
        run.piece.blocks = blocks_of(c, entry, view_of(c, *direction), begin / ranks, end / ranks);
      }
    }
    for (const auto& state : optimizer.states) {
      const program::Use* use = step.find(state.arg);
      const at::Tensor kept = use ? part(*use) : at::Tensor();
      run.piece.states.push_back(kept.defined() && kept.numel() > 0 ? kept : at::Tensor());
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

Kernel bind_optimizer(const BindContext& c, const Step& step) {
  const auto runs = runs_of(c, step);
  const auto scale = c.flat(step.operand(Arg::kScalars).buffer).select(0, program::kGradScale);
  const int threads = step.attributes.threads;
  const auto& [kind, stage] = std::get<program::OptimizerStep>(step.op);
  const optim::Rule rule = optim::rule_named(kind);
  const double bias_rate = c.program.arch.biases_router() ? c.program.arch.sparse_experts().bias_rate : 0.0;
  const std::int64_t bytes = step.scratch.value;
  // Elements that belong to no matrix have no direction. They are gathered with the others, so they hold zeros.
  at::Tensor directions;
  if (stage == program::UpdateStage::kDirection) directions = view_of(c, step.operand(Arg::kDirection));
  return [=](RunState& state, math::Scratch& scratch) mutable {
    // All ranks share one plan, so each rank takes the scratch that the rank with the largest matrix needs.
    math::Scratch room(bytes > 0 ? scratch.take_bytes(bytes) : nullptr, bytes);
    if (directions.defined()) directions.zero_();
    if (runs.empty()) return;  // this rank owns only padding of the unit
    const optim::Update update{state.step.input->optimizer, state.step.input->step,
                               scale.to(runs.front().piece.grad.device()), threads, &room};
    for (const Run& run : runs) {
      if (directions.defined() && (run.piece.rows == 0 || run.by_load)) continue;
      if (run.by_load)
        optim::balance(bias_rate, run.piece.grad, run.piece.param);
      else
        rule(update, run.piece);
      if (run.rounded.defined()) run.rounded.copy_(run.piece.param);
    }
  };
}

// Returns how many elements of a buffer each member of a collective's group contributes or receives.
std::vector<std::int64_t> counts_over(const BindContext& c, program::Axis axis, const program::Use& use, int members) {
  std::vector<std::int64_t> counts;
  const program::Grid& grid = c.program.grid;
  const mesh::Mesh mesh(grid.sizes, grid.ranks(), grid.order);
  for (const int rank : mesh.group(mesh.rank_of(c.coordinates), program::axes_of(axis))) {
    const auto [first, last] = range_of(c.program, use, mesh.coordinates(rank));
    const auto place = [&, from = &use](std::int64_t at) {
      const int unit = c.program.unit_of_buffer(from->buffer);
      return program::elements_before(c.program, c.program.buffers[static_cast<std::size_t>(from->buffer)].role,
                                      c.program.units[static_cast<std::size_t>(unit)], at);
    };
    counts.push_back(place(last) - place(first));
  }
  MOLEN_CHECK(static_cast<int>(counts.size()) == members, "{} ranks along {}, which has {}", members,
              program::name_of(axis), counts.size());
  return counts;
}

// The piece of the rows that an op of tensor ranks exchanges, in elements: its offset in the buffer of all rows, the
// offset of this rank's part in the buffer of kept rows, and the size of each rank's part.
struct RowPiece {
  std::int64_t all = 0, kept = 0;
  std::vector<std::int64_t> counts;
  std::int64_t count() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
};
RowPiece row_piece(const BindContext& c, const Step& step, Arg all, std::int64_t chunk) {
  const program::Rows& rows = step.attributes.rows;
  const program::Grid& grid = c.program.grid;
  const std::int64_t d = c.program.arch.hidden;
  RowPiece piece;
  const bool apart = c.program.buffers[static_cast<std::size_t>(step.operand(all).buffer)].portion >= 0;
  piece.all = apart ? 0 : program::rows_of_piece(rows, chunk).first * d;
  piece.kept = program::first_kept_row(rows, grid, c.coordinates, chunk) * d;
  mesh::PerAxis at = c.coordinates;
  for (at[mesh::Axis::kTp] = 0; at[mesh::Axis::kTp] < grid.sizes[mesh::Axis::kTp]; ++at[mesh::Axis::kTp]) {
    const auto [first, last] = program::row_range(rows, grid, at, chunk);
    piece.counts.push_back((last - first) * d);
  }
  return piece;
}

// Sums the rows of each tensor rank, overwriting the rank's part or adding to it.
Kernel bind_scatter_rows(const BindContext& c, const Step& step, comm::Communicator* group) {
  const auto& op = std::get<program::ReduceScatter>(step.op);
  const RowPiece piece = row_piece(c, step, Arg::kFrom, op.portion);
  const std::int64_t own = piece.counts[static_cast<std::size_t>(group->rank())];
  const std::int64_t before =
      std::accumulate(piece.counts.begin(), piece.counts.begin() + group->rank(), std::int64_t{0});
  const program::Use& to = step.operand(Arg::kTo);
  auto all = c.flat(step.operand(Arg::kFrom).buffer).narrow(0, piece.all, piece.count()),
       kept = c.flat(to.buffer).narrow(0, piece.kept, own);
  // Adds to the residual gradient so far: in place, or in another buffer when the old value is still to be read.
  const program::Use* so_far = step.find(Arg::kSoFar);
  const bool adds = so_far || step.updates(Arg::kTo);
  at::Tensor sum = adds ? all.narrow(0, before, own) : kept;
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  at::Tensor before_sum;
  if (so_far) before_sum = c.flat(so_far->buffer).narrow(0, piece.kept, own);
  return [=, counts = piece.counts](RunState& run, math::Scratch&) mutable {
    group->reduce_scatter(all.data_ptr(), sum.data_ptr(), counts, dtype, comm::Reduce::kSum);
    if (before_sum.defined()) run.copy(Epilogue::kCopy, kept, before_sum);
    if (adds) run.add(kept, sum);
  };
}

// Gathers the rows of all ranks, the sums of the head, the counts of routers or the offsets of experts, in rank order.
Kernel bind_gather_rows(const BindContext& c, const Step& step, comm::Communicator* group) {
  auto part = c.flat(step.operand(Arg::kFrom).buffer), all = c.flat(step.operand(Arg::kTo).buffer);
  const auto& op = std::get<program::AllGather>(step.op);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group->size()), part.numel());
  const bool alike = op.payload == program::Payload::kHead || op.payload == program::Payload::kCounts ||
                     op.payload == program::Payload::kOffsets;  // every rank has as much
  if (!alike) {
    const RowPiece piece = row_piece(c, step, Arg::kTo, op.portion);
    counts = piece.counts;
    part = part.narrow(0, piece.kept, counts[static_cast<std::size_t>(group->rank())]);
    all = all.narrow(0, piece.all, piece.count());
  }
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  return [=](RunState&, math::Scratch&) { group->all_gather(part.data_ptr(), all.data_ptr(), counts, dtype); };
}

Kernel bind_all_reduce(const BindContext& c, const Step& step, comm::Communicator* group) {
  auto tensor = view_of(c, step.operand(Arg::kTo));
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  return [=](RunState&, math::Scratch&) {
    group->all_reduce(tensor.data_ptr(), tensor.numel(), dtype, comm::Reduce::kSum);
  };
}

Kernel bind_reduce_scatter(const BindContext& c, const Step& step, comm::Communicator* group) {
  const auto& op = std::get<program::ReduceScatter>(step.op);
  if (op.payload == program::Payload::kDKeys) return bind_scatter_keys(c, step, group);
  if (op.payload != program::Payload::kUnit) return bind_scatter_rows(c, step, group);
  auto all = view_of(c, step.operand(Arg::kFrom)), part = view_of(c, step.operand(Arg::kTo));
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  const auto counts = counts_over(c, op.axis, step.operand(Arg::kTo), group->size());
  // When the sum is added to an earlier one, it is first computed in this rank's part of the buffer that the op uses
  // up.
  const std::int64_t own = std::accumulate(counts.begin(), counts.begin() + group->rank(), std::int64_t{0});
  const bool adds = step.updates(Arg::kTo);
  at::Tensor sum = adds ? all.narrow(0, own, part.numel()) : part;
  return [=](RunState& run, math::Scratch&) mutable {
    group->reduce_scatter(all.data_ptr(), sum.data_ptr(), counts, dtype, comm::Reduce::kSum);
    if (adds) run.add(part, sum);
  };
}

Kernel bind_all_gather(const BindContext& c, const Step& step, comm::Communicator* group) {
  const auto& op = std::get<program::AllGather>(step.op);
  if (op.payload == program::Payload::kKeys) return bind_gather_keys(c, step, group);
  if (op.payload != program::Payload::kUnit) return bind_gather_rows(c, step, group);
  auto part = view_of(c, step.operand(Arg::kFrom)), all = view_of(c, step.operand(Arg::kTo));
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  const auto counts = counts_over(c, op.axis, step.operand(Arg::kFrom), group->size());
  return [=](RunState&, math::Scratch&) { group->all_gather(part.data_ptr(), all.data_ptr(), counts, dtype); };
}

// Casts between this rank's part of a gradient and the message that carries it.
Kernel bind_cast(const BindContext& c, const Step& step) {
  auto from = view_of(c, step.operand(Arg::kFrom)), to = view_of(c, step.operand(Arg::kTo));
  const std::int64_t block = step.scratch.value / size_of(DType::kF32);
  if (!step.updates(Arg::kTo)) return [=](RunState&, math::Scratch&) mutable { to.copy_(from); };
  if (!to.device().is_cpu()) return [=](RunState&, math::Scratch&) mutable { to.add_(from); };
  // Casts a block at a time: ATen would widen the whole buffer at once, in memory that the plan does not contain.
  MOLEN_CHECK(block > 0, "a cast that adds has no scratch");
  return [=](RunState&, math::Scratch& scratch) mutable {
    const at::Tensor wide = at::from_blob(scratch.take_bytes(block * size_of(DType::kF32)), {block}, at::kFloat);
    for (std::int64_t first = 0; first < to.numel(); first += block) {
      const std::int64_t n = std::min(block, to.numel() - first);
      at::Tensor part = wide.narrow(0, 0, n);
      part.copy_(from.narrow(0, first, n));
      to.narrow(0, first, n).add_(part);
    }
  };
}

// Returns the part of a value that a stage sends or receives: when tensor ranks share the rows, the rank's own rows.
at::Tensor message_of(const BindContext& c, const Step& step, Arg arg) {
  const program::Rows& rows = step.attributes.rows;
  at::Tensor all = c.flat(step.operand(arg).buffer);
  if (!rows.sharded) return all;
  return all.narrow(0, 0, program::kept_rows(rows, c.program.grid, c.coordinates) * c.program.arch.hidden);
}

Kernel bind_send(const BindContext& c, const Step& step, int peer, comm::Communicator* stages) {
  const at::Tensor value = message_of(c, step, Arg::kFrom);
  const DType dtype = dtype_of(c, step.operand(Arg::kFrom));
  return [=](RunState&, math::Scratch&) { stages->send(value.data_ptr(), value.numel(), dtype, peer); };
}

Kernel bind_receive(const BindContext& c, const Step& step, int peer, comm::Communicator* stages) {
  const at::Tensor value = message_of(c, step, Arg::kTo);
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  return [=](RunState&, math::Scratch&) { stages->recv(value.data_ptr(), value.numel(), dtype, peer); };
}

// Copies between the device's memory and the host's.
Kernel bind_copy(const BindContext& c, const Step& step) {
  const bool adds = step.updates(Arg::kTo);
  const at::Tensor from = view_of(c, step.operand(Arg::kFrom));
  at::Tensor to = view_of(c, step.operand(Arg::kTo));
  MOLEN_CHECK(from.numel() == to.numel(), "a copy of {} elements to {}", from.numel(), to.numel());
  return [=](RunState&, math::Scratch&) mutable {
    if (adds)
      to.add_(from.to(to.device()));
    else
      to.copy_(from);
  };
}

Kernel bind_reduce_scalars(const BindContext& c, const Step& step, comm::Communicator* group) {
  const auto& op = std::get<program::ReduceScalars>(step.op);
  auto sums = c.flat(step.operand(Arg::kScalars).buffer).narrow(0, op.first, op.count);
  return [=](RunState&, math::Scratch&) {
    group->all_reduce(sums.data_ptr(), sums.numel(), DType::kF64, comm::Reduce::kSum);
  };
}

// Returns the group of an op's axis.
comm::Communicator* group_of(const BindContext& c, program::Axis axis) {
  comm::Communicator* group = c.group(axis);
  MOLEN_CHECK(group != nullptr, "a program with collectives over {} needs a communicator", program::name_of(axis));
  return group;
}

}  // namespace

Bounds held_of(const program::Program& p, int buffer, const mesh::PerAxis& coordinates) {
  const auto& b = p.buffers.at(static_cast<std::size_t>(buffer));
  const int unit = p.unit_of_buffer(buffer);
  if (unit < 0) return {0, b.elements};
  return program::unit_range(p.grid, coordinates, p.units[static_cast<std::size_t>(unit)], b.extent);
}

Bounds range_of(const program::Program& p, const program::Use& use, const mesh::PerAxis& coordinates) {
  const int unit = p.unit_of_buffer(use.buffer);
  if (use.range == program::Range::kAll || unit < 0) return held_of(p, use.buffer, coordinates);
  return program::unit_range(p.grid, coordinates, p.units[static_cast<std::size_t>(unit)], use.range);
}

Kernel bind(const BindContext& c, const Step& step) {
  return std::visit(
      Match{
          [&](const program::Compute& op) { return bind_compute(c, step, op); },
          [&](const program::LoadBatch&) { return bind_load(c, step); },
          [&](const program::ZeroFill&) -> Kernel {
            auto target = c.flat(step.operand(Arg::kTo).buffer);
            return [=](RunState&, math::Scratch&) mutable { target.zero_(); };
          },
          [&](const program::SumSquares&) { return bind_sum_squares(c, step); },
          [&](const program::ClipScale&) { return bind_clip(c, step); },
          [&](const program::OptimizerStep&) { return bind_optimizer(c, step); },
          [&](const program::AllReduce& o) { return bind_all_reduce(c, step, group_of(c, o.axis)); },
          [&](const program::ReduceScatter& o) { return bind_reduce_scatter(c, step, group_of(c, o.axis)); },
          [&](const program::AllGather& o) { return bind_all_gather(c, step, group_of(c, o.axis)); },
          [&](const program::AllToAll& o) { return bind_all_to_all(c, step, group_of(c, o.axis)); },
          [&](const program::Send& o) { return bind_send(c, step, o.peer, group_of(c, program::Axis::kPp)); },
          [&](const program::Receive& o) { return bind_receive(c, step, o.peer, group_of(c, program::Axis::kPp)); },
          [&](const program::RingExchange& o) { return bind_ring_exchange(c, step, group_of(c, o.axis)); },
          [&](const program::CopyToHost&) { return bind_copy(c, step); },
          [&](const program::CopyToDevice&) { return bind_copy(c, step); },
          [&](const program::Cast&) { return bind_cast(c, step); },
          [&](const program::ReduceScalars& o) { return bind_reduce_scalars(c, step, group_of(c, o.axis)); },
          [&](const program::SetFlag&) { return bind_set_flag(c, step); },
          [&](const program::SetClock& o) -> Kernel {
            return [set = c.set_clock, khz = o.khz](RunState&, math::Scratch&) { set(khz); };
          },
      },
      step.op);
}

}  // namespace molen::exec
