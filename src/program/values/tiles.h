// Tiles of the rows that experts get (Rows::expert_tiles).
#pragma once

#include <cstdint>

#include "program/ir/program.h"

namespace molen::program {

// A tile of the experts of a layer. Two tiles of one layer and micro-batch never share bytes of a buffer. Tiles of
// different layers or micro-batches may, because the choices of the routers determine where the rows of a tile begin.
struct Tile {
  std::int64_t number = -1, layer = -1;
  bool operator==(const Tile&) const = default;
};

// Returns the tile that an op uses of an operand. The number is -1 if the op uses the whole operand.
Tile tile_of(const Program& program, const Step& step, const Use& use);

}  // namespace molen::program
