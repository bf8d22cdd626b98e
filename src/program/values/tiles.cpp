#include "program/values/tiles.h"

#include "program/values/of_op.h"

namespace molen::program {

Tile tile_of(const Program& p, const Step& step, const Use& use) {
  if (!in_expert_order(p.buffers[static_cast<std::size_t>(use.buffer)].role)) return {};
  const Rows& rows = step.attributes.rows;
  if (const auto* c = std::get_if<Compute>(&step.op))
    return by_tiles(rows, c->part) ? Tile{c->chunk, c->layer} : Tile{};
  const auto* exchange = std::get_if<AllToAll>(&step.op);
  return exchange && rows.expert_tiles > 1 ? Tile{exchange->chunk, exchange->layer} : Tile{};
}

}  // namespace molen::program
