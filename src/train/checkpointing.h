// Conversion between an executor's state and a layout-free checkpoint. Tensors: weights under their parameter names
// (master weights when there are any), moments under "optimizer.m/<name>" and "optimizer.v/<name>".
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

// A box of the weights and of each moment that a rank saves, and the unit that contains it.
struct SavedBox {
  int unit = -1;
  program::GlobalBox box;
};
// Returns the boxes of the rank at `coordinates`. `program` needs only the units that program::describe gives.
std::vector<SavedBox> saved_boxes(const program::Program& program, const mesh::PerAxis& coordinates);
// The prefixes of the tensor names that a box's elements are saved under: weights, first moments, second moments.
inline constexpr std::array<std::string_view, 3> kSavedPrefixes{"", "optimizer.m/", "optimizer.v/"};

// Returns what this rank saves: its part of every unit (program::unit_tile). The ranks' spans together cover each
// tensor exactly once, whatever the layout.
std::vector<checkpoint::Span> spans_of(const exec::Executor& executor);

// Fills the executor from a checkpoint made under any layout. Each rank reads its own part of every unit, and ranks
// that hold the same elements exchange their parts, so every byte is read once. Throws UsageError when tensors are
// missing or differ in shape, and the errors of Checkpoint; the error is the same on every rank. `weights_only`:
// moments stay zero (an imported checkpoint has none). Collective.
void load_state(const checkpoint::Checkpoint& from, exec::Executor& executor, comm::Communicator& world,
                bool weights_only);

// Returns a digest of the whole state: the same on every rank, and the same for every layout that holds the same
// values.
std::string state_hash(const exec::Executor& executor, comm::Communicator& world);

// Returns the agreement over a communicator that checkpoint::save requires.
checkpoint::Agree agree_over(comm::Communicator& world);

}  // namespace molen::train
