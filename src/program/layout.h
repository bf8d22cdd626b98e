// Units: the groups of parameters that are stored, reduced, updated and gathered together (embedding, each layer, final
// norm with the head). A unit is one flat run of elements; q|k|v and gate|up lie side by side so that each is one
// matrix.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arch/parameters.h"
#include "mesh/mesh.h"
#include "program/op.h"

namespace molen::program {

struct Setting;

struct UnitEntry {
  int parameter = -1;       // index in arch::parameters
  std::int64_t offset = 0;  // elements from the unit's start
  bool operator==(const UnitEntry&) const = default;
};

struct Unit {
  std::string name;  // "embed", "layer.3", "final"
  std::int64_t layer = -1;
  std::int64_t elements = 0;  // with the padding that aligns its matrices; padding is zero and stays zero
  std::vector<UnitEntry> entries;
  bool operator==(const Unit&) const = default;
};

// In execution order: embed, layer.0 .. layer.L-1, final.
std::vector<Unit> make_units(const arch::Architecture& arch, const std::vector<arch::Parameter>& parameters);

// The element range [first, second) of a unit that rank `rank` of `ranks` owns when its state is sharded. Ranges are
// aligned to 16 elements, tile the unit, and rank 0's is the largest.
std::pair<std::int64_t, std::int64_t> owned_range(std::int64_t elements, int rank, int ranks);

// The element range [first, second) of a unit of `elements` that `range` names on the rank at `coordinates`:
//   kAll    the whole unit
//   kShard  what the rank keeps of sharded gradients and parameters (over dp_shard); the whole below stage 2
//   kOwn    what the rank keeps of optimizer states: over dp in stage 1; its shard, or under own_over_dp a part of
//   that,
//           in stages 2 and 3; the whole in stage 0
// The rank whose coordinates are all 0 has the largest ranges.
std::pair<std::int64_t, std::int64_t> unit_range(const Setting& setting, const mesh::PerAxis& coordinates,
                                                 std::int64_t elements, Range range);

// A partition of the unit over the ranks of dp, within what each of them holds: what each writes to a checkpoint.
std::pair<std::int64_t, std::int64_t> unit_tile(const Setting& setting, const mesh::PerAxis& coordinates,
                                                std::int64_t elements);

}  // namespace molen::program
