#include "program/values/tiles.h"

#include "program/values/of_op.h"

namespace molen::program {

Tile tile_of(const Program& p, const Step& step, const Use& use) {
  if (!in_expert_order(p.buffers[static_cast<std::size_t>(use.buffer)].role)) return {};
  const Rows& rows = step.attributes.rows;
  if (const auto* c = std::get_if<Compute>(&step.op))
    return by_tiles(rows, c->part) ? Tile{c->portion, c->layer} : Tile{};
  const auto* exchange = std::get_if<AllToAll>(&step.op);
  if (!exchange || rows.expert_tiles == 1) return {};
  return {exchange->portion, exchange->layer, (use.arg == Arg::kFrom) != exchange->home()};
}

std::pair<std::int64_t, std::int64_t> experts_of_tile(const Program& p, const Rows& rows, std::int64_t tile) {
  return arch::experts_of_tile(p.arch.sparse_experts().count / p.grid.sizes[mesh::Axis::kEp], tile, rows.expert_tiles);
}

}  // namespace molen::program
