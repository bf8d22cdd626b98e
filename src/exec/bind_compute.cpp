// The steps of binding that all parts share. exec/parts/ binds the parts themselves.
#include "exec/bind_compute.h"

#include <algorithm>

#include "base/error.h"
#include "exec/bind_context.h"
#include "exec/operands.h"
#include "exec/parts/part.h"
#include "program/parts/part.h"

namespace molen::exec {

Kernel bind_compute(const BindContext& context, const program::Step& step, const program::Compute& op) {
  const auto& p = context.program;
  const program::Attributes& a = step.attributes;
  MOLEN_CHECK(a.compute && a.kernel, "{} says neither type nor kernel", program::kind_of(step.op));
  const bool piece = a.rows.in_pieces() && program::has_halves(op.part);
  const std::int64_t length = a.rows.length;
  const int context_ranks = p.grid.sizes[mesh::Axis::kCp];
  const Operands operands(context, step, piece ? op.portion : -1);
  PartContext common{p.local,
                     {a.rows.sequences, length, 0, *a.compute, a.threads, *a.kernel},
                     step.updates(Arg::kGrad),
                     operands.share(),
                     context.positions.empty() ? positions_of(p.grid, length * context_ranks, context.coordinates)
                                               : context.positions};
  common.shape.context_ranks = context_ranks;
  if (piece) {
    common.shape.batch = 1;
    common.shape.sequence = operands.tokens();
  }
  if (program::of_head(op.part)) common.shape.chunk = std::min(a.tile, a.rows.count() - op.portion * a.tile);
  if (op.pass == program::Pass::kBackwardInput && program::has_halves(op.part))
    common.pass = arch::Pass::kBackwardInput;
  if (op.pass == program::Pass::kBackwardWeights) common.pass = arch::Pass::kBackwardWeights;
  if (operands.has(Arg::kDocuments)) common.documents = operands.flat(Arg::kDocuments);
  if (operands.has(Arg::kSlopes)) common.slopes = operands.flat(Arg::kSlopes);
  return bind_part({context, step, op, operands, common});
}

}  // namespace molen::exec
