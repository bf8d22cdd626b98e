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
#include "optim/adamw.h"
#include "program/memory.h"
#include "program/program.h"
#include "program/timeline.h"

namespace molen::exec {

// Where one micro-batch of whole sequences goes, [B*S] each. Label -1: not counted. `document_start`: for each token
// the position of its sequence where its document begins; null where the program masks no documents.
struct MicroBatch {
  std::int32_t *ids, *labels, *document_start = nullptr;
};
// Fills it and returns the number of counted labels.
using LoadMicroBatch = std::function<std::int64_t(const MicroBatch&)>;

struct StepInput {
  std::int64_t step = 1;    // counts updates from 1; those that were skipped do not count
  optim::AdamW optimizer;   // lr of this step
  double clip = 1.0;        // largest global gradient norm; 0: no clipping
  double loss_scale = 1.0;  // of the loss whose gradient is made; the update and grad_norm are without it
  LoadMicroBatch load;
};

struct StepResult {
  double loss_sum = 0.0;  // over the valid tokens of the global batch (of this rank in evaluation programs)
  double valid_tokens = 0.0;
  double grad_norm = 0.0;   // before clipping, of the mean loss
  bool non_finite = false;  // the loss or the gradient is not finite: the update was skipped, on all ranks alike
  // Of such a step where the loss is scaled (Setting::scales_loss): the loss is finite and the gradient alone is not,
  // so that a smaller loss_scale may do.
  bool overflow = false;
  program::Timeline timeline;
  double mean_loss() const { return loss_sum / valid_tokens; }
};

// Told when ops begin and end, on the threads that run them: one per stream. `op` counts in the expansion, `ns` is the
// steady clock. An op that is skipped begins and ends, one that throws does not end; one that a device computes ends
// when it has been launched.
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
  // Instead of an op, wait for so many seconds: what a schedule hides and leaves idle, apart from what ops cost here.
  // An op for which it gives none runs.
  std::function<std::optional<double>(const program::Step&)> sleep = {};
  // Shown what each op has written, in the order of its operands, on the thread of its stream.
  std::function<void(const program::Expanded&, const std::vector<at::Tensor>& writes)> written = {};
  // For tests: whose streams order the ops, where not those of `device`.
  std::optional<at::Device> streams = {};
  // For tests of what a step touches: bytes of each arena behind what is planned, and where in it what stands.
  Bytes guard = {};
  program::Packing packing = program::Packing::kShared;
};

class Executor {
 public:
  // Verifies nothing: callers pass programs that program::require_sound has seen. `world` holds the ranks of the
  // program's mesh (null where no op communicates) and is split for its axes, so that the constructor is collective.
  // `weights` lends its parameters, and its transient space, to a program whose parameters are external (an evaluation
  // beside a training); it must outlive this one, and the two must not run at once.
  Executor(program::Program program, int rank, comm::Communicator* world, Options options,
           const Executor* weights = nullptr);
  ~Executor();

  StepResult run(const StepInput& input);

  const program::Program& program() const;
  at::Device device() const;
  const program::MemoryPlan& memory() const;
  const std::vector<program::Expanded>& ops() const;

  // What this rank keeps of a unit's state from step to step: "param", "grad", "m", "v", "master"; flat. A part of it
  // where the layout shards it.
  at::Tensor state(const std::string& family, int unit) const;
  bool has_state(const std::string& family) const;
  // Element range of the unit that `state` of this family covers on this rank.
  std::pair<std::int64_t, std::int64_t> state_range(const std::string& family, int unit) const;
  // What this rank's communicator of an axis has moved so far by a kind of call; nothing for an axis that no op names.
  comm::Traffic traffic(program::Axis axis, comm::CallKind kind) const;
  // The whole arena of the device, or of what stands on the host, with Options::guard: a test sees what a step writes.
  // Of a CPU device.
  std::span<std::byte> arena(program::Place place = program::Place::kDevice) const;
  // Where this rank stands in the program's mesh.
  const mesh::PerAxis& coordinates() const;

  // End of the highest byte in use while each expanded op of the last `run` was running, in the plan's places: what is
  // counted is how much of its scratch an op took. Equals MemoryPlan::high_water. No measurement of what was touched.
  const std::vector<std::int64_t>& high_water() const;
  // Arena::touched of the arena that this executor made for itself.
  std::optional<Bytes> touched(program::Place place = program::Place::kDevice) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace molen::exec
