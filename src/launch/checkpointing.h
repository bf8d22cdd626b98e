// Saves an executor's state to a layout-free checkpoint and loads it. The weights (master weights when there are any)
// have their parameter names; the optimizer's states are named "optimizer.<state>/<name>".
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/digest.h"
#include "comm/communicator.h"
#include "exec/executor.h"
#include "program/values/optimizer.h"

namespace molen::launch {

// A box that a rank saves, the unit that contains it, and the end of the box's elements in the unit.
struct SavedBox {
  int unit = -1;
  program::GlobalBox box;
  std::int64_t unit_end = 0;
};

// A family of tensors in a checkpoint, with one tensor for each parameter: the weights, or one state of the optimizer.
struct SavedFamily {
  std::string prefix;                              // of the tensor's name, before the name of the parameter
  std::string storage;                             // exec::Executor::state
  const program::OptimizerState* state = nullptr;  // nullptr: the weights
  program::StateOf of() const { return state ? state->of : program::StateOf::kAll; }
  // Returns the shape of the tensor of a parameter.
  std::vector<std::int64_t> shape(const arch::Parameter& parameter) const;
};
// Returns the weights and then the states, in the order of the optimizer's declaration.
std::vector<SavedFamily> saved_families(const program::Program& program);

// Returns the boxes of a family that the rank at `coordinates` saves. Of `program` only the units are used, which
// program::describe gives.
std::vector<SavedBox> saved_boxes(const program::Program& program, const mesh::PerAxis& coordinates,
                                  const SavedFamily& family);

// Returns what this rank saves: its part of every unit (program::unit_tile). The ranks' spans together cover each
// tensor exactly once, whatever the layout.
std::vector<checkpoint::Span> spans_of(const exec::Executor& executor);

// Fills the executor from a checkpoint made under any layout. Each block of the checkpoint is read by one of the ranks
// that need elements of it; this rank sends the others theirs (GroupReader). Ranks that hold the same elements divide
// them for reading and then exchange their parts. So every byte is read once. Throws UsageError when tensors are
// missing or differ in shape, and the errors of Checkpoint; the error is the same on every rank. With `weights_only`
// the optimizer's states stay zero (an imported checkpoint has none). Collective.
void load_state(const checkpoint::Checkpoint& from, exec::Executor& executor, comm::Communicator& world,
                bool weights_only);

// Returns a digest of the whole state: the same on every rank, and the same for every layout that holds the same
// values.
std::string state_hash(const exec::Executor& executor, comm::Communicator& world);

// Returns the agreement over a communicator that checkpoint::save requires.
checkpoint::Agree agree_over(comm::Communicator& world);

}  // namespace molen::launch
