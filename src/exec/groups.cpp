#include "exec/groups.h"

#include "base/error.h"
#include "base/match.h"

namespace molen::exec {

using program::Axis;

namespace {

// Returns the number of this rank's group along an axis. The group of a pipeline's ends has only the first and the last
// stage; the other ranks form a group that nobody uses.
int color_of(const mesh::Mesh& mesh, int rank, Axis axis) {
  const int group = mesh.group_number(rank, program::axes_of(axis));
  if (axis != Axis::kEmbedding) return group;
  const int stage = mesh.coordinates(rank)[mesh::Axis::kPp], last = mesh.sizes()[mesh::Axis::kPp] - 1;
  return 2 * group + (stage == 0 || stage == last ? 0 : 1);
}

}  // namespace

Groups::Groups(const program::Program& p, int rank, comm::Communicator* world) {
  const int ranks = p.grid.ranks();
  const mesh::Mesh mesh(p.grid.sizes, ranks, p.grid.order);
  coordinates_ = mesh.coordinates(rank);
  for (const Axis axis : program::communicator_axes(p)) {
    MOLEN_CHECK(world != nullptr && world->size() == ranks, "a program for {} needs a communicator of {} ranks",
                mesh.text(), ranks);
    // The axis gets a communicator of its own even when it covers the whole world: the communicator counts what the
    // axis moves.
    made_.push_back(world->split(color_of(mesh, rank, axis), mesh.position(rank, program::axes_of(axis))));
    groups_[static_cast<std::size_t>(axis)] = made_.back().get();
  }
}

}  // namespace molen::exec
