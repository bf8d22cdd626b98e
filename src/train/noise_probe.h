// Measures the gradient norm of a part of a step's batch, for the gradient noise scale (state/noise_scale.h).
#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "data/loader.h"
#include "exec/executor.h"

namespace molen::train {

// The loader's micro-batches, of which those of the next step can be read before it.
class Batches {
 public:
  explicit Batches(data::Loader& loader) : loader_(loader) {}
  data::Batch next();
  // Returns the micro-batches that `next` will return, one after another, each once.
  data::Batch ahead();
  // Returns when the loader was waited for since the last call, in the order of time.
  std::vector<data::LoaderWait> take_waits() { return std::exchange(waits_, {}); }

 private:
  data::Batch load();

  data::Loader& loader_;
  std::deque<data::Batch> held_;
  std::vector<data::LoaderWait> waits_;
};

// Copies a batch [micro, sequence] into the program's micro-batch. Only the labels of the first `samples` rows are
// copied; the others become -1. Returns the number of labels that count.
std::int64_t fill(const exec::MicroBatch& to, const data::Batch& batch, std::int64_t sequence, std::int64_t samples);

struct SmallBatch {
  double tokens = 0.0;  // with a label
  std::optional<double> norm;
  program::Timeline timeline;
};
// Runs the step that `input` describes with the labels of its samples before `end` alone, and without the update, so
// that the step itself can run afterwards. It takes about as long as the step, because the ranks exchange as in any
// step. Returns no norm where no sample has a label, or where the gradient is not finite. Collective over the ranks of
// the program.
SmallBatch run_small(exec::Executor& executor, exec::StepInput input, Batches& batches, std::int64_t end);

}  // namespace molen::train
