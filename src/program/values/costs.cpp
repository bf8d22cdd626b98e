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
  step.model_flops = c.pass == Pass::kRecompute ? Flops(0) : cost.flops;
}

// The bytes of a step's operands. The step's sums, which are a few numbers, are not counted beside other operands.
struct OperandBytes {
  std::int64_t read = 0, written = 0, sums = 0;
  // An operand that is read or written crosses memory once; an updated operand crosses it twice.
  std::int64_t touched = 0;
  OperandBytes(const Program& p, const Step& step) {
    for (const Use& use : step.operands) {
      const std::int64_t bytes = used_bytes(p, use, {});
      if (p.buffers.at(static_cast<std::size_t>(use.buffer)).role == Value::kScalars) {
        sums += (use.access == Access::kUpdate ? 2 : 1) * bytes;
        continue;
      }
      (use.writes() ? written : read) += bytes;
      touched += (use.access == Access::kUpdate ? 2 : 1) * bytes;
    }
  }
};

// A cast that adds to its target widens the sum one block at a time.
void cost_cast(const Program& p, Step& step) {
  step.moved = Bytes(OperandBytes(p, step).touched);
  const std::int64_t wide =
      step.updates(Arg::kTo) ? used_elements(p, *step.find(Arg::kTo), {}) * size_of(DType::kF32) : 0;
  step.scratch = Bytes(std::min(wide, arch::kWidenBlock * size_of(DType::kF32)));
}

// Gradients, whether the rank's own or those of all tensor ranks, are read once or several times. All other operands
// that are only read cross memory once. The others cross it twice, since even a plain store to a parameter reads its
// cache line. Matrices that are updated whole take matrix products: their FLOPs are those of the rank at 0.
void cost_optimizer(const Program& p, const OptimizerStep& o, Step& step) {
  const Optimizer& optimizer = optimizer_named(o.kind);
  const bool once = o.stage == UpdateStage::kDirection;
  const OperandBytes bytes(p, step);
  step.moved = Bytes((once ? 1 : optimizer.gradient_reads) * bytes.read + 2 * bytes.written);
  step.scratch = kernel_scratch(p, step);
  const int of = unit_of_step(p, step);
  if (!optimizer.whole_matrices || once || of < 0) return;
  const Unit& unit = p.units.at(static_cast<std::size_t>(of));
  const auto [first, last] = unit_range(p.grid, {}, unit, Range::kOwn);
  for (const UnitEntry& entry : unit.entries)
    if (entry.whole > 0 && entry.rows > 0 && first <= entry.offset && entry.offset < last)
      step.hardware_flops += optimizer.whole_matrices(entry.rows, entry.columns).flops;
}

// The scratch holds the rows of the tile in the order in which ranks send them: the rows of one rank are side by side.
void cost_exchange(const Program& p, const AllToAll& o, Step& step) {
  step.moved = payload_bytes(p, step, {});
  const Use* there = step.find(o.home() ? Arg::kFrom : Arg::kTo);
  if (!there || !p.arch.sparse()) return;
  const arch::Experts& experts = p.arch.sparse_experts();
  const Rows& rows = step.attributes.rows;
  const int ranks = p.grid.sizes[mesh::Axis::kEp];
  const auto [first, end] = experts_of_tile(p, rows, o.portion);
  const std::int64_t most =
      most_rows_of_experts(experts, {rows.sequences, rows.length, p.grid.sizes[mesh::Axis::kCp]}, ranks, end - first);
  step.scratch =
      Bytes(arch::aligned(most * p.arch.hidden * size_of(p.buffers[static_cast<std::size_t>(there->buffer)].dtype)));
}

}  // namespace

void set_costs(const Program& p, Step& step) {
  const OperandBytes bytes(p, step);
  step.scratch = step.moved = Bytes();
  step.model_flops = step.hardware_flops = Flops();
  step.epilogues = epilogues_of(p, step);
  const auto touched = [&] { step.moved = Bytes(bytes.touched > 0 ? bytes.touched : bytes.sums); };
  const auto communicated = [&](const auto&) { step.moved = payload_bytes(p, step, {}); };
  std::visit(Match{
                 [&](const Compute& c) { cost_part(p, c, step); },
                 [&](const LoadBatch&) { touched(); },
                 [&](const ZeroFill&) { touched(); },
                 [&](const SumSquares&) { step.moved = Bytes(bytes.read); },
                 [&](const ClipScale&) { touched(); },
                 [&](const OptimizerStep& o) { cost_optimizer(p, o, step); },
                 [&](const AllReduce& o) { communicated(o); },
                 [&](const ReduceScatter& o) { communicated(o); },
                 [&](const AllGather& o) { communicated(o); },
                 [&](const AllToAll& o) { cost_exchange(p, o, step); },
                 [&](const Send& o) { communicated(o); },
                 [&](const Receive& o) { communicated(o); },
                 [&](const RingExchange& o) { communicated(o); },
                 [&](const ReduceScalars& o) { communicated(o); },
                 [&](const CopyToHost&) { step.moved = Bytes(bytes.read); },
                 [&](const CopyToDevice&) { step.moved = Bytes(bytes.written); },
                 [&](const Cast&) { cost_cast(p, step); },
                 [&](const SetFlag&) { touched(); },
                 [&](const SetClock&) { touched(); },
             },
             step.op);
}

std::optional<StepProducts> products_of(const Program& p, const Step& step) {
  const auto* c = std::get_if<Compute>(&step.op);
  if (!c || !declaration_of(c->part).product) return std::nullopt;
  const PartOfRank of = part_of(p, *c, step);
  const PartDeclaration& part = declaration_of(c->part);
  // A part without halves does all in the first half, as part_cost has it.
  const bool whole = !has_halves(c->part) && of.pass == Pass::kBackwardInput;
  if (!has_halves(c->part) && of.pass == Pass::kBackwardWeights) return std::nullopt;
  return StepProducts{part.product(parts::Sizes(p.local, of.shape)), part.products(whole ? Pass::kBackward : of.pass)};
}

Flops forward_flops(const arch::Architecture& local, const Traits& t, arch::Part part) {
  PartOfRank of{part, arch::Pass::kForward, shape_of(attributes_of(t, Compute{part}), t.grid)};
  if (of_head(part)) of.shape.chunk = t.tokens();
  of.ring = t.ring();
  return of.cost(local).flops;
}

}  // namespace molen::program
