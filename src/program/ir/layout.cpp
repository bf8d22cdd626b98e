#include "program/ir/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "arch/tensor_parallel.h"
#include "base/error.h"
#include "program/ir/program.h"

namespace molen::program {
namespace {

constexpr std::int64_t kAlign = 16;  // in elements; 64 bytes in fp32

// Whether a parameter continues the matrix or vector of the parameter placed before it.
bool continues(const arch::Parameter& placed, const arch::Parameter& next) {
  using arch::Role;
  const Role before = placed.role, role = next.role;
  if (placed.layer != next.layer) return false;
  const auto gate_or_up = [](Role r) { return r == Role::kExpertGate || r == Role::kExpertUp; };
  return (before == Role::kQuery && role == Role::kKey) || (before == Role::kKey && role == Role::kValue) ||
         (before == Role::kQueryBias && role == Role::kKeyBias) ||
         (before == Role::kKeyBias && role == Role::kValueBias) || (before == Role::kGate && role == Role::kUp) ||
         (before == Role::kSharedGate && role == Role::kSharedUp) || (gate_or_up(before) && gate_or_up(role)) ||
         (before == Role::kExpertDown && role == Role::kExpertDown);
}

Sublayer block_of(arch::Role role) {
  using arch::Role;
  switch (role) {
    case Role::kMlpNorm:
    case Role::kMlpNormBias:
    case Role::kGate:
    case Role::kUp:
    case Role::kUpBias:
    case Role::kDown:
    case Role::kDownBias:
    case Role::kRouter:
    case Role::kRouterBias:
    case Role::kExpertGate:
    case Role::kExpertUp:
    case Role::kExpertDown:
    case Role::kSharedGate:
    case Role::kSharedUp:
    case Role::kSharedDown:
      return Sublayer::kMlp;
    default:
      return Sublayer::kAttention;
  }
}

// Appends the units of a chunk's layers. With `apart`, the experts of each layer are a unit of their own.
void add_layers(const Chunk& chunk, std::int64_t unit_layers, bool apart, std::vector<Unit>& units) {
  const auto add = [&](std::string name, std::int64_t first, std::int64_t end, Sublayer sublayer) {
    Unit unit;
    unit.name = std::move(name);
    unit.first = first;
    unit.end = end;
    unit.sublayer = sublayer;
    units.push_back(std::move(unit));
  };
  const auto add_experts = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t l = first; l < end && apart; ++l) {
      add(fmt::format("layer.{}.experts", l), l, l + 1, Sublayer::kMlp);
      units.back().experts = true;
    }
  };
  for (std::int64_t l = chunk.first; l < chunk.end; l += std::max<std::int64_t>(1, unit_layers)) {
    const std::int64_t end = std::min(l + std::max<std::int64_t>(1, unit_layers), chunk.end);
    const std::string layer = "layer." + std::to_string(l);
    if (unit_layers == kHalfLayer) {
      add(layer + ".attention", l, end, Sublayer::kAttention);
      add(layer + ".mlp", l, end, Sublayer::kMlp);
    } else {
      add(end == l + 1 ? layer : fmt::format("layers.{}-{}", l, end - 1), l, end, Sublayer::kBoth);
    }
    add_experts(l, end);
  }
}

std::int64_t align(std::int64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

std::vector<Unit> make_units(const std::vector<Chunk>& chunks, const std::vector<arch::Parameter>& parameters,
                             int tensor_ranks, std::int64_t unit_layers, int expert_ranks) {
  std::vector<Unit> units(1);
  units.front().name = "embed";
  const bool apart = expert_ranks > 1;
  for (const Chunk& chunk : chunks) add_layers(chunk, unit_layers, apart, units);
  const std::int64_t experts = 1 + std::ranges::max(parameters, {}, &arch::Parameter::expert).expert;
  units.emplace_back().name = "final";
  const auto unit_of = [&](const arch::Parameter& p) -> Unit* {
    if (p.layer < 0)
      return p.role == arch::Role::kEmbedding || p.role == arch::Role::kPositions ? &units.front() : &units.back();
    const auto found = std::find_if(units.begin(), units.end(), [&](const Unit& unit) {
      return unit.has(p.layer, block_of(p.role)) && unit.experts == (apart && p.expert >= 0);
    });
    return found == units.end() ? nullptr : &*found;  // nullptr: the unit is on another stage
  };
  const auto place = [&](std::size_t i) {
    const arch::Parameter& p = parameters[i];
    Unit* unit = unit_of(p);
    if (!unit || p.expert >= std::max<std::int64_t>(1, experts / expert_ranks)) return;  // on another stage or rank
    const bool fused =
        !unit->entries.empty() && continues(parameters[static_cast<std::size_t>(unit->entries.back().parameter)], p);
    if (!fused) unit->elements = align(unit->elements);
    unit->entries.push_back({static_cast<int>(i), unit->elements});
    unit->elements += p.elements();
  };
  if (tensor_ranks > 1) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].shard == arch::ShardDim::kNone) place(i);
    for (Unit& u : units) u.replicated = u.elements = align(u.elements);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (tensor_ranks == 1 || parameters[i].shard != arch::ShardDim::kNone) place(i);
  for (auto& u : units) u.elements = align(u.elements);
  // In a tied model whose final norm has no parameters, the last unit is empty.
  std::erase_if(units, [](const Unit& u) { return u.entries.empty(); });
  return units;
}

std::pair<std::int64_t, std::int64_t> owned_range(std::int64_t elements, int rank, int ranks) {
  MOLEN_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  const std::int64_t blocks = align(elements) / kAlign;
  const std::int64_t base = blocks / ranks, extra = blocks % ranks;
  const std::int64_t first = rank * base + std::min<std::int64_t>(rank, extra);
  const std::int64_t last = first + base + (rank < extra ? 1 : 0);
  return {std::min(first * kAlign, elements), std::min(last * kAlign, elements)};
}

namespace {

using Bounds = std::pair<std::int64_t, std::int64_t>;

// Returns the number of a rank among the ranks that differ from it only along `axes`. It is the rank's number in their
// communicator.
int position(const Grid& grid, const mesh::PerAxis& at, mesh::Axes axes) {
  int position = 0;
  for (const mesh::Axis axis : grid.order)
    if (axes.contains(axis)) position = position * grid.sizes[axis] + at[axis];
  return position;
}

// Returns the end of the part of [from, last) that begins at `from` and has at most `room` elements.
std::int64_t end_of_part(const Unit& unit, std::int64_t from, std::int64_t last, std::int64_t room) {
  if (last - from <= room) return last;
  std::int64_t end = (from + room) / kAlign * kAlign;
  for (const UnitEntry& entry : unit.entries)
    if (entry.offset < end && end < entry.offset + entry.whole) end = entry.offset;
  return std::max(from, end);
}

// Cuts a range into consecutive parts without dividing an entry that must stay whole. Each part but the last is filled
// up to a common maximum, which is as small as possible.
std::vector<Bounds> parts_of(const Unit& unit, Bounds range, int ranks) {
  const auto fill = [&](std::int64_t room) {
    std::vector<Bounds> parts;
    for (std::int64_t from = range.first; static_cast<int>(parts.size()) < ranks; from = parts.back().second)
      parts.emplace_back(from, end_of_part(unit, from, range.second, room));
    return parts;
  };
  std::int64_t low = (range.second - range.first + ranks - 1) / ranks, high = range.second - range.first;
  while (low < high) {
    const std::int64_t room = low + (high - low) / 2;
    if (fill(room).back().second == range.second)
      high = room;
    else
      low = room + 1;
  }
  return fill(high);
}

// Returns the part of a unit's range that the rank has when the range is cut over the ranks along `axes`.
Bounds cut(const Grid& grid, const mesh::PerAxis& at, mesh::Axes axes, const Unit& unit, Bounds range) {
  if (unit.experts) axes = axes.without(mesh::Axis::kEp);
  const int rank = position(grid, at, axes), ranks = grid.along(axes);
  if (unit.has_whole()) return parts_of(unit, range, ranks).at(static_cast<std::size_t>(rank));
  const auto [first, last] = owned_range(range.second - range.first, rank, ranks);
  return {range.first + first, range.first + last};
}

}  // namespace

int Grid::along(mesh::Axes axes) const {
  int ranks = 1;
  for (const mesh::Axis axis : mesh::kDefaultOrder)
    if (axes.contains(axis)) ranks *= sizes[axis];
  return ranks;
}

Grid grid_of(const Setting& s) {
  Grid grid{s.mesh, s.order, {}, {}};
  if (s.zero >= 2) grid.shard = mesh::kShards;
  if (s.zero >= 1) grid.own = s.zero == 1 || s.own_over_dp ? mesh::kReplicas : mesh::kShards;
  return grid;
}

bool Unit::has_whole() const {
  return std::any_of(entries.begin(), entries.end(), [](const UnitEntry& entry) { return entry.whole > 0; });
}

// In stage 1 a rank saves the elements whose optimizer state it owns, so its tile follows its number in dp. From stage
// 2 on the tiles lie within the shards.
Bounds unit_tile(const Grid& grid, const mesh::PerAxis& at, const Unit& unit) {
  const Bounds shard = cut(grid, at, grid.shard, unit, {0, unit.elements});
  return cut(grid, at, mesh::kReplicas.without(grid.shard), unit, shard);
}

Bounds unit_range(const Grid& grid, const mesh::PerAxis& at, const Unit& unit, Range range) {
  if (range == Range::kReplicated) return {0, unit.replicated};
  Bounds held{0, unit.elements};
  if (range == Range::kAll) return held;
  held = cut(grid, at, grid.shard, unit, held);
  return range == Range::kOwn ? cut(grid, at, grid.own.without(grid.shard), unit, held) : held;
}

std::vector<Bounds> unit_ranges(const Grid& grid, const Unit& unit, Range range) {
  if (!unit.has_whole() || range == Range::kAll || range == Range::kReplicated)
    return {unit_range(grid, {}, unit, range)};
  const mesh::Axes apart = unit.experts ? mesh::Axes{mesh::Axis::kEp} : mesh::Axes{};
  std::vector<Bounds> shards = parts_of(unit, {0, unit.elements}, grid.along(grid.shard.without(apart)));
  if (range == Range::kShard) return shards;
  std::vector<Bounds> owned;
  for (const Bounds& shard : shards)
    for (const Bounds& part : parts_of(unit, shard, grid.along(grid.own.without(grid.shard).without(apart))))
      owned.push_back(part);
  return owned;
}

std::int64_t elements_outside_whole(const Unit& unit, std::int64_t at) {
  std::int64_t outside = at;
  for (const UnitEntry& entry : unit.entries) outside -= std::clamp<std::int64_t>(at - entry.offset, 0, entry.whole);
  return outside;
}

mesh::Axes axes_of(Axis axis) {
  switch (axis) {
    case Axis::kDp:
      return mesh::kReplicas;
    case Axis::kShard:
      return mesh::kShards;
    case Axis::kReplicate:
      return mesh::Axis::kDpReplicate;
    case Axis::kTp:
      return mesh::Axis::kTp;
    case Axis::kWorld:
      return mesh::Axes{}.complement();
    case Axis::kPp:
    case Axis::kEmbedding:
      return mesh::Axis::kPp;
    case Axis::kCp:
      return mesh::Axis::kCp;
    case Axis::kEp:
      return mesh::Axis::kEp;
    case Axis::kExpertDp:
      return mesh::kReplicas.without(mesh::Axis::kEp);
    case Axis::kExpertShard:
      return mesh::kShards.without(mesh::Axis::kEp);
  }
  throw Error("unknown axis {}", static_cast<int>(axis));
}

int group_size(const Grid& grid, Axis axis) {
  const int ranks = grid.along(axes_of(axis));
  return axis == Axis::kEmbedding ? std::min(2, ranks) : ranks;
}

std::vector<Axis> communicator_axes(const Program& p) {
  std::array<bool, kAllAxes.size()> used{};
  if (p.grid.sizes[mesh::Axis::kPp] > 1) {
    used.fill(true);
    used[static_cast<std::size_t>(Axis::kWorld)] = false;
  } else {
    for (const auto& body : p.bodies)
      for (const auto& step : body.steps)
        if (const auto axis = axis_of(step.op)) used[static_cast<std::size_t>(*axis)] = true;
  }
  std::vector<Axis> axes;
  for (const Axis axis : kAllAxes)
    if (used[static_cast<std::size_t>(axis)]) axes.push_back(axis);
  return axes;
}

int data_rank(const Grid& grid, const mesh::PerAxis& at) {
  return position(grid, at, mesh::kDataParallel);
}

Bounds rows_of_piece(const Rows& rows, std::int64_t chunk) {
  if (chunk < 0) return {0, rows.count()};
  return arch::even_range(rows.count(), static_cast<int>(chunk), static_cast<int>(rows.pieces));
}

Bounds row_range(const Rows& rows, const Grid& grid, const mesh::PerAxis& at, std::int64_t chunk) {
  MOLEN_CHECK(chunk >= 0 || !rows.in_pieces(), "rows in {} pieces lie in no range of all", rows.pieces);
  const auto [first, last] = rows_of_piece(rows, chunk);
  return arch::even_range(last - first, at[mesh::Axis::kTp], grid.sizes[mesh::Axis::kTp]);
}

std::vector<std::int64_t> pieces_of_rows(const Rows& rows) {
  if (!rows.in_pieces()) return {-1};
  std::vector<std::int64_t> chunks(static_cast<std::size_t>(rows.pieces));
  std::iota(chunks.begin(), chunks.end(), 0);
  return chunks;
}

std::int64_t first_kept_row(const Rows& rows, const Grid& grid, const mesh::PerAxis& at, std::int64_t chunk) {
  std::int64_t kept = 0;
  for (std::int64_t c = 0; c < chunk; ++c) {
    const auto [first, last] = row_range(rows, grid, at, c);
    kept += last - first;
  }
  return kept;
}

std::int64_t kept_rows(const Rows& rows, const Grid& grid, const mesh::PerAxis& at) {
  if (!rows.sharded) return rows.count();
  const std::int64_t final_chunk = pieces_of_rows(rows).back();
  const auto [first, last] = row_range(rows, grid, at, final_chunk);
  return first_kept_row(rows, grid, at, final_chunk) + last - first;
}

Bounds counted_once(const mesh::PerAxis& at, const Unit& unit, std::int64_t from, std::int64_t to) {
  if (at[mesh::Axis::kTp] == 0) return {from, to};
  return {std::clamp(unit.replicated, from, to), to};
}

Bounds squares_once(const Grid& grid, const mesh::PerAxis& at, const Unit& unit, std::int64_t from, std::int64_t to) {
  const bool whole = !unit.experts && !grid.own.contains(mesh::Axis::kEp);
  return whole && at[mesh::Axis::kEp] > 0 ? Bounds{to, to} : counted_once(at, unit, from, to);
}

Axis axis_for(const Unit& unit, Axis axis) {
  if (!unit.experts) return axis;
  return axis == Axis::kDp ? Axis::kExpertDp : axis == Axis::kShard ? Axis::kExpertShard : axis;
}

std::size_t parameter_at(const Program& p, const mesh::PerAxis& at, const UnitEntry& entry) {
  const auto index = static_cast<std::size_t>(entry.parameter);
  const arch::Parameter& first = p.parameters.at(index);
  const auto rank = static_cast<std::size_t>(at[mesh::Axis::kEp]);
  if (first.expert < 0 || rank == 0) return index;
  // Parameters are in order of experts. The gate and up matrices of the experts alternate; the down matrices follow
  // each other directly.
  const std::size_t distance = p.parameters.at(index + 1).role == first.role ? 1 : 2;
  return index +
         distance * rank * static_cast<std::size_t>(p.arch.sparse_experts().count / p.grid.sizes[mesh::Axis::kEp]);
}

std::vector<GlobalRun> global_runs(const Program& p, const mesh::PerAxis& at, int unit, std::int64_t from,
                                   std::int64_t to) {
  const int ranks = p.grid.sizes[mesh::Axis::kTp], rank = at[mesh::Axis::kTp];
  const std::vector<arch::Parameter> whole = arch::parameters(p.arch);
  std::vector<GlobalRun> runs;
  for (const UnitEntry& entry : p.units.at(static_cast<std::size_t>(unit)).entries) {
    const std::size_t index = parameter_at(p, at, entry);
    const arch::Block b = arch::block_of(whole[index], p.parameters[index], rank, ranks);
    // Whole rows are consecutive both in the unit and in the whole parameter. Any other block needs one run for each
    // row.
    const bool flat = b.columns == b.all_columns;
    const std::int64_t length = flat ? b.rows * b.columns : b.columns, count = flat ? 1 : b.rows;
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t begin = entry.offset + r * length;
      const std::int64_t first = std::max(from, begin), last = std::min(to, begin + length);
      if (first < last)
        runs.push_back({static_cast<int>(index), first,
                        (b.first_row + r) * b.all_columns + b.first_column + (first - begin), last - first});
    }
  }
  return runs;
}

std::vector<GlobalBox> global_boxes(const Program& p, const mesh::PerAxis& at, int unit, std::int64_t from,
                                    std::int64_t to) {
  const int ranks = p.grid.sizes[mesh::Axis::kTp], rank = at[mesh::Axis::kTp];
  const std::vector<arch::Parameter> whole = arch::parameters(p.arch);
  std::vector<GlobalBox> boxes;
  for (const UnitEntry& entry : p.units.at(static_cast<std::size_t>(unit)).entries) {
    const std::size_t index = parameter_at(p, at, entry);
    const arch::Block b = arch::block_of(whole[index], p.parameters[index], rank, ranks);
    Box held{{b.first_row, b.first_column}, {b.rows, b.columns}};
    held.offsets.resize(whole[index].shape.size());
    held.sizes.resize(whole[index].shape.size());
    const std::int64_t first = std::max(from, entry.offset), last = std::min(to, entry.offset + held.elements());
    if (first >= last) continue;
    std::int64_t place = first;
    for (Box& box : boxes_of_run(held, first - entry.offset, last - first)) {
      const std::int64_t count = box.elements();
      boxes.push_back({static_cast<int>(index), place, std::move(box)});
      place += count;
    }
  }
  return boxes;
}

}  // namespace molen::program
