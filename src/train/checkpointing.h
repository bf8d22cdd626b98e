// Between an executor's state and a layout-free checkpoint. Tensors: weights under their parameter names (master
// weights where there are any), moments under "optimizer.m/<name>" and "optimizer.v/<name>".
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/digest.h"
#include "comm/communicator.h"
#include "exec/executor.h"

namespace molen::train {

// A box that a rank saves, of the weights and of each moment, and the unit that it lies in.
struct SavedBox {
  int unit = -1;
  program::GlobalBox box;
};
// Those of the rank at `coordinates`, whose program's units, as program::describe has them, are `program`'s.
std::vector<SavedBox> saved_boxes(const program::Program& program, const mesh::PerAxis& coordinates);
// The prefixes of tensor names under which its elements stand: of weights, and of the moments.
inline constexpr std::array<std::string_view, 3> kSavedPrefixes{"", "optimizer.m/", "optimizer.v/"};

// What this rank saves: its part of every unit (program::unit_tile), so that the ranks' spans tile each tensor once,
// whatever the layout.
std::vector<checkpoint::Span> spans_of(const exec::Executor& executor);

// Fills the executor from a checkpoint made under any layout: each rank reads its own part of every unit, and ranks
// that hold the same hand each other theirs, so that every byte is read once. Throws UsageError where tensors are
// missing or differ in shape, and as Checkpoint does, the same on every rank. `weights_only`: moments stay zero (an
// import from elsewhere has none). Collective.
void load_state(const checkpoint::Checkpoint& from, exec::Executor& executor, comm::Communicator& world,
                bool weights_only);

// Digest of the whole state, the same on every rank and for every layout that holds the same values.
std::string state_hash(const exec::Executor& executor, comm::Communicator& world);

// Agreement over a communicator as checkpoint::save wants it.
checkpoint::Agree agree_over(comm::Communicator& world);

}  // namespace molen::train
