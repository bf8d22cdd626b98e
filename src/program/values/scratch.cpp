#include "program/values/scratch.h"

#include <algorithm>

#include "program/values/of_op.h"
#include "program/values/optimizer.h"
#include "program/values/part_of_rank.h"

namespace molen::program {
namespace {

// The update of whole matrices takes the scratch for the largest matrix of any rank.
Bytes scratch_of_update(const Program& p, const OptimizerStep& o, const Step& step) {
  const Optimizer& optimizer = optimizer_named(o.kind);
  const int unit = unit_of_step(p, step);
  Bytes most;
  if (!optimizer.whole_matrices || o.stage == UpdateStage::kDirection || unit < 0) return most;
  const Use* states = step.find(optimizer.states.front().arg);
  const std::int64_t width =
      size_of(states ? p.buffers.at(static_cast<std::size_t>(states->buffer)).dtype : DType::kF32);
  for (const UnitEntry& entry : p.units.at(static_cast<std::size_t>(unit)).entries)
    if (entry.whole > 0 && entry.rows > 0)
      most = std::max(most, Bytes(optimizer.whole_matrices(entry.rows, entry.columns).scratch * width));
  return most;
}

}  // namespace

Bytes kernel_scratch(const Program& p, const Step& step) {
  if (const auto* part = std::get_if<Compute>(&step.op)) return part_of(p, *part, step).scratch(p.local);
  if (const auto* update = std::get_if<OptimizerStep>(&step.op)) return scratch_of_update(p, *update, step);
  return {};
}

}  // namespace molen::program
