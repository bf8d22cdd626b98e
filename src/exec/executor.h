// The executor: runs a step program on one rank and measures every op.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "exec/arena.h"
#include "optim/update.h"
#include "program/ir/program.h"
#include "program/ir/timeline.h"
#include "program/memory/memory.h"

namespace molen::exec {

// The destination of one micro-batch of whole sequences; each array has B*S elements. Tokens with label -1 are not
// counted. `document_start` is, for each token, the position in its sequence where its document begins; it is null when
// the program masks no documents.
struct MicroBatch {
  std::int32_t *ids, *labels, *document_start = nullptr;
};
// Fills the micro-batch and returns the number of counted labels.
using LoadMicroBatch = std::function<std::int64_t(const MicroBatch&)>;

struct StepInput {
  std::int64_t step = 1;     // counts updates from 1; skipped steps do not count
  optim::Options optimizer;  // lr of this step
  double clip = 1.0;         // largest global gradient norm; 0: no clipping
  double loss_scale = 1.0;   // factor of the loss in the backward; the update and grad_norm do not contain it
  // False: the step computes the gradient and its norm, and leaves parameters and states of the optimizer as they are.
  // The same on all ranks.
  bool update = true;
  LoadMicroBatch load;
};

struct StepResult {
  double loss_sum = 0.0;  // over the valid tokens of the global batch (of this rank in evaluation programs)
  double valid_tokens = 0.0;
  // The losses of the routers of a model with sparse layers, each a mean over sparse layers and valid tokens. The
  // balance loss is 1 where all experts have the same load. loss_sum does not contain these losses.
  double balance_loss = 0.0, z_loss = 0.0;
  double dropped_share = 0.0;  // share of the choices of experts that a capacity drops
  double grad_norm = 0.0;      // before clipping, of the mean loss
  bool non_finite = false;     // the loss or the gradient is not finite, and all ranks skipped the update
  // Set for a step that is not finite when the loss is scaled (Attributes::scaled), the loss is finite and only the
  // gradient is not. A smaller loss_scale may then succeed.
  bool overflow = false;
  program::Timeline timeline;
  double mean_loss() const { return loss_sum / valid_tokens; }
};

// Called when ops begin and end, on the threads that run them: one per stream. `op` is an index of the expansion, and
// `ns` is a time of the steady clock. A skipped op is reported with a begin and an end. An op that throws has no end.
// An op on a device ends when it has been launched.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void begin(program::Stream stream, std::size_t op, std::int64_t ns) noexcept = 0;
  virtual void end(program::Stream stream, std::size_t op, std::int64_t ns) noexcept = 0;
};

struct Options {
  at::Device device = at::kCPU;
  bool poison_dead = false;      // fill transient buffers with NaN patterns when their lifetime ends
  Observer* observer = nullptr;  // must outlive the executor
  // When `sleep` returns a number of seconds for an op, the executor waits that long instead of running the op. This
  // measures what a schedule hides and leaves idle, independently of what the ops cost on this machine.
  std::function<std::optional<double>(const program::Step&)> sleep = {};
  // Whether an op that communicates waits for the other ranks of its group before it sleeps in this way.
  bool sleep_together = false;
  // Sets the highest clock of this rank's device, for programs with SetClock. It is called on the thread of the op's
  // stream, once the ops before it on this stream have ended, also on a device. An exception ends the step.
  std::function<void(std::int64_t khz)> set_clock = {};
  // Called with what each op has written, in the order of its operands, on the thread of its stream.
  std::function<void(const program::Expanded&, const std::vector<at::Tensor>& writes)> written = {};
  // For tests: the device whose streams order the ops, when it is not `device`.
  std::optional<at::Device> streams = {};
  // For tests of what a step touches: extra bytes of each arena after the planned ones, and how buffers are placed in
  // the arena.
  Bytes guard = {};
  program::Packing packing = program::Packing::kShared;
};

class Executor {
 public:
  // Does not verify the program: callers pass programs that program::require_sound has accepted. `world` has the ranks
  // of the program's mesh and may be null when no op communicates. Throws UsageError for a program that sets clocks,
  // unless options.set_clock is given. The constructor splits `world` for the axes of the
  // mesh, so it is collective. `weights` lends its parameters and its transient memory to a program whose parameters
  // are external, such as an evaluation beside a training. The lender must outlive this executor, and the two must not
  // run at once.
  Executor(program::Program program, int rank, comm::Communicator* world, Options options,
           const Executor* weights = nullptr);
  ~Executor();

  StepResult run(const StepInput& input);

  const program::Program& program() const;
  at::Device device() const;
  const program::MemoryPlan& memory() const;
  const std::vector<program::Expanded>& ops() const;

  // Returns what this rank keeps of a unit's state from step to step, as a flat tensor. `family` is "param", "grad",
  // "master" or the name of a state of the optimizer ("m", "v", "v_rows", ...). The result is a part of the state when
  // the layout shards it.
  at::Tensor state(const std::string& family, int unit) const;
  bool has_state(const std::string& family) const;
  // Returns the element range of the unit that `state` of this family covers on this rank.
  std::pair<std::int64_t, std::int64_t> state_range(const std::string& family, int unit) const;
  // Returns what this rank's communicator of an axis has moved so far in calls of one kind. Returns zeros for an axis
  // that no op names.
  comm::Traffic traffic(program::Axis axis, comm::CallKind kind) const;
  // Returns the whole arena of the device or of offloaded buffers, including Options::guard, so that a test can see
  // what a step writes. For CPU devices only.
  std::span<std::byte> arena(program::Place place = program::Place::kDevice) const;
  // Returns this rank's coordinates in the program's mesh.
  const mesh::PerAxis& coordinates() const;

  // Returns, for each expanded op of the last `run`, the end of the highest byte in use while the op ran. Buffers count
  // at their planned places, and an op's scratch counts as far as the op took it. The values equal
  // MemoryPlan::high_water. They do not say which bytes were touched.
  const std::vector<std::int64_t>& high_water() const;
  // Returns Arena::touched of the arena that this executor made for itself.
  std::optional<Bytes> touched(program::Place place = program::Place::kDevice) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace molen::exec
