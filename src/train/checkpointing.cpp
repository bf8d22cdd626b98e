#include "train/checkpointing.h"

#include <ATen/ATen.h>

#include "arch/parameters.h"
#include "base/error.h"
#include "train/together.h"

namespace molen::train {
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

constexpr std::int64_t kPiece = 1 << 20;  // elements that one call transfers

// Returns the storages that hold the values of each of kSavedPrefixes.
std::array<std::string, kSavedPrefixes.size()> storages(const exec::Executor& executor) {
  return {executor.has_state("master") ? "master" : "param", "m", "v"};
}

// The part of a unit that this rank alone writes to a checkpoint, and reads from one.
std::pair<std::int64_t, std::int64_t> tile_of(const exec::Executor& executor, int unit) {
  const auto& p = executor.program();
  return program::unit_tile(p.setting, executor.coordinates(), p.units[static_cast<std::size_t>(unit)].elements);
}

// Returns the beginning of a checkpoint block, of a parameter that is stored whole, nearest to `border` within the
// unit.
std::int64_t nearest_block(const program::Unit& unit, std::int64_t border) {
  constexpr std::int64_t kBlock = checkpoint::kBlockBytes / 4;  // elements of fp32
  std::int64_t first = 0, last = unit.elements;                 // of the parameter around the border
  for (const program::UnitEntry& entry : unit.entries)
    if (entry.offset <= border)
      first = std::max(first, entry.offset);
    else
      last = std::min(last, entry.offset);
  const std::int64_t before = first + (border - first) / kBlock * kBlock, after = std::min(before + kBlock, last);
  return border - before <= after - border ? before : after;
}

// Returns the part of a unit that this rank reads from a checkpoint: its tile. When every rank holds whole units and
// receives the other parts from other ranks, the borders lie between blocks, so that no two ranks read the same block.
std::pair<std::int64_t, std::int64_t> reading_tile(const exec::Executor& executor, int unit) {
  const auto& p = executor.program();
  const program::Unit& u = p.units[static_cast<std::size_t>(unit)];
  auto [first, last] = tile_of(executor, unit);
  if (p.setting.zero > 0) return {first, last};
  if (first > 0) first = nearest_block(u, first);
  if (last < u.elements) last = nearest_block(u, last);
  return {first, last};
}

// Returns the view of elements [first, last) of a unit's state in this rank's storage.
at::Tensor held_part(const exec::Executor& executor, const std::string& storage, int unit, std::int64_t first,
                     std::int64_t last) {
  const auto [held_first, held_last] = executor.state_range(storage, unit);
  MOLEN_CHECK(held_first <= first && last <= held_last, "state [{}, {}) asked for [{}, {})", held_first, held_last,
              first, last);
  return executor.state(storage, unit).narrow(0, first - held_first, last - first);
}

// Reads this rank's tiles of all tensors of one kind into the states that hold them. Each byte is read once, even when
// weights go to both the parameters and their master copies.
void read_tiles(const checkpoint::Checkpoint& from, exec::Executor& executor, const std::string& prefix,
                const std::vector<std::string>& storages) {
  const auto& program = executor.program();
  const auto parameters = arch::parameters(program.arch);
  for (int u = 0; u < static_cast<int>(program.units.size()); ++u) {
    if (!program.counts(u)) continue;  // the pipeline's first stage reads it
    const auto [first, last] = reading_tile(executor, u);
    const auto boxes = program::global_boxes(program, executor.coordinates(), u, first, last);
    for (std::size_t begin = 0, end; begin < boxes.size(); begin = end) {
      end = begin;
      std::vector<Box> wanted;
      for (; end < boxes.size() && boxes[end].parameter == boxes[begin].parameter; ++end)
        wanted.push_back(boxes[end].box);
      const arch::Parameter& parameter = parameters[static_cast<std::size_t>(boxes[begin].parameter)];
      const std::string name = prefix + parameter.name;
      const auto& stored = from.tensor(name);
      if (stored.shape != parameter.shape)
        throw UsageError("{}: tensor {} has another shape than the model", from.path().string(), name);
      from.read(name, wanted, [&](std::size_t i, const Box& part, const Box& held, const void* data) {
        std::vector<std::int64_t> strides(held.sizes.size(), 1);
        for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * held.sizes[d];
        const char* at = static_cast<const char*>(data) + position_in(held, part) * size_of(stored.dtype);
        const at::Tensor source =
            at::from_blob(const_cast<char*>(at), part.sizes, strides, exec::to_aten(stored.dtype));
        const std::int64_t place = boxes[begin + i].unit_first;
        for (const std::string& storage : storages) {
          at::Tensor values =
              held_part(executor, storage, u, place, place + wanted[i].elements()).view(wanted[i].sizes);
          for (std::size_t d = 0; d < part.sizes.size(); ++d)
            values = values.narrow(static_cast<std::int64_t>(d), part.offsets[d] - wanted[i].offsets[d], part.sizes[d]);
          values.copy_(source);
        }
      });
    }
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

// Sends an embedding that a pipeline's first and last stage share from the first to the last, a tile at a time.
// Collective.
void share_between_ends(exec::Executor& executor, const std::vector<std::string>& storages, comm::Communicator& world) {
  const program::Program& p = executor.program();
  std::int32_t shared = 0;
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) shared |= p.shared_by_ends(u) ? 1 : 0;
  const std::int32_t mine = shared;
  world.all_reduce(&shared, 1, DType::kI32, comm::Reduce::kMax);
  if (shared == 0) return;
  // Pairs the ranks that have the same place in the two stages. Ranks between these stages form a group of their own
  // that has nothing to do.
  const program::Setting& s = p.setting;
  int place = 0;
  for (const mesh::Axis axis : s.order)
    if (axis != mesh::Axis::kPp) place = place * s.mesh[axis] + executor.coordinates()[axis];
  const auto ends = world.split(2 * place + mine, executor.coordinates()[mesh::Axis::kPp]);
  if (mine == 0) return;
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
    if (!p.shared_by_ends(u)) continue;
    const auto [first, last] = reading_tile(executor, u);
    for (const std::string& storage : storages)
      for (std::int64_t at = first; at < last; at += kPiece) {
        const std::int64_t n = std::min(kPiece, last - at);
        at::Tensor values = held_part(executor, storage, u, at, at + n);
        at::Tensor host = values.to(at::kCPU);
        ends->broadcast(host.data_ptr(), n, dtype_of(host), 0);
        if (!values.device().is_cpu()) values.copy_(host);
      }
  }
}

// Sends every rank's tile to all ranks of the group, which hold the same elements of the unit. Collective over the
// group.
void exchange_tiles(exec::Executor& executor, const std::string& storage, int unit, comm::Communicator& group) {
  const auto tile = reading_tile(executor, unit);
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(group.size()) * 2, 0);
  bounds[static_cast<std::size_t>(group.rank()) * 2] = tile.first;
  bounds[static_cast<std::size_t>(group.rank()) * 2 + 1] = tile.second;
  group.all_reduce(bounds.data(), static_cast<std::int64_t>(bounds.size()), DType::kI64, comm::Reduce::kMax);
  std::int64_t elements = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::int64_t first = bounds[static_cast<std::size_t>(rank) * 2],
                       last = bounds[static_cast<std::size_t>(rank) * 2 + 1];
    elements += last - first;
    for (std::int64_t at = first; at < last; at += kPiece) {
      const std::int64_t n = std::min(kPiece, last - at);
      at::Tensor values = held_part(executor, storage, unit, at, at + n);
      at::Tensor host = values.to(at::kCPU);
      group.broadcast(host.data_ptr(), n, dtype_of(host), rank);
      if (!values.device().is_cpu()) values.copy_(host);
    }
  }
  const auto held = executor.state_range(storage, unit);
  MOLEN_CHECK(elements == held.second - held.first, "tiles of unit {} have {} of {} elements", unit, elements,
              held.second - held.first);
}

// Fills what this rank holds beyond its tile with the tiles of the ranks that hold the same elements: all data-parallel
// ranks when each holds the whole unit, or else the ranks that hold the same shard. `replicas` and `copies` are these
// two groups. Collective.
void share_tiles(exec::Executor& executor, const std::string& storage, comm::Communicator& replicas,
                 comm::Communicator& copies) {
  for (int u = 0; u < static_cast<int>(executor.program().units.size()); ++u) {
    const auto tile = reading_tile(executor, u), held = executor.state_range(storage, u);
    const std::int64_t elements = executor.program().units[static_cast<std::size_t>(u)].elements;
    // All ranks must decide alike: one rank's tile may happen to be everything that it holds.
    std::int32_t lacking[2] = {held != tile ? 1 : 0, held.first != 0 || held.second != elements ? 1 : 0};
    replicas.all_reduce(lacking, 2, DType::kI32, comm::Reduce::kMax);
    if (lacking[0]) exchange_tiles(executor, storage, u, lacking[1] ? copies : replicas);
  }
}

}  // namespace

std::vector<SavedBox> saved_boxes(const program::Program& p, const mesh::PerAxis& coordinates) {
  std::vector<SavedBox> boxes;
  for (int u = 0; u < static_cast<int>(p.units.size()); ++u) {
    if (!p.counts(u)) continue;
    const program::Unit& unit = p.units[static_cast<std::size_t>(u)];
    const auto [tile, tile_end] = program::unit_tile(p.setting, coordinates, unit.elements);
    const auto [first, last] = program::counted_once(coordinates, unit, tile, tile_end);
    for (auto& box : program::global_boxes(p, coordinates, u, first, last)) boxes.push_back({u, std::move(box)});
  }
  return boxes;
}

std::vector<checkpoint::Span> spans_of(const exec::Executor& executor) {
  const c10::InferenceMode inference;
  const auto& p = executor.program();
  const auto parameters = arch::parameters(p.arch);
  const auto boxes = saved_boxes(p, executor.coordinates());
  const auto storage = storages(executor);
  std::vector<checkpoint::Span> spans;
  for (std::size_t family = 0; family < kSavedPrefixes.size(); ++family)
    for (const auto& [u, global] : boxes) {
      const auto& parameter = parameters[static_cast<std::size_t>(global.parameter)];
      const at::Tensor values =
          held_part(executor, storage[family], u, global.unit_first, global.unit_first + global.box.elements());
      checkpoint::Span span{std::string(kSavedPrefixes[family]) + parameter.name,
                            dtype_of(values),
                            parameter.shape,
                            global.box,
                            nullptr,
                            {}};
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
  together(world, [&] {
    read_tiles(from, executor, "", weights);
    if (weights_only) return;
    read_tiles(from, executor, "optimizer.m/", {"m"});
    read_tiles(from, executor, "optimizer.v/", {"v"});
  });
  const auto replicas = along(executor, world, mesh::kReplicas);
  const auto copies = along(executor, world, mesh::Axes{mesh::Axis::kDpReplicate});
  if (!weights_only) weights.insert(weights.end(), {"m", "v"});
  share_between_ends(executor, weights, world);
  for (const std::string& storage : weights) share_tiles(executor, storage, *replicas, *copies);
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
  // Sums modulo 2^64 have the same bits signed and unsigned.
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

}  // namespace molen::train
