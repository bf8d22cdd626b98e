#include "launch/checkpointing.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "arch/parameters.h"
#include "base/error.h"
#include "launch/group_reader.h"
#include "launch/throw_on_all_ranks.h"
#include "program/values/optimizer.h"
#include "program/values/value_memory.h"

namespace molen::launch {
namespace {

DType dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kHalf:
      return DType::kF16;
    default:
      throw Error("state of an unexpected type");
  }
}

constexpr std::int64_t kPiece = 1 << 20;  // elements that one collective moves

// Returns the part [first, last) of a unit that this rank alone writes to a checkpoint and reads from one. Other ranks
// also hold everything else that it holds, and send it.
std::pair<std::int64_t, std::int64_t> tile_of(const exec::Executor& executor, int unit) {
  const auto& p = executor.program();
  return program::unit_tile(p.grid, executor.coordinates(), p.units[static_cast<std::size_t>(unit)]);
}

// Returns how many elements of a unit's state come before element `at` of the unit.
std::int64_t place_in(const exec::Executor& executor, const std::string& storage, int unit, std::int64_t at) {
  const auto& p = executor.program();
  const auto value = program::value_named(storage);
  MOLEN_CHECK(value.has_value(), "no value '{}'", storage);
  return program::elements_before(p, *value, p.units[static_cast<std::size_t>(unit)], at);
}

// Returns the view of elements [first, last) of a unit's state in this rank's storage.
at::Tensor held_part(const exec::Executor& executor, const std::string& storage, int unit, std::int64_t first,
                     std::int64_t last) {
  const auto [held_first, held_last] = executor.state_range(storage, unit);
  MOLEN_CHECK(held_first <= first && last <= held_last, "state [{}, {}) asked for [{}, {})", held_first, held_last,
              first, last);
  const auto place = [&](std::int64_t at) { return place_in(executor, storage, unit, at); };
  return executor.state(storage, unit).narrow(0, place(first) - place(held_first), place(last) - place(first));
}

int index_of(const program::Program& p, const mesh::PerAxis& at, const program::UnitEntry& entry) {
  return static_cast<int>(program::parameter_at(p, at, entry));
}

const program::UnitEntry& entry_of(const program::Program& p, const mesh::PerAxis& at, const program::Unit& unit,
                                   int parameter) {
  const auto found = std::find_if(unit.entries.begin(), unit.entries.end(),
                                  [&](const program::UnitEntry& entry) { return index_of(p, at, entry) == parameter; });
  MOLEN_CHECK(found != unit.entries.end(), "unit {} has no parameter {}", unit.name, parameter);
  return *found;
}

// Returns the boxes of a family's tensors that hold the elements [first, last) of a unit.
std::vector<SavedBox> boxes_of(const program::Program& p, const mesh::PerAxis& at, const SavedFamily& family, int u,
                               std::int64_t first, std::int64_t last) {
  const program::Unit& unit = p.units[static_cast<std::size_t>(u)];
  std::vector<SavedBox> boxes;
  if (family.state && family.state->has_shape()) {
    for (const program::UnitEntry& entry : unit.entries) {
      const std::int64_t end = entry.offset + entry.whole;
      const std::vector<std::int64_t> shape = family.state->shape(entry.rows, entry.columns);
      if (first <= entry.offset && end <= last && !shape.empty())
        boxes.push_back({u, {index_of(p, at, entry), entry.offset, whole_box(shape)}, end});
    }
    return boxes;
  }
  for (auto& box : program::global_boxes(p, at, u, first, last)) {
    if (family.of() == program::StateOf::kRest && entry_of(p, at, unit, box.parameter).whole > 0) continue;
    const std::int64_t end = box.unit_first + box.box.elements();
    boxes.push_back({u, std::move(box), end});
  }
  return boxes;
}

// Copies elements of a checkpoint into the storages that hold the box `needed`.
void store_piece(const GroupReader::Piece& piece, const SavedBox& needed, exec::Executor& executor,
                 const std::vector<std::string>& storages) {
  const Box &part = piece.part, &held = piece.held, &box = needed.box.box;
  std::vector<std::int64_t> strides(held.sizes.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * held.sizes[d];
  const char* at = static_cast<const char*>(piece.data) + position_in(held, part) * size_of(piece.dtype);
  const at::Tensor source = at::from_blob(const_cast<char*>(at), part.sizes, strides, exec::to_aten(piece.dtype));
  for (const std::string& storage : storages) {
    at::Tensor values =
        held_part(executor, storage, needed.unit, needed.box.unit_first, needed.unit_end).view(box.sizes);
    for (std::size_t d = 0; d < part.sizes.size(); ++d)
      values = values.narrow(static_cast<std::int64_t>(d), part.offsets[d] - box.offsets[d], part.sizes[d]);
    values.copy_(source);
  }
}

// Reads this rank's tiles of all units, for families whose tensors have the same boxes. If the weights are among
// `families`, they come first and go into the storages `weights`: the parameters and their master copies. Collective
// over the ranks of the stage, as GroupReader::read is.
void read_tiles(const checkpoint::Checkpoint& from, exec::Executor& executor, const std::vector<SavedFamily>& families,
                program::StateOf of, const std::vector<std::string>& weights, comm::Communicator& stage) {
  const auto& program = executor.program();
  std::vector<std::string> prefixes;
  std::vector<std::vector<std::string>> storages;
  const SavedFamily* one = nullptr;
  for (const SavedFamily& family : families) {
    if (family.of() != of) continue;
    one = &family;
    prefixes.push_back(family.prefix);
    storages.push_back(family.prefix.empty() ? weights : std::vector{family.storage});
  }
  if (!one) return;
  std::vector<arch::Parameter> tensors = arch::parameters(program.arch);
  for (arch::Parameter& parameter : tensors) parameter.shape = one->shape(parameter);
  GroupReader reader(from, std::move(tensors), prefixes, stage);
  for (int u = 0; u < static_cast<int>(program.units.size()); ++u) {
    if (!program.counts(u)) continue;  // the first pipeline stage reads it
    const auto [first, last] = tile_of(executor, u);
    const std::vector<SavedBox> needed = boxes_of(program, executor.coordinates(), *one, u, first, last);
    std::vector<program::GlobalBox> boxes;
    for (const SavedBox& box : needed) boxes.push_back(box.box);
    const auto take = [&](const GroupReader::Piece& piece) {
      store_piece(piece, needed[piece.i], executor, storages[piece.prefix]);
    };
    if (!reader.read(boxes, take)) return;  // the rank that failed reports why
  }
}

// Returns a communicator of the ranks that differ from this one only along the given axes of the mesh.
std::unique_ptr<comm::Communicator> along(const exec::Executor& executor, comm::Communicator& world, mesh::Axes axes) {
  const program::Setting& s = executor.program().setting;
  int color = 0, key = 0;
  for (const mesh::Axis axis : s.order) {
    int& number = axes.contains(axis) ? key : color;
    number = number * s.mesh[axis] + executor.coordinates()[axis];
  }
  return world.split(color, key);
}

// Sends an embedding that the first and the last pipeline stage share, from the first to the last, a tile at a time.
// Collective.
void share_between_ends(exec::Executor& executor, const std::vector<std::string>& storages, comm::Communicator& world) {
  const program::Program& p = executor.program();
  std::int32_t shared = 0;
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) shared |= p.shared_by_ends(u) ? 1 : 0;
  const std::int32_t mine = shared;
  world.all_reduce(&shared, 1, DType::kI32, comm::Reduce::kMax);
  if (shared == 0) return;
  // Pairs the ranks that have the same place in the two stages. The ranks of the stages between form a group that has
  // nothing to do.
  const program::Setting& s = p.setting;
  int place = 0;
  for (const mesh::Axis axis : s.order)
    if (axis != mesh::Axis::kPp) place = place * s.mesh[axis] + executor.coordinates()[axis];
  const auto ends = world.split(2 * place + mine, executor.coordinates()[mesh::Axis::kPp]);
  if (mine == 0) return;
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
    if (!p.shared_by_ends(u)) continue;
    const auto [first, last] = tile_of(executor, u);
    for (const std::string& storage : storages)
      for (std::int64_t at = first; at < last; at += kPiece) {
        const std::int64_t n = std::min(kPiece, last - at);
        at::Tensor values = held_part(executor, storage, u, at, at + n);
        if (values.numel() == 0) continue;
        at::Tensor host = values.to(at::kCPU);
        ends->broadcast(host.data_ptr(), host.numel(), dtype_of(host), 0);
        if (!values.device().is_cpu()) values.copy_(host);
      }
  }
}

// Sends every rank's tile to all ranks of the group, which hold the same elements of the unit. Collective over the
// group.
void exchange_tiles(exec::Executor& executor, const std::string& storage, int unit, comm::Communicator& group) {
  const auto tile = tile_of(executor, unit);
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(group.size()) * 2, 0);
  bounds[static_cast<std::size_t>(group.rank()) * 2] = tile.first;
  bounds[static_cast<std::size_t>(group.rank()) * 2 + 1] = tile.second;
  group.all_reduce(bounds.data(), static_cast<std::int64_t>(bounds.size()), DType::kI64, comm::Reduce::kMax);
  std::int64_t elements = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::int64_t first = bounds[static_cast<std::size_t>(rank) * 2],
                       last = bounds[static_cast<std::size_t>(rank) * 2 + 1];
    elements += place_in(executor, storage, unit, last) - place_in(executor, storage, unit, first);
    for (std::int64_t at = first; at < last; at += kPiece) {
      const std::int64_t n = std::min(kPiece, last - at);
      at::Tensor values = held_part(executor, storage, unit, at, at + n);
      if (values.numel() == 0) continue;
      at::Tensor host = values.to(at::kCPU);
      group.broadcast(host.data_ptr(), host.numel(), dtype_of(host), rank);
      if (!values.device().is_cpu()) values.copy_(host);
    }
  }
  const std::int64_t held = executor.state(storage, unit).numel();
  MOLEN_CHECK(elements == held, "tiles of unit {} have {} of {} elements", unit, elements, held);
}

// Fills what this rank holds beyond its tile, with the tiles of the ranks that hold the same elements. When ranks hold
// a whole unit, these are all data-parallel ranks (`all`) or, for a unit of experts, those with the same experts
// (`of_experts`). Otherwise they are the ranks that hold the same shard (`copies`). Collective.
void share_tiles(exec::Executor& executor, const std::string& storage, comm::Communicator& all,
                 comm::Communicator& of_experts, comm::Communicator& copies) {
  for (int u = 0; u < static_cast<int>(executor.program().units.size()); ++u) {
    comm::Communicator& replicas = executor.program().units[static_cast<std::size_t>(u)].experts ? of_experts : all;
    const auto tile = tile_of(executor, u), held = executor.state_range(storage, u);
    const std::int64_t elements = executor.program().units[static_cast<std::size_t>(u)].elements;
    // The ranks decide together, because a single rank's tile may happen to be everything that it holds.
    std::int32_t lacking[2] = {held != tile ? 1 : 0, held.first != 0 || held.second != elements ? 1 : 0};
    replicas.all_reduce(lacking, 2, DType::kI32, comm::Reduce::kMax);
    if (lacking[0]) exchange_tiles(executor, storage, u, lacking[1] ? copies : replicas);
  }
}

}  // namespace

std::vector<std::int64_t> SavedFamily::shape(const arch::Parameter& parameter) const {
  const std::vector<std::int64_t>& of = parameter.shape;
  return state && state->has_shape() ? state->shape(of.at(0), of.size() > 1 ? of[1] : 0) : of;
}

std::vector<SavedFamily> saved_families(const program::Program& p) {
  std::vector<SavedFamily> families{{"", p.setting.has_master() ? "master" : "param"}};
  for (const program::OptimizerState& state : program::optimizer_named(p.setting.optimizer).states) {
    const std::string name(name_of(state.value));
    families.push_back({"optimizer." + name + "/", name, &state});
  }
  return families;
}

std::vector<SavedBox> saved_boxes(const program::Program& p, const mesh::PerAxis& coordinates,
                                  const SavedFamily& family) {
  std::vector<SavedBox> boxes;
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
    if (!p.counts(u)) continue;
    const program::Unit& unit = p.units[static_cast<std::size_t>(u)];
    const auto [tile, tile_end] = program::unit_tile(p.grid, coordinates, unit);
    // A state with a shape of its own is not cut over tensor ranks: each has the whole.
    const bool whole = family.state && family.state->has_shape();
    if (whole && coordinates[mesh::Axis::kTp] > 0) continue;
    const auto [first, last] = program::counted_once(coordinates, unit, tile, tile_end);
    for (SavedBox& box : boxes_of(p, coordinates, family, u, first, last)) boxes.push_back(std::move(box));
  }
  return boxes;
}

std::vector<checkpoint::Span> spans_of(const exec::Executor& executor) {
  const c10::InferenceMode inference;
  const auto& p = executor.program();
  const auto parameters = arch::parameters(p.arch);
  std::vector<checkpoint::Span> spans;
  for (const SavedFamily& family : saved_families(p))
    for (const auto& [u, global, end] : saved_boxes(p, executor.coordinates(), family)) {
      const auto& parameter = parameters[static_cast<std::size_t>(global.parameter)];
      const at::Tensor values = held_part(executor, family.storage, u, global.unit_first, end);
      checkpoint::Span span{
          family.prefix + parameter.name, dtype_of(values), family.shape(parameter), global.box, nullptr, {}};
      if (values.device().is_cpu())
        span.data = values.data_ptr();
      else
        span.read = [values](std::int64_t at, std::int64_t count, void* destination) {
          const at::Tensor host = values.narrow(0, at, count).to(at::kCPU);
          std::memcpy(destination, host.data_ptr(), host.nbytes());
        };
      spans.push_back(std::move(span));
    }
  return spans;
}

void load_state(const checkpoint::Checkpoint& from, exec::Executor& executor, comm::Communicator& world,
                bool weights_only) {
  const c10::InferenceMode inference;
  std::vector<std::string> weights{"param"};
  if (executor.has_state("master")) weights.push_back("master");
  std::vector<SavedFamily> families = saved_families(executor.program());
  if (weights_only) families.resize(1);
  const auto stage = along(executor, world, mesh::Axes{mesh::Axis::kPp}.complement());
  throw_on_all_ranks(world, [&] {
    using enum program::StateOf;
    for (const program::StateOf of : {kAll, kRest, kVectors, kRows, kColumns})
      read_tiles(from, executor, families, of, weights, *stage);
  });
  const auto replicas = along(executor, world, mesh::kReplicas);
  const auto of_experts = along(executor, world, mesh::kReplicas.without(mesh::Axis::kEp));
  const auto copies = along(executor, world, mesh::Axes{mesh::Axis::kDpReplicate});
  std::vector<std::string> all = weights;
  for (std::size_t i = 1; i < families.size(); ++i) all.push_back(families[i].storage);
  share_between_ends(executor, all, world);
  for (const std::string& storage : all) share_tiles(executor, storage, *replicas, *of_experts, *copies);
}

std::string state_hash(const exec::Executor& executor, comm::Communicator& world) {
  checkpoint::StateDigest digest;
  for (const auto& span : spans_of(executor)) {
    std::vector<char> staged;
    const void* data = span.data;
    if (!data) {
      staged.resize(static_cast<std::size_t>(span.box.elements() * size_of(span.dtype)));
      span.read(0, span.box.elements(), staged.data());
      data = staged.data();
    }
    digest.add(span.tensor, span.dtype, span.shape, span.box, data);
  }
  auto lanes = digest.lanes();
  // Adding signed numbers gives the same bits: sums are modulo 2^64 in either case.
  world.all_reduce(lanes.data(), 2, DType::kI64, comm::Reduce::kSum);
  return checkpoint::StateDigest::from_lanes(lanes).hex();
}

checkpoint::Agree agree_over(comm::Communicator& world) {
  return [&world](bool ok) {
    std::int32_t flag = ok ? 1 : 0;
    world.all_reduce(&flag, 1, DType::kI32, comm::Reduce::kMin);
    return flag == 1;
  };
}

}  // namespace molen::launch
