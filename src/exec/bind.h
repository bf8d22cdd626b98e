// Binding: a step of a program becomes a callable on tensors in the arena. Each kernel finds its operands by argument
// (program/ir/arg.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>

#include "base/clock.h"
#include "comm/communicator.h"
#include "exec/executor.h"
#include "exec/launches.h"
#include "math/scratch.h"
#include "model/parts.h"
#include "program/ir/program.h"

namespace molen::exec {

// State that the ops of one step share, besides buffers.
struct StepState {
  const StepInput* input = nullptr;
  bool non_finite = false, overflow = false;  // StepResult
  bool skips_update() const { return non_finite || !input->update; }
  const Launches* launches = nullptr;  // launches on the rank's device; null on the host
  // Storage for a micro-batch that is copied after it is loaded: to a device, or to a rank that has part of each
  // sequence.
  std::vector<std::int32_t> ids, labels, document_start;
  MicroBatch staged(std::size_t tokens, bool documents) {
    ids.resize(tokens);
    labels.resize(tokens);
    document_start.resize(documents ? tokens : 0);
    return {ids.data(), labels.data(), documents ? document_start.data() : nullptr};
  }
};

// One run of an op.
class RunState {
 public:
  explicit RunState(StepState& state) : step(state) {}

  StepState& step;

  // Waits until everything that this thread launched has ended. A communicator does not know the device's streams, so
  // it may read the results only then.
  void settle() const {
    if (step.launches) step.launches->wait();
  }
  // Does one of the op's epilogues, or a part of it. `work` returns the bytes that it read and wrote. The executor
  // compares kinds and bytes with those that the op declares. On a device, `work` is only launched, and its time counts
  // as time of the op.
  template <class F>
  void epilogue(program::Epilogue kind, F&& work) {
    const std::int64_t before = now_ns(), cpu_before = thread_cpu_ns();
    const std::int64_t moved = work();
    const auto k = static_cast<std::size_t>(kind);
    ran_[k] = true;
    moved_[k] += moved;
    if (step.launches) return;
    cpu_seconds_[k] += static_cast<double>(thread_cpu_ns() - cpu_before) * 1e-9;
    seconds_[k] += static_cast<double>(now_ns() - before) * 1e-9;
  }
  void copy(program::Epilogue kind, at::Tensor& to, const at::Tensor& from) {
    epilogue(kind, [&] {
      to.copy_(from);
      return bytes_of(to) + bytes_of(from);
    });
  }
  void add(at::Tensor& to, const at::Tensor& from) {
    epilogue(program::Epilogue::kAdd, [&] {
      to.add_(from);
      return 2 * bytes_of(to) + bytes_of(from);
    });
  }
  static std::int64_t bytes_of(const at::Tensor& t) { return t.numel() * t.element_size(); }

  // Throws Error if the epilogues that have run are not those that the op declares. Declared bytes are those of the
  // rank whose coordinates in a stage are all 0 (`first`), so other ranks are only held to the kinds. So is an exchange
  // of experts' rows: it declares an even share of them, and moves those that the router chose.
  void require_declared(const program::Step& op, bool first) const;
  void write_times(program::OpTime& time) const { time.epilogue_s = seconds_, time.epilogue_cpu_s = cpu_seconds_; }

 private:
  std::array<bool, program::kNumEpilogues> ran_{};
  std::array<std::int64_t, program::kNumEpilogues> moved_{};
  std::array<double, program::kNumEpilogues> seconds_{}, cpu_seconds_{};
};

struct BindContext {
  const program::Program& program;
  mesh::PerAxis coordinates;  // of this rank
  std::function<comm::Communicator*(program::Axis)> group;
  std::function<at::Tensor(int buffer)> flat;
  // Where the rows of each sequence stand in it, when the sequence began in an earlier call. When empty, the positions
  // are those of this rank.
  std::vector<PositionRun> positions = {};
  std::function<void(std::int64_t khz)> set_clock = {};  // Options::set_clock
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
