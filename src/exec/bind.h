// Binding: a step of a program becomes a callable on tensors in the arena. Each kernel finds its operands by argument
// (program/ir/arg.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "comm/communicator.h"
#include "exec/executor.h"
#include "exec/launches.h"
#include "math/scratch.h"
#include "model/parts.h"
#include "program/ir/program.h"

namespace molen::exec {

// State, other than buffers, that the ops of one step share.
struct RunState {
  const StepInput* input = nullptr;
  bool non_finite = false, overflow = false;  // StepResult
  const Launches* launches = nullptr;         // of the rank's device; null on the host
  // Waits until everything that this thread launched has ended: only then may a communicator, which does not know the
  // device's streams, read it.
  void settle() const {
    if (launches) launches->wait();
  }
  // Storage for a micro-batch that does not stay where it is loaded: for a device, or for a rank with part of each
  // sequence.
  std::vector<std::int32_t> ids, labels, document_start;
  MicroBatch staged(std::size_t tokens, bool documents) {
    ids.resize(tokens);
    labels.resize(tokens);
    document_start.resize(documents ? tokens : 0);
    return {ids.data(), labels.data(), documents ? document_start.data() : nullptr};
  }
};

struct BindContext {
  const program::Program& program;
  mesh::PerAxis coordinates;  // of this rank
  std::function<comm::Communicator*(program::Axis)> group;
  std::function<at::Tensor(int buffer)> flat;
};

inline DType dtype_of(const BindContext& c, const program::Use& use) {
  return c.program.buffers[static_cast<std::size_t>(use.buffer)].dtype;
}

using Kernel = std::function<void(RunState&, math::Scratch&)>;
Kernel bind(const BindContext& context, const program::Step& step);

// held_of returns the elements of a unit that a buffer holds on a rank; range_of returns those that `use` names. Both
// are [first, second).
using Bounds = std::pair<std::int64_t, std::int64_t>;
Bounds held_of(const program::Program& program, int buffer, const mesh::PerAxis& coordinates);
Bounds range_of(const program::Program& program, const program::Use& use, const mesh::PerAxis& coordinates);

}  // namespace molen::exec
