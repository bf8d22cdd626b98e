// The router of a sparse layer, its balance loss, and the rows on their way to the experts and back.
// program/parts/routing.cpp says what each pass reads and writes.
#include "arch/context_parallel.h"
#include "exec/parts/part.h"
#include "model/experts.h"

namespace molen::exec {
namespace {

// Returns the largest number of rows that the rank's tokens may take in expert order.
std::int64_t sent_rows(const PartCall& call) {
  return arch::most_rows_of_experts(call.common.arch.sparse_experts(), call.common.shape.sequences(), 1);
}

// Returns the number of tokens of a sequence, over all context ranks that share it.
std::int64_t sequence_of(const PartCall& call) {
  return call.common.shape.sequence * call.ranks(mesh::Axis::kCp);
}

model::Routed routed_of(const PartCall& call) {
  const Operands& o = call.operands;
  const std::int64_t experts = call.common.arch.sparse_experts().count;
  model::Routed routed{o.rows(Arg::kScores),
                       o.flat(Arg::kLse),
                       o.rows(Arg::kChoice),
                       {},
                       o.view(Arg::kLoad, {call.common.shape.batch, 2, experts})};
  if (o.has(Arg::kWeights)) routed.weights_Nt = o.rows(Arg::kWeights);
  if (o.has(Arg::kCounts)) routed.counts_B22E = o.flat(Arg::kCounts);
  return routed;
}

Kernel bind_route(const PartCall& call) {
  const Operands& o = call.operands;
  const auto mid = o.rows(Arg::kX), labels = o.view(Arg::kLabels, {o.tokens()});
  const auto router = o.param().router();
  const auto norm = o.param().mlp_norm();
  auto stats = o.stats();
  auto routed = routed_of(call);
  if (!call.backward())
    return [=, common = call.common, rows = o.rows(Arg::kY), scalars = o.flat(Arg::kScalars)](
               RunState&, math::Scratch& s) mutable {
      const model::RouterSums sums =
          model::route_forward(common.context(s), mid, labels, norm, router, stats, rows, routed);
      scalars.data_ptr<double>()[program::kZLoss] += sums.z;
      if (common.arch.drops_tokens()) scalars.data_ptr<double>()[program::kDropped] += sums.dropped;
    };
  auto d_rows = o.rows(Arg::kDY), d_x = o.rows(Arg::kDX);
  auto d_router = o.grad().router();
  const auto d_weights = o.rows(Arg::kDWeights), before = o.residual_gradient_beside();
  auto d_norm = o.grad().mlp_norm();
  const double grad_scale = 1.0 / static_cast<double>(call.step.attributes.positions);
  return [=, common = call.common, sequence = sequence_of(call)](RunState& run, math::Scratch& s) mutable {
    if (before.defined()) run.copy(program::Epilogue::kCopy, d_x, before);
    model::route_backward(common.context(s), d_rows, d_weights, mid, labels, stats, routed, norm, router, sequence,
                          grad_scale * run.step.input->loss_scale, d_x, d_norm, d_router);
  };
}

Kernel bind_limit(const PartCall& call) {
  const Operands& o = call.operands;
  std::vector<std::vector<PositionRun>> runs;
  const int ranks = call.ranks(mesh::Axis::kCp);
  for (int r = 0; r < ranks; ++r) runs.push_back(arch::context_runs(sequence_of(call), r, ranks));
  return [=, common = call.common, rank = call.context.coordinates[mesh::Axis::kCp],
          labels = o.view(Arg::kLabels, {o.tokens()}), counts = o.flat(Arg::kCounts), choice = o.rows(Arg::kChoice),
          scalars = o.flat(Arg::kScalars)](RunState&, math::Scratch& s) mutable {
    scalars.data_ptr<double>()[program::kDropped] +=
        model::limit(common.context(s), labels, runs, rank, counts, choice);
  };
}

// Every context rank has the load of the whole sequence, and only the first of them counts it.
Kernel bind_balance(const PartCall& call) {
  const auto load =
      call.operands.view(Arg::kLoad, {call.common.shape.batch, 2, call.common.arch.sparse_experts().count});
  auto scalars = call.operands.flat(Arg::kScalars);
  const bool counts = call.context.coordinates[mesh::Axis::kCp] == 0;
  return [=, common = call.common, sequence = sequence_of(call)](RunState&, math::Scratch& s) mutable {
    const double loss = model::balance_loss(common.context(s), load, sequence);
    if (counts) scalars.data_ptr<double>()[program::kBalanceLoss] += loss;
  };
}

Kernel bind_dispatch(const PartCall& call) {
  const Operands& o = call.operands;
  const std::int64_t most = sent_rows(call);
  auto places = o.rows(Arg::kPlaces);
  if (!call.backward()) {
    const auto x = o.rows(Arg::kX), choice = o.rows(Arg::kChoice);
    auto rows = o.view(Arg::kY, {most, -1}), offsets = o.flat(Arg::kOffsets);
    return [=, common = call.common](RunState&, math::Scratch& s) mutable {
      model::dispatch_forward(common.context(s), x, choice, rows, places, offsets);
    };
  }
  return [=, common = call.common, d_rows = o.view(Arg::kDY, {most, -1}), d_x = o.rows(Arg::kDX)](
             RunState&, math::Scratch& s) mutable { model::dispatch_backward(common.context(s), d_rows, places, d_x); };
}

// With shared experts, the residual already contains the middle in the rank's own rows, and it has a term of the sum in
// all rows.
at::Tensor residual_of(const PartCall& call) {
  return call.common.arch.shares_experts() ? call.operands.rows(Arg::kResidual) : call.operands.residual();
}

Kernel bind_combine(const PartCall& call) {
  const Operands& o = call.operands;
  const std::int64_t most = sent_rows(call);
  const auto rows = o.view(Arg::kX, {most, -1}), places = o.rows(Arg::kPlaces), weights = o.rows(Arg::kWeights);
  if (!call.backward())
    return [=, common = call.common, residual = residual_of(call), y = o.rows(Arg::kY)](RunState&,
                                                                                        math::Scratch& s) mutable {
      model::combine_forward(common.context(s), rows, places, weights, residual, y);
    };
  const auto d_y = o.rows(Arg::kDY);
  auto d_rows = o.view(Arg::kDX, {most, -1}), d_weights = o.rows(Arg::kDWeights);
  return [=, common = call.common](RunState&, math::Scratch& s) mutable {
    model::combine_backward(common.context(s), d_y, rows, places, weights, d_rows, d_weights);
  };
}

}  // namespace

std::vector<PartBinding> routing_bindings() {
  return {{arch::Part::kRoute, bind_route},
          {arch::Part::kLimit, bind_limit},
          {arch::Part::kBalance, bind_balance},
          {arch::Part::kDispatch, bind_dispatch},
          {arch::Part::kCombine, bind_combine}};
}

}  // namespace molen::exec
