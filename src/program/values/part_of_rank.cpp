#include "program/values/part_of_rank.h"

#include <algorithm>

#include "arch/tensor_parallel.h"
#include "program/parts/part.h"
#include "program/values/of_op.h"

namespace molen::program {
namespace {

// A recomputation runs the kernel of the forward.
Pass kernel_pass(Pass pass) {
  return pass == Pass::kRecompute ? Pass::kForward : pass;
}

}  // namespace

arch::PartCost PartOfRank::cost(const arch::Architecture& local) const {
  const auto context_cost = declaration_of(part).context_cost;
  const int ranks = shape.context_ranks;
  if (!context_cost || ranks == 1) return part_cost(local, part, pass, shape);
  return context_cost(local, pass, shape, {shape.sequence * ranks, ranks, ring, step});
}

Bytes PartOfRank::scratch(const arch::Architecture& local) const {
  const bool alone = !declaration_of(part).context_cost || shape.context_ranks == 1;
  return alone ? part_scratch(local, part, pass, shape) : cost(local).scratch;
}

arch::PartShape shape_of(const Attributes& a, const Grid& grid) {
  arch::PartShape shape;
  shape.batch = a.rows.sequences;
  shape.sequence = a.rows.length;
  shape.compute = a.compute.value_or(DType::kF32);
  shape.threads = std::max(a.threads, 1);
  shape.kernels = a.kernel.value_or(arch::Kernels::kReference);
  shape.tensor_ranks = grid.sizes[mesh::Axis::kTp];
  shape.rows_sharded = a.rows.sharded;
  shape.expert_ranks = grid.sizes[mesh::Axis::kEp];
  shape.context_ranks = grid.sizes[mesh::Axis::kCp];
  return shape;
}

PartOfRank part_of(const Program& p, const Compute& c, const Step& step) {
  const Attributes& a = step.attributes;
  PartOfRank of{c.part, kernel_pass(c.pass), shape_of(a, p.grid)};
  if (of_head(c.part)) of.shape.chunk = std::min(a.tile, a.rows.count() - c.portion * a.tile);
  if (a.rows.in_pieces() && has_halves(c.part)) {
    const auto [first, last] = rows_of_piece(a.rows, c.portion);
    of.shape.batch = 1;
    of.shape.sequence = last - first;
  }
  if (by_tiles(a.rows, c.part)) {
    of.shape.expert_tile = c.portion;
    of.shape.expert_tiles = a.rows.expert_tiles;
  }
  of.shape.kv_copied = of.shape.tensor_ranks > 1 && arch::kv_replicated(p.arch, of.shape.tensor_ranks);
  of.shape.documents = step.find(Arg::kDocuments) != nullptr;
  of.ring = c.portion >= 0;
  of.step = c.portion;
  return of;
}

}  // namespace molen::program
