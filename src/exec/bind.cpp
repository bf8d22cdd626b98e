#include "exec/bind.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "base/match.h"
#include "exec/bind_compute.h"
#include "exec/bind_context.h"
#include "exec/groups.h"
#include "optim/adamw.h"
#include "program/signature.h"
#include "program/value_memory.h"

namespace molen::exec {
namespace {

using program::Arg;
using program::Program;
using program::Step;

// Returns the elements of a unit's buffer that a use names, as a view.
at::Tensor view_of(const BindContext& c, const program::Use& use) {
  const auto [held, held_end] = held_of(c.program, use.buffer, c.coordinates);
  const auto [first, last] = range_of(c.program, use, c.coordinates);
  return c.flat(use.buffer).narrow(0, first - held, last - first);
}

Kernel bind_load(const BindContext& c, const Step& step) {
  if (c.program.setting.context()) return bind_load_part(c, step);
  auto ids = c.flat(step.operand(Arg::kIds).buffer), labels = c.flat(step.operand(Arg::kLabels).buffer),
       scalars = c.flat(step.operand(Arg::kScalars).buffer);
  at::Tensor documents;
  if (c.program.setting.document_mask) documents = c.flat(step.operand(Arg::kDocuments).buffer);
  const bool counted = !std::get<program::LoadBatch>(step.op).uncounted;
  if (ids.device().is_cpu())
    return [=](RunState& run, math::Scratch&) {
      const std::int64_t valid = run.input->load({ids.data_ptr<std::int32_t>(), labels.data_ptr<std::int32_t>(),
                                                  documents.defined() ? documents.data_ptr<std::int32_t>() : nullptr});
      if (counted) scalars.data_ptr<double>()[program::kValidTokens] += static_cast<double>(valid);
    };
  return [=](RunState& run, math::Scratch&) mutable {
    const MicroBatch host = run.staged(static_cast<std::size_t>(ids.numel()), documents.defined());
    const std::int64_t valid = run.input->load(host);
    ids.copy_(at::from_blob(host.ids, {ids.numel()}, at::kInt));
    labels.copy_(at::from_blob(host.labels, {labels.numel()}, at::kInt));
    if (documents.defined()) documents.copy_(at::from_blob(host.document_start, {documents.numel()}, at::kInt));
    if (counted) scalars.select(0, program::kValidTokens).add_(static_cast<double>(valid));
  };
}

Kernel bind_sum_squares(const BindContext& c, const Step& step) {
  // Elements that tensor ranks hold alike are counted only by the first of these ranks.
  const program::Use& of = step.operand(Arg::kGrad);
  const auto [held, held_end] = held_of(c.program, of.buffer, c.coordinates);
  const auto [first, last] = range_of(c.program, of, c.coordinates);
  const auto& unit = c.program.units[static_cast<std::size_t>(program::unit_of_step(c.program, step))];
  const auto [from, to] = program::counted_once(c.coordinates, unit, first, last);
  auto grad = c.flat(of.buffer).narrow(0, from - held, to - from), scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const int threads = c.program.setting.threads;
  return [=](RunState&, math::Scratch&) mutable {
    if (!grad.device().is_cpu()) {
      scalars.select(0, program::kSumSquares).add_(grad.to(at::kDouble).square().sum());
      return;
    }
    const double sum = grad.scalar_type() == at::kDouble
                           ? optim::sum_squares(grad.data_ptr<double>(), grad.numel(), threads)
                           : optim::sum_squares(grad.data_ptr<float>(), grad.numel(), threads);
    if (scalars.device().is_cpu())
      scalars.data_ptr<double>()[program::kSumSquares] += sum;
    else
      scalars.select(0, program::kSumSquares).add_(sum);
  };
}

Kernel bind_clip(const BindContext& c, const Step& step) {
  auto scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const double places =
      static_cast<double>(c.program.setting.global_batch) * static_cast<double>(c.program.setting.sequence);
  return [=](RunState& run, math::Scratch&) mutable {
    auto host = scalars.device().is_cpu() ? scalars : scalars.to(at::kCPU);
    double* s = host.data_ptr<double>();
    const double mean = s[program::kValidTokens] > 0 ? places / s[program::kValidTokens] / run.input->loss_scale : 0.0;
    const double norm = std::sqrt(s[program::kSumSquares]) * mean;
    s[program::kGradNorm] = norm;
    // As torch.nn.utils.clip_grad_norm_: min(1, clip / (norm + 1e-6)).
    const double clip = run.input->clip;
    s[program::kGradScale] = mean * (clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0);
    if (!scalars.device().is_cpu()) scalars.copy_(host);
  };
}

Kernel bind_agree(const BindContext& c, const Step& step) {
  auto scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const bool scaled = c.program.setting.scales_loss();
  return [=](RunState& run, math::Scratch&) {
    const auto host = scalars.to(at::kCPU);
    const double* s = host.data_ptr<double>();
    const bool loss = std::isfinite(s[program::kLossSum]) && s[program::kValidTokens] > 0,
               gradient = std::isfinite(s[program::kGradNorm]);
    run.non_finite = !loss || !gradient;
    run.overflow = scaled && loss && !gradient;
  };
}

template <class T>
void update_entry(const StepInput& input, bool decay, double scale, std::int64_t n, int threads, const at::Tensor& grad,
                  at::Tensor& target, at::Tensor& m, at::Tensor& v) {
  optim::adamw_update<T>(input.optimizer, input.step, decay, scale, n, threads, grad.data_ptr<T>(),
                         target.data_ptr<T>(), m.data_ptr<T>(), v.data_ptr<T>());
}

// Consecutive elements of a unit that this rank updates, all with or all without weight decay.
struct Run {
  bool decay;
  at::Tensor grad, param, m, v, master;
};

std::vector<Run> runs_of(const BindContext& c, const Step& step) {
  const int unit = program::unit_of_step(c.program, step);
  const auto& u = c.program.units[static_cast<std::size_t>(unit)];
  const auto [first, last] = range_of(c.program, step.operand(Arg::kParam), c.coordinates);
  const program::Use* master = step.find(Arg::kMaster);
  std::vector<Run> runs;
  for (const auto& entry : u.entries) {
    const auto& parameter = c.program.parameters[static_cast<std::size_t>(entry.parameter)];
    const std::int64_t from = std::max(first, entry.offset), to = std::min(last, entry.offset + parameter.elements());
    if (from >= to) continue;
    const auto part = [&](const program::Use& use) {
      return c.flat(use.buffer).narrow(0, from - held_of(c.program, use.buffer, c.coordinates).first, to - from);
    };
    Run run{parameter.decay,
            part(step.operand(Arg::kGrad)),
            part(step.operand(Arg::kParam)),
            part(step.operand(Arg::kMoment1)),
            part(step.operand(Arg::kMoment2)),
            {}};
    if (master) run.master = part(*master);
    runs.push_back(std::move(run));
  }
  return runs;
}

void update_on_device(const StepInput& input, Run& run, const at::Tensor& scalars) {
  at::Tensor& target = run.master.defined() ? run.master : run.param;
  // Does not use the fused op's own scale: that is fp32, and the op writes the scaled gradient back over the unscaled
  // one.
  const at::Tensor grad = run.grad.mul(scalars.select(0, program::kGradScale));
  const at::Tensor step = at::full({}, static_cast<double>(input.step), run.grad.options().dtype(at::kFloat));
  const double decay = run.decay ? input.optimizer.weight_decay : 0.0;
  at::_fused_adamw_({target}, {grad}, {run.m}, {run.v}, {}, {step}, input.optimizer.lr, input.optimizer.beta1,
                    input.optimizer.beta2, decay, input.optimizer.eps, false, false);
}

Kernel bind_optimizer(const BindContext& c, const Step& step) {
  auto runs = runs_of(c, step);
  auto scalars = c.flat(step.operand(Arg::kScalars).buffer);
  const int threads = c.program.setting.threads;
  return [=](RunState& state, math::Scratch&) mutable {
    const bool on_device =
        std::any_of(runs.begin(), runs.end(), [](const Run& r) { return !r.grad.device().is_cpu(); });
    const double scale = on_device ? 0.0 : scalars.to(at::kCPU).data_ptr<double>()[program::kGradScale];
    for (Run& run : runs) {
      if (on_device) {
        update_on_device(*state.input, run, scalars);
      } else {
        at::Tensor& target = run.master.defined() ? run.master : run.param;
        const std::int64_t n = run.grad.numel();
        if (run.grad.scalar_type() == at::kDouble)
          update_entry<double>(*state.input, run.decay, scale, n, threads, run.grad, target, run.m, run.v);
        else
          update_entry<float>(*state.input, run.decay, scale, n, threads, run.grad, target, run.m, run.v);
      }
      if (run.master.defined()) run.param.copy_(run.master);
    }
  };
}

// Returns how many elements of a buffer each member of a collective's group contributes or receives.
std::vector<std::int64_t> counts_over(const BindContext& c, program::Axis axis, const program::Use& use, int members) {
  std::vector<std::int64_t> counts;
  const auto& s = c.program.setting;
  const mesh::Mesh mesh(s.mesh, s.ranks(), s.order);
  for (const int rank : mesh.group(mesh.rank_of(c.coordinates), program::axes_of(axis))) {
    const auto [first, last] = range_of(c.program, use, mesh.coordinates(rank));
    counts.push_back(last - first);
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
RowPiece row_piece(const BindContext& c, const program::Operand& all, std::int64_t chunk) {
  const auto& s = c.program.setting;
  const std::int64_t d = c.program.arch.hidden;
  RowPiece piece;
  piece.all = program::chunk_apart(c.program, all) ? 0 : program::chunk_rows(s, chunk).first * d;
  piece.kept = program::first_kept_row(s, c.coordinates, chunk) * d;
  mesh::PerAxis at = c.coordinates;
  for (at[mesh::Axis::kTp] = 0; at[mesh::Axis::kTp] < s.tensor_ranks(); ++at[mesh::Axis::kTp]) {
    const auto [first, last] = program::row_range(s, at, chunk);
    piece.counts.push_back((last - first) * d);
  }
  return piece;
}

// Sums the rows of each tensor rank, overwriting the rank's part or adding to it.
Kernel bind_scatter_rows(const BindContext& c, const Step& step, comm::Communicator* group) {
  const auto& op = std::get<program::ReduceScatter>(step.op);
  const RowPiece piece = row_piece(c, program::signature(c.program, op, -1).operand(Arg::kFrom), op.chunk);
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
  return [=, counts = piece.counts](RunState&, math::Scratch&) mutable {
    group->reduce_scatter(all.data_ptr(), sum.data_ptr(), counts, dtype, comm::Reduce::kSum);
    if (before_sum.defined()) kept.copy_(before_sum);
    if (adds) kept.add_(sum);
  };
}

// Gathers the rows of all ranks, or the sums of the head, in rank order.
Kernel bind_gather_rows(const BindContext& c, const Step& step, comm::Communicator* group) {
  auto part = c.flat(step.operand(Arg::kFrom).buffer), all = c.flat(step.operand(Arg::kTo).buffer);
  const auto& op = std::get<program::AllGather>(step.op);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(group->size()), part.numel());
  if (op.moves != program::Moves::kHead) {
    const RowPiece piece = row_piece(c, program::signature(c.program, op, -1).operand(Arg::kTo), op.chunk);
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
  if (op.moves == program::Moves::kDKeys) return bind_scatter_keys(c, step, group);
  if (op.moves != program::Moves::kUnit) return bind_scatter_rows(c, step, group);
  auto all = view_of(c, step.operand(Arg::kFrom)), part = view_of(c, step.operand(Arg::kTo));
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  const auto counts = counts_over(c, op.axis, step.operand(Arg::kTo), group->size());
  // When the sum is added to an earlier one, it is first computed in this rank's part of the buffer that the op uses
  // up.
  const std::int64_t own = std::accumulate(counts.begin(), counts.begin() + group->rank(), std::int64_t{0});
  const bool adds = step.updates(Arg::kTo);
  at::Tensor sum = adds ? all.narrow(0, own, part.numel()) : part;
  return [=](RunState&, math::Scratch&) mutable {
    group->reduce_scatter(all.data_ptr(), sum.data_ptr(), counts, dtype, comm::Reduce::kSum);
    if (adds) part.add_(sum);
  };
}

Kernel bind_all_gather(const BindContext& c, const Step& step, comm::Communicator* group) {
  const auto& op = std::get<program::AllGather>(step.op);
  if (op.moves == program::Moves::kKeys) return bind_gather_keys(c, step, group);
  if (op.moves != program::Moves::kUnit) return bind_gather_rows(c, step, group);
  auto part = view_of(c, step.operand(Arg::kFrom)), all = view_of(c, step.operand(Arg::kTo));
  const DType dtype = dtype_of(c, step.operand(Arg::kTo));
  const auto counts = counts_over(c, op.axis, step.operand(Arg::kFrom), group->size());
  return [=](RunState&, math::Scratch&) { group->all_gather(part.data_ptr(), all.data_ptr(), counts, dtype); };
}

// Casts between this rank's part of a gradient and its message.
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
at::Tensor message_of(const BindContext& c, int buffer) {
  const at::Tensor all = c.flat(buffer);
  if (!c.program.setting.sharded_rows()) return all;
  return all.narrow(0, 0, program::kept_rows(c.program.setting, c.coordinates) * c.program.arch.hidden);
}

Kernel bind_send(const BindContext& c, const Step& step, int peer, comm::Communicator* stages) {
  const at::Tensor value = message_of(c, step.operand(Arg::kFrom).buffer);
  const DType dtype = dtype_of(c, step.operand(Arg::kFrom));
  return [=](RunState&, math::Scratch&) { stages->send(value.data_ptr(), value.numel(), dtype, peer); };
}

Kernel bind_receive(const BindContext& c, const Step& step, int peer, comm::Communicator* stages) {
  const at::Tensor value = message_of(c, step.operand(Arg::kTo).buffer);
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
  return program::unit_range(p.setting, coordinates, p.units[static_cast<std::size_t>(unit)],
                             program::extent_of(p, b.role));
}

Bounds range_of(const program::Program& p, const program::Use& use, const mesh::PerAxis& coordinates) {
  const int unit = p.unit_of_buffer(use.buffer);
  if (use.range == program::Range::kAll || unit < 0) return held_of(p, use.buffer, coordinates);
  return program::unit_range(p.setting, coordinates, p.units[static_cast<std::size_t>(unit)], use.range);
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
          [&](const program::Send& o) { return bind_send(c, step, o.peer, group_of(c, program::Axis::kPp)); },
          [&](const program::Receive& o) { return bind_receive(c, step, o.peer, group_of(c, program::Axis::kPp)); },
          [&](const program::Shift& o) { return bind_shift(c, step, group_of(c, o.axis)); },
          [&](const program::CopyToHost&) { return bind_copy(c, step); },
          [&](const program::CopyToDevice&) { return bind_copy(c, step); },
          [&](const program::Cast&) { return bind_cast(c, step); },
          [&](const program::ReduceScalars& o) { return bind_reduce_scalars(c, step, group_of(c, o.axis)); },
          [&](const program::Agree&) { return bind_agree(c, step); },
      },
      step.op);
}

}  // namespace molen::exec
