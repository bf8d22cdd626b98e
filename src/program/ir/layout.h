// Units: groups of parameters that are stored, reduced, updated and gathered together (the embedding; one layer,
// several layers or half a layer; the final norm with the head). A unit is one flat run of elements. q|k|v lie side by
// side, and so do gate|up and the matrices of all experts of a layer, so that each group is one matrix.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arch/parameters.h"
#include "base/box.h"
#include "mesh/mesh.h"
#include "program/ir/op.h"
#include "program/ir/pipeline.h"

namespace molen::program {

struct Setting;
struct Program;

// The ranks that a program is for, and the axes over which the state of a unit is cut: its sharded gradients and
// parameters over `shard`, its optimizer states over `own`, which contains `shard`.
struct Grid {
  mesh::PerAxis sizes = mesh::kOne;
  std::array<mesh::Axis, mesh::kAxes> order = mesh::kDefaultOrder;  // outermost first
  mesh::Axes shard, own;
  int along(mesh::Axes axes) const;  // number of ranks that differ along these axes only
  int ranks() const { return along(mesh::Axes{}.complement()); }
  bool operator==(const Grid&) const = default;
};
Grid grid_of(const Setting& setting);

struct UnitEntry {
  int parameter = -1;       // index in arch::parameters
  std::int64_t offset = 0;  // elements from the unit's start
  // The elements of a parameter that the optimizer updates as a whole, or of a router's bias, so that no rank owns a
  // part of it; 0 of others.
  std::int64_t whole = 0;
  // Of such a parameter, over all tensor ranks; a vector has no columns. 0 of a bias beside an optimizer of elements.
  std::int64_t rows = 0, columns = 0;
  bool operator==(const UnitEntry&) const = default;
};

// A layer consists of two residual blocks: norm_qkv, attention and out_projection; norm_up, activation and down.
enum class Blocks { kBoth, kAttention, kMlp };

struct Unit {
  std::string name;                   // "embed", "layer.3", "layers.4-6", "layer.3.attention", "layer.3.mlp",
                                      // "layer.3.experts", "final"
  std::int64_t first = -1, end = -1;  // its layers are [first, end), for a unit of layers
  Blocks blocks = Blocks::kBoth;
  // Whether the unit has the matrices of a layer's experts, and no other parameters. With several expert ranks they are
  // a unit of their own, because each of these ranks has other experts.
  bool experts = false;
  std::int64_t elements = 0;    // with the padding that aligns its matrices; padding is always zero
  std::int64_t replicated = 0;  // elements at its start that every tensor rank holds in full
  std::vector<UnitEntry> entries;
  bool operator==(const Unit&) const = default;
  bool of_layers() const { return first >= 0; }
  bool has_whole() const;  // whether an entry must not be divided
  // Whether the unit has the parameters of one block of a layer; `block` is kAttention or kMlp.
  bool has(std::int64_t layer, Blocks block) const {
    return first <= layer && layer < end && (blocks == Blocks::kBoth || blocks == block);
  }
};

// The value of Setting::unit_layers for units that are one block of a layer.
inline constexpr std::int64_t kHalfLayer = 0;

// Returns the units in execution order: embed, the units of each chunk's layers, `unit_layers` layers to a unit (the
// last unit of a chunk may have fewer), final. `parameters` are those of one of `tensor_ranks` ranks
// (arch/tensor_parallel.h). With several tensor ranks, each unit begins with the parameters that all of them hold in
// full. With several expert ranks, the experts of each layer are a unit behind that of the layer, with the experts of
// the first of these ranks; the units of the others have the same sizes.
std::vector<Unit> make_units(const std::vector<Chunk>& chunks, const std::vector<arch::Parameter>& parameters,
                             int tensor_ranks = 1, std::int64_t unit_layers = 1, int expert_ranks = 1);

// Returns the axis of the group of ranks that hold a unit, where `axis` is the group for units of all ranks: kDp or
// kShard; of another axis, the axis itself.
Axis axis_for(const Unit& unit, Axis axis);

// Returns the index of the parameter that an entry of a unit is on the rank at `coordinates`: expert ranks have other
// experts than the first.
std::size_t parameter_at(const Program& program, const mesh::PerAxis& coordinates, const UnitEntry& entry);

// Returns the element range [first, second) of a unit that rank `rank` of `ranks` owns when the unit's state is
// sharded and may be cut anywhere. Ranges are aligned to 16 elements and tile the unit; rank 0 has the largest.
std::pair<std::int64_t, std::int64_t> owned_range(std::int64_t elements, int rank, int ranks);

// Returns the element range [first, second) of a unit that `range` names on the rank at `coordinates`:
//   kAll    the whole unit
//   kShard  the rank's part of sharded gradients and parameters (over dp_shard); the whole unit below stage 2
//   kOwn    the rank's part of optimizer states: a part over dp in stage 1; its shard in stages 2 and 3, or a part of
//           that shard under own_over_dp; the whole unit in stage 0
//   kReplicated  the elements that every tensor rank holds in full
// The rank whose coordinates are all 0 has the largest ranges, except of a unit with entries that must not be divided.
// Such a unit is cut between them, so that the largest part is as small as can be.
std::pair<std::int64_t, std::int64_t> unit_range(const Grid& grid, const mesh::PerAxis& coordinates, const Unit& unit,
                                                 Range range);

// Returns the ranges that `range` names on all ranks, each once; or the largest alone, where rank 0 has it.
std::vector<std::pair<std::int64_t, std::int64_t>> unit_ranges(const Grid& grid, const Unit& unit, Range range);

// Partitions the unit over the ranks of dp, within the elements that each rank holds. Each rank writes its tile to a
// checkpoint.
std::pair<std::int64_t, std::int64_t> unit_tile(const Grid& grid, const mesh::PerAxis& coordinates, const Unit& unit);

// Returns how many of the first `at` elements of a unit belong to no entry that must not be divided.
std::int64_t elements_outside_whole(const Unit& unit, std::int64_t at);

// The axes of the mesh along which the ranks of an `axis` group differ, and the size of such a group.
mesh::Axes axes_of(Axis axis);
int group_size(const Grid& grid, Axis axis);

// Returns the number of a rank among the data-parallel ranks. Ranks with the same number see the same samples, or parts
// of them.
int data_rank(const Grid& grid, const mesh::PerAxis& coordinates);

// Returns the tokens [first, second) of piece `chunk` of a micro-batch's rows (Rows::pieces), or all tokens when
// `chunk` is -1. Piece 0 is the largest.
std::pair<std::int64_t, std::int64_t> chunk_rows(const Rows& rows, std::int64_t chunk);

// Returns the rows [first, second) of a piece, counted from the piece's first row, that the rank keeps of the residual
// stream under sequence parallelism. When tensor ranks sum, the rank adds to these rows what must be added only once.
// When rows are in several pieces, a rank has such rows in each and keeps them piece after piece; -1 (all rows) is then
// refused.
std::pair<std::int64_t, std::int64_t> row_range(const Rows& rows, const Grid& grid, const mesh::PerAxis& coordinates,
                                                std::int64_t chunk = -1);
// Returns the pieces of the rows: 0 to Rows::pieces - 1, or only -1 when rows are not cut.
std::vector<std::int64_t> row_chunks(const Rows& rows);
// first_kept_row: where the rows of a piece begin among the rows that the rank keeps. kept_rows: how many it keeps in
// all.
std::int64_t first_kept_row(const Rows& rows, const Grid& grid, const mesh::PerAxis& coordinates, std::int64_t chunk);
std::int64_t kept_rows(const Rows& rows, const Grid& grid, const mesh::PerAxis& coordinates);

// Returns the part of [from, to) of a unit that counts once over all tensor ranks: all of it on the first rank, the
// elements that are not replicated on the others.
std::pair<std::int64_t, std::int64_t> counted_once(const mesh::PerAxis& coordinates, const Unit& unit,
                                                   std::int64_t from, std::int64_t to);
// The same for the squares of gradients, which expert ranks add up. Where each of these ranks has whole gradients,
// experts count on every rank, and the other units on the first.
std::pair<std::int64_t, std::int64_t> squares_once(const Grid& grid, const mesh::PerAxis& coordinates, const Unit& unit,
                                                   std::int64_t from, std::int64_t to);

// A run of consecutive elements of a unit, as a run of one whole parameter.
struct GlobalRun {
  int parameter = -1;                 // index in arch::parameters
  std::int64_t unit_first = 0;        // in the unit
  std::int64_t first = 0, count = 0;  // in the flattened whole parameter
};
// Returns the runs that [from, to) of a unit consists of on a rank, in order of the unit, without padding.
std::vector<GlobalRun> global_runs(const Program& program, const mesh::PerAxis& coordinates, int unit,
                                   std::int64_t from, std::int64_t to);

// A box of a whole parameter whose elements are consecutive in a unit. Any range [from, to) has at most three boxes of
// a parameter, however many rows the parameter has.
struct GlobalBox {
  int parameter = -1;           // index in arch::parameters
  std::int64_t unit_first = 0;  // in the unit
  Box box;                      // of the whole parameter
};
// Returns the boxes that [from, to) of a unit consists of, in order of the unit, without padding.
std::vector<GlobalBox> global_boxes(const Program& program, const mesh::PerAxis& coordinates, int unit,
                                    std::int64_t from, std::int64_t to);

}  // namespace molen::program
