#include "program/values/costs.h"

#include <algorithm>

#include "base/match.h"
#include "program/parts/part.h"
#include "program/values/attributes.h"
#include "program/values/epilogues.h"
#include "program/values/of_op.h"
#include "program/values/optimizer.h"
#include "program/values/part_of_rank.h"
#include "program/values/payload.h"
#include "program/values/scratch.h"
#include "program/values/tiles.h"
#include "program/values/value_memory.h"

namespace molen::program {
namespace {

void cost_part(const Program& p, const Compute& c, Step& step) {
  const PartOfRank of = part_of(p, c, step);
  const arch::PartCost cost = of.cost(p.local);
  step.scratch = cost.scratch;
  step.moved = cost.moved;
  step.hardware_flops = cost.flops;
  if (const auto assembled = declaration_of(c.part).assembled; assembled && of.shape.tensor_ranks > 1) {
    const bool adds = step.updates(Arg::kGrad);
    const Bytes moved(assembled(parts::Sizes(p.local, of.shape), of.pass, adds));
    if (moved.value > 0) step.epilogues.push_back({Epilogue::kAssemble, moved});
  }
  // Recomputation is work of the hardware, not of the model.
  step.model_flops = c.pass == ComputePass::kRecompute ? Flops(0) : cost.flops;
}

// A cast that adds to its target also reads the target, and widens the sum one block at a time.
void cost_cast(const Program& p, Bytes touched, Step& step) {
  const Use* to = step.updates(Arg::kTo) ? step.find(Arg::kTo) : nullptr;
  const std::int64_t wide = to ? used_elements(p, *to, {}) * size_of(DType::kF32) : 0;
  step.moved = touched + Bytes(wide);
  step.scratch = Bytes(std::min(wide, arch::kWidenBlock * size_of(DType::kF32)));
}

// The gradient is read once or several times. All other operands are read and written, since even a plain store to a
// parameter reads its cache line. Matrices that are updated whole take matrix products: their FLOPs are those of the
// rank at 0.
void cost_optimizer(const Program& p, const OptimizerStep& o, std::int64_t read, std::int64_t written, Step& step) {
  const Optimizer& optimizer = optimizer_named(o.kind);
  step.moved = Bytes((o.stage == UpdateStage::kDirection ? 1 : optimizer.gradient_reads) * read + 2 * written);
  step.scratch = kernel_scratch(p, step);
  const int of = unit_of_step(p, step);
  if (!optimizer.whole_matrices || o.stage == UpdateStage::kDirection || of < 0) return;
  const Unit& unit = p.units.at(static_cast<std::size_t>(of));
  const auto [first, last] = unit_range(p.grid, {}, unit, Range::kOwn);
  for (const UnitEntry& entry : unit.entries)
    if (entry.whole > 0 && entry.rows > 0 && first <= entry.offset && entry.offset < last)
      step.hardware_flops += optimizer.whole_matrices(entry.rows, entry.columns).flops;
}

// The scratch holds the rows of the tile in the order in which ranks send them: the rows of one rank are side by side.
void cost_exchange(const Program& p, const AllToAll& o, Step& step) {
  step.moved = payload_of(p, step, {});
  const Use* there = step.find(o.home() ? Arg::kFrom : Arg::kTo);
  if (!there || !p.arch.sparse()) return;
  const arch::Experts& experts = p.arch.sparse_experts();
  const Rows& rows = step.attributes.rows;
  const int ranks = p.grid.sizes[mesh::Axis::kEp];
  const auto [first, end] = experts_of_tile(p, rows, o.chunk);
  const std::int64_t most = most_rows_of_experts(experts, rows.sequences, rows.length, ranks, end - first);
  step.scratch =
      Bytes(arch::aligned(most * p.arch.hidden * size_of(p.buffers[static_cast<std::size_t>(there->buffer)].dtype)));
}

}  // namespace

void set_costs(const Program& p, Step& step) {
  std::int64_t read = 0, written = 0;  // an updated operand counts as written
  for (const Use& use : step.operands) (use.writes() ? written : read) += used_bytes(p, use, {});
  const Bytes touched(read + written);
  step.scratch = step.moved = Bytes();
  step.model_flops = step.hardware_flops = Flops();
  step.epilogues = epilogues_of(p, step);
  const auto communicated = [&](const auto&) { step.moved = payload_of(p, step, {}); };
  std::visit(Match{
                 [&](const Compute& c) { cost_part(p, c, step); },
                 [&](const LoadBatch&) { step.moved = touched; },
                 [&](const ZeroFill&) { step.moved = touched; },
                 [&](const SumSquares&) { step.moved = Bytes(read); },
                 [&](const ClipScale&) { step.moved = touched; },
                 [&](const OptimizerStep& o) { cost_optimizer(p, o, read, written, step); },
                 [&](const AllReduce& o) { communicated(o); },
                 [&](const ReduceScatter& o) { communicated(o); },
                 [&](const AllGather& o) { communicated(o); },
                 [&](const AllToAll& o) { cost_exchange(p, o, step); },
                 [&](const Send& o) { communicated(o); },
                 [&](const Receive& o) { communicated(o); },
                 [&](const Shift& o) { communicated(o); },
                 [&](const ReduceScalars& o) { communicated(o); },
                 [&](const CopyToHost&) { step.moved = Bytes(read); },
                 [&](const CopyToDevice&) { step.moved = Bytes(written); },
                 [&](const Cast&) { cost_cast(p, touched, step); },
                 [&](const Agree&) { step.moved = touched; },
             },
             step.op);
}

Flops forward_flops(const arch::Architecture& local, const Traits& t, arch::Part part) {
  PartOfRank of{part, arch::Pass::kForward, shape_of(attributes_of(t, Compute{part}), t.grid)};
  if (of_head(part)) of.shape.chunk = t.tokens();
  of.context_ranks = t.context_ranks();
  of.ring = t.ring();
  return of.cost(local).flops;
}

}  // namespace molen::program
