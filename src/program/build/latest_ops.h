// The latest ops that used each place of memory, from which the edges between streams follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "program/ir/slots.h"
#include "program/values/tiles.h"

namespace molen::program {

// The places of memory that ops use, as indices. A place is a slot of a buffer (ir/slots.h). If ops use the rows of a
// buffer tile by tile, each tile of a slot is a place of its own. Tiles of different rows may share bytes all the same
// (values/tiles.h); LatestOps takes care of that.
class Places {
 public:
  using Range = std::pair<std::size_t, std::size_t>;  // [first, second)
  explicit Places(const Program& program);
  // Return the places of an operand: those that the op of an instance uses, and those of all tiles.
  Range of(const Expanded& op, const Use& use) const;
  Range all(const Expanded& op, const Use& use) const;
  std::size_t count() const { return count_; }

 private:
  const Program& p_;
  Slots slots_;
  std::vector<std::size_t> tiles_;  // by buffer
  std::vector<std::size_t> first_;  // by buffer
  std::size_t count_ = 0;
};

// For each place and stream, the latest of the ops so far that read the place, and the latest that changed it.
class LatestOps {
 public:
  // `places` must outlive the object.
  LatestOps(const Program& program, const Places& places);
  // Keeps in `ops`, for each stream, the latest op so far that must have ended before `op` uses its operands.
  void keep_needed(const Expanded& op, OpPerStream& ops);
  void add(const Expanded& op, int index);

 private:
  // When an op uses a tile of other rows than the last op did, it may share bytes with all earlier tiles. From then on,
  // each tile counts as used by the latest op of any tile.
  void join_tiles(const Expanded& op, const Use& use, const Places::Range& all);

  const Program& p_;
  const Places& places_;
  std::vector<OpPerStream> readers_, changers_;            // by place
  std::vector<std::pair<Tile, std::int64_t>> last_tiles_;  // the tile used last, and its micro-batch, by place
};

}  // namespace molen::program
