// Units: the groups of parameters that are stored, reduced, updated and gathered together (embedding, each layer or
// some layers or half of one, final norm with the head). A unit is one flat run of elements; q|k|v and gate|up lie side
// by side so that each is one matrix.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arch/parameters.h"
#include "base/box.h"
#include "mesh/mesh.h"
#include "program/op.h"
#include "program/pipeline.h"

namespace molen::program {

struct Setting;
struct Program;

struct UnitEntry {
  int parameter = -1;       // index in arch::parameters
  std::int64_t offset = 0;  // elements from the unit's start
  bool operator==(const UnitEntry&) const = default;
};

// A layer is made of two residual blocks: norm_qkv, attention and out_projection; norm_up, activation and down.
enum class Blocks { kBoth, kAttention, kMlp };

struct Unit {
  std::string name;                   // "embed", "layer.3", "layers.4-6", "layer.3.attention", "layer.3.mlp", "final"
  std::int64_t first = -1, end = -1;  // of its layers [first, end), where it is of layers; with which of their blocks
  Blocks blocks = Blocks::kBoth;
  std::int64_t elements = 0;    // with the padding that aligns its matrices; padding is zero and stays zero
  std::int64_t replicated = 0;  // elements at its start that all tensor ranks hold alike
  std::vector<UnitEntry> entries;
  bool operator==(const Unit&) const = default;
  bool of_layers() const { return first >= 0; }
  // Whether it has a block's parameters; `blocks` is one of the two.
  bool has(std::int64_t layer, Blocks block) const {
    return first <= layer && layer < end && (blocks == Blocks::kBoth || blocks == block);
  }
};

// Setting::unit_layers of a unit that is one block of a layer.
inline constexpr std::int64_t kHalfLayer = 0;

// In execution order: embed, those of the layers of each chunk, `unit_layers` at a time (the last of a chunk may have
// fewer), final. `parameters`: those of one of `tensor_ranks` ranks (arch/tensor_parallel.h); where there are more than
// one, what they hold alike comes first in each unit.
std::vector<Unit> make_units(const std::vector<Chunk>& chunks, const std::vector<arch::Parameter>& parameters,
                             int tensor_ranks = 1, std::int64_t unit_layers = 1);

// The element range [first, second) of a unit that rank `rank` of `ranks` owns when its state is sharded. Ranges are
// aligned to 16 elements, tile the unit, and rank 0's is the largest.
std::pair<std::int64_t, std::int64_t> owned_range(std::int64_t elements, int rank, int ranks);

// The element range [first, second) of a unit that `range` names on the rank at `coordinates`:
//   kAll    the whole unit
//   kShard  what the rank keeps of sharded gradients and parameters (over dp_shard); the whole below stage 2
//   kOwn    what the rank keeps of optimizer states: over dp in stage 1; its shard, or under own_over_dp a part of
//   that,
//           in stages 2 and 3; the whole in stage 0
//   kReplicated  what all tensor ranks hold alike
// The rank whose coordinates are all 0 has the largest ranges.
std::pair<std::int64_t, std::int64_t> unit_range(const Setting& setting, const mesh::PerAxis& coordinates,
                                                 const Unit& unit, Range range);

// A partition of the unit over the ranks of dp, within what each of them holds: what each writes to a checkpoint.
std::pair<std::int64_t, std::int64_t> unit_tile(const Setting& setting, const mesh::PerAxis& coordinates,
                                                std::int64_t elements);

// The axes of the mesh along which the ranks of a group differ that talk over `axis`, and how many those are.
mesh::Axes axes_of(Axis axis);
int group_size(const Setting& setting, Axis axis);

// Which of the data-parallel ranks a rank is: ranks that differ elsewhere see the same samples, or parts of them.
int data_rank(const Setting& setting, const mesh::PerAxis& coordinates);

// The tokens [first, second) of piece `chunk` of a micro-batch's rows (Setting::tensor_chunks); of -1, all of them.
// Piece 0 is the largest.
std::pair<std::int64_t, std::int64_t> chunk_rows(const Setting& setting, std::int64_t chunk);

// The rows [first, second) of a piece, counted from its first, whose residual stream the rank keeps under sequence
// parallelism; and to which it adds what must be added once where tensor ranks sum. Where rows are in several pieces it
// has such rows in each, and keeps them one piece after the other: so the piece of all (-1) must be the only one.
std::pair<std::int64_t, std::int64_t> row_range(const Setting& setting, const mesh::PerAxis& coordinates,
                                                std::int64_t chunk = -1);
// All pieces of the rows: 0 to tensor_chunks - 1, or -1 alone where they are whole.
std::vector<std::int64_t> row_chunks(const Setting& setting);
// Where the rows of a piece begin in what the rank keeps, and how many it keeps in all.
std::int64_t first_kept_row(const Setting& setting, const mesh::PerAxis& coordinates, std::int64_t chunk);
std::int64_t kept_rows(const Setting& setting, const mesh::PerAxis& coordinates);

// The elements [first, second) of [from, to) of a unit that count once over all tensor ranks: all of them on the first,
// what is not replicated on the others.
std::pair<std::int64_t, std::int64_t> counted_once(const mesh::PerAxis& coordinates, const Unit& unit,
                                                   std::int64_t from, std::int64_t to);

// A run of elements of a unit as a run of one whole parameter.
struct GlobalRun {
  int parameter = -1;                 // index in arch::parameters
  std::int64_t unit_first = 0;        // in the unit
  std::int64_t first = 0, count = 0;  // in the flattened whole parameter
};
// What [from, to) of a unit is, in order of the unit, on a rank; padding is left out.
std::vector<GlobalRun> global_runs(const Program& program, const mesh::PerAxis& coordinates, int unit,
                                   std::int64_t from, std::int64_t to);

// A box of a whole parameter, whose elements follow each other in a unit. There are at most three of a parameter in any
// [from, to), however many rows it has.
struct GlobalBox {
  int parameter = -1;           // index in arch::parameters
  std::int64_t unit_first = 0;  // in the unit
  Box box;                      // of the whole parameter
};
// What [from, to) of a unit is, as boxes, in order of the unit; padding is left out.
std::vector<GlobalBox> global_boxes(const Program& program, const mesh::PerAxis& coordinates, int unit,
                                    std::int64_t from, std::int64_t to);

}  // namespace molen::program
