// Units: groups of parameters that are stored, reduced, updated and gathered together. A unit is the embedding, one
// layer, several layers, half a layer, the experts of a layer (with several expert ranks), or the final norm with the
// head. Its parameters lie in one contiguous range of
// elements. The matrices q|k|v lie side by side, and so do gate|up and the matrices of all experts of a layer, so that
// a kernel can use each group as one matrix.
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

// The ranks that a program is for, and the axes over which the state of a unit is cut. Sharded gradients and parameters
// are cut over `shard`; optimizer states are cut over `own`, which contains `shard`.
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
  // The number of elements of a parameter that must not be divided between ranks; 0 for other parameters. The optimizer
  // updates such a parameter as a whole, or it is the bias of a router.
  std::int64_t whole = 0;
  // The shape of such a parameter over all tensor ranks. A vector has no columns. Both are 0 for a router's bias when
  // the optimizer updates each element on its own.
  std::int64_t rows = 0, columns = 0;
  bool operator==(const UnitEntry&) const = default;
};

// A layer consists of two residual blocks: norm_qkv, attention and out_projection; norm_up, activation and down.
enum class Sublayer { kBoth, kAttention, kMlp };

struct Unit {
  std::string name;                   // "embed", "layer.3", "layers.4-6", "layer.3.attention", "layer.3.mlp",
                                      // "layer.3.experts", "final"
  std::int64_t first = -1, end = -1;  // a unit of layers has the layers [first, end)
  Sublayer sublayer = Sublayer::kBoth;
  // Whether the unit has the matrices of a layer's experts, and no other parameters. With several expert ranks, the
  // experts are a unit of their own, because each of these ranks has different experts.
  bool experts = false;
  std::int64_t elements = 0;    // includes the padding that aligns its matrices; padding is always zero
  std::int64_t replicated = 0;  // number of elements at the unit's start that every tensor rank holds in full
  std::vector<UnitEntry> entries;
  bool operator==(const Unit&) const = default;
  bool of_layers() const { return first >= 0; }
  bool has_whole() const;  // whether the unit has an entry that must not be divided
  // Whether the unit has the parameters of one sublayer of a layer; `sublayer` is kAttention or kMlp.
  bool has(std::int64_t layer, Sublayer sublayer) const {
    return first <= layer && layer < end && (this->sublayer == Sublayer::kBoth || this->sublayer == sublayer);
  }
};

// The value of Setting::unit_layers for units that are one block of a layer.
inline constexpr std::int64_t kHalfLayer = 0;

// Returns the units in execution order: the embedding, the units of each chunk's layers, and the final unit. A unit has
// `unit_layers` layers; the last unit of a chunk may have fewer. `parameters` are those of one of `tensor_ranks` ranks
// (arch/tensor_parallel.h). With several tensor ranks, each unit begins with the parameters that all of them hold in
// full. With several expert ranks, the experts of each layer are a unit that follows the layer's unit. It has the
// experts of the first expert rank; the expert units of the other ranks have the same sizes.
std::vector<Unit> make_units(const std::vector<Chunk>& chunks, const std::vector<arch::Parameter>& parameters,
                             int tensor_ranks = 1, std::int64_t unit_layers = 1, int expert_ranks = 1);

// Returns the group of ranks over which a unit is reduced or gathered. `axis` names that group for a unit without
// experts. For a unit of experts, kDp and kShard become the groups that leave out the expert ranks; any other axis is
// returned unchanged.
Axis axis_for(const Unit& unit, Axis axis);

// Returns the index of the parameter that an entry of a unit has on the rank at `coordinates`. An entry gives the index
// on the first expert rank, and the other expert ranks have other experts.
std::size_t parameter_at(const Program& program, const mesh::PerAxis& coordinates, const UnitEntry& entry);

// Returns the element range [first, second) of a unit that rank `rank` of `ranks` owns when the unit's state is sharded
// and may be cut anywhere. Ranges are aligned to 16 elements and tile the unit. Rank 0 has the largest range.
std::pair<std::int64_t, std::int64_t> owned_range(std::int64_t elements, int rank, int ranks);

// Returns the element range [first, second) of a unit that `range` names on the rank at `coordinates`:
//   kAll    the whole unit
//   kShard  the rank's part of sharded gradients and parameters (over dp_shard); the whole unit below stage 2
//   kOwn    the rank's part of optimizer states: a part over dp in stage 1; its shard in stages 2 and 3, or a part of
//           that shard under own_over_dp; the whole unit in stage 0
//   kReplicated  the elements that every tensor rank holds in full
// The rank whose coordinates are all 0 has the largest ranges, unless the unit has entries that must not be divided.
// Such a unit is cut between its entries, so that the largest part is as small as possible.
std::pair<std::int64_t, std::int64_t> unit_range(const Grid& grid, const mesh::PerAxis& coordinates, const Unit& unit,
                                                 Range range);

// Returns the ranges that `range` names on all ranks, each once. Returns only the largest range when rank 0 has it.
std::vector<std::pair<std::int64_t, std::int64_t>> unit_ranges(const Grid& grid, const Unit& unit, Range range);

// Returns the range of a unit that the rank writes to a checkpoint. These tiles partition the unit over the ranks of
// dp, and each lies within the elements that its rank holds.
std::pair<std::int64_t, std::int64_t> unit_tile(const Grid& grid, const mesh::PerAxis& coordinates, const Unit& unit);

// Returns how many of the first `at` elements of a unit belong to no entry that must not be divided.
std::int64_t elements_outside_whole(const Unit& unit, std::int64_t at);

// axes_of returns the axes of the mesh along which the ranks of an `axis` group differ; the next function returns the
// size of such a group.
mesh::Axes axes_of(Axis axis);
int group_size(const Grid& grid, Axis axis);

// Returns the axes for which the ranks of a program open a communicator. The stages of a pipeline communicate along
// different axes, but all ranks must open the same communicators.
std::vector<Axis> communicator_axes(const Program& p);

// Returns the number of a rank among the data-parallel ranks. Ranks with the same number see the same samples, or parts
// of the same samples.
int data_rank(const Grid& grid, const mesh::PerAxis& coordinates);

// Returns the tokens [first, second) of piece `chunk` of a micro-batch's rows (Rows::pieces), or all tokens when
// `chunk` is -1. Piece 0 is the largest.
std::pair<std::int64_t, std::int64_t> rows_of_piece(const Rows& rows, std::int64_t chunk);

// Returns the rows [first, second) of a piece that the rank keeps of the residual stream under sequence parallelism,
// counted from the first row of the piece. When tensor ranks sum, the rank adds to these rows the values that must be
// added only once. When rows are cut into several pieces, the rank keeps such a range of each piece, one after another,
// and `chunk` must not be -1 (all rows).
std::pair<std::int64_t, std::int64_t> row_range(const Rows& rows, const Grid& grid, const mesh::PerAxis& coordinates,
                                                std::int64_t chunk = -1);
// Returns the pieces of the rows: 0 to Rows::pieces - 1, or only -1 when rows are not cut.
std::vector<std::int64_t> pieces_of_rows(const Rows& rows);
// first_kept_row returns the position at which the rows of a piece begin among the rows that the rank keeps. kept_rows
// returns the number of rows that the rank keeps in all.
std::int64_t first_kept_row(const Rows& rows, const Grid& grid, const mesh::PerAxis& coordinates, std::int64_t chunk);
std::int64_t kept_rows(const Rows& rows, const Grid& grid, const mesh::PerAxis& coordinates);

// Returns the part of [from, to) of a unit that this rank counts, so that each element counts once over all tensor
// ranks. The first tensor rank counts all elements, and the other ranks count the elements that are not replicated.
std::pair<std::int64_t, std::int64_t> counted_once(const mesh::PerAxis& coordinates, const Unit& unit,
                                                   std::int64_t from, std::int64_t to);
// Returns the same range for the squares of gradients, which expert ranks add up. When each expert rank has whole
// gradients, every rank counts the experts, and only the first counts the other units.
std::pair<std::int64_t, std::int64_t> squares_once(const Grid& grid, const mesh::PerAxis& coordinates, const Unit& unit,
                                                   std::int64_t from, std::int64_t to);

// A run of consecutive elements of a unit that are also consecutive in one whole parameter.
struct GlobalRun {
  int parameter = -1;                 // index in arch::parameters
  std::int64_t unit_first = 0;        // position in the unit
  std::int64_t first = 0, count = 0;  // in the flattened whole parameter
};
// Returns the runs that make up [from, to) of a unit on a rank, in the order of the unit and without padding.
std::vector<GlobalRun> global_runs(const Program& program, const mesh::PerAxis& coordinates, int unit,
                                   std::int64_t from, std::int64_t to);

// A box of a whole parameter whose elements are consecutive in a unit. A range [from, to) covers a parameter with at
// most three boxes, however many rows the parameter has.
struct GlobalBox {
  int parameter = -1;           // index in arch::parameters
  std::int64_t unit_first = 0;  // position in the unit
  Box box;                      // in the whole parameter
};
// Returns the boxes that make up [from, to) of a unit, in the order of the unit and without padding.
std::vector<GlobalBox> global_boxes(const Program& program, const mesh::PerAxis& coordinates, int unit,
                                    std::int64_t from, std::int64_t to);

}  // namespace molen::program
