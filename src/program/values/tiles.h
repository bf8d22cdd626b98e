// Tiles of the rows that experts get (Rows::expert_tiles).
#pragma once

#include <cstdint>
#include <utility>

#include "program/ir/program.h"

namespace molen::program {

// A tile of the experts of a layer.
struct Tile {
  std::int64_t number = -1, layer = -1;
  bool at_tokens = false;  // the rows are on the rank of their tokens, and not on that of their experts
};

// Returns the tile that an op uses of an operand. The number is -1 if the op uses the whole operand.
Tile tile_of(const Program& program, const Step& step, const Use& use);

// Returns whether two tiles of one micro-batch are tiles of the same rows. If they are, different tiles share no bytes.
// If they are not, they may share bytes: the choices of the routers determine where the rows of a tile begin, and at
// the tokens a tile has one block of rows for each rank, while at the experts it has one block.
inline bool of_same_rows(const Tile& a, const Tile& b) {
  return a.layer == b.layer && a.at_tokens == b.at_tokens;
}

// Returns the experts [first, second) of a rank that belong to a tile, or all of them when `tile` is -1.
std::pair<std::int64_t, std::int64_t> experts_of_tile(const Program& program, const Rows& rows, std::int64_t tile);

}  // namespace molen::program
