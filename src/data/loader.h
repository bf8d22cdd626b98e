// Batches for one rank: the samples that a rank holds in a step, and a thread that reads them ahead.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/dataset.h"

namespace molen::data {

// Samples [first, first + count) of the global order; count may be less than the micro-batch, or 0.
struct MicroBatch {
  std::int64_t first;
  std::int64_t count;
  bool operator==(const MicroBatch&) const = default;
};

// Divides the global samples [start, start + global) of a step into slots of `micro` samples. Slot m * ranks + rank is
// micro-batch m of `rank`. So a step has the same samples on any number of ranks. Every rank has the same number of
// micro-batches, ceil(global / (ranks * micro)); when this does not divide `global` evenly, the last slots hold fewer
// samples or none. Throws UsageError when a size is not positive.
std::vector<MicroBatch> samples_of(std::int64_t start, int rank, int ranks, std::int64_t global, std::int64_t micro);

// A time in which `Loader::next` had to wait, on the steady clock (base/clock.h: now_ns).
struct LoaderWait {
  std::int64_t start_ns = 0, end_ns = 0;
  double seconds() const { return static_cast<double>(end_ns - start_ns) * 1e-9; }
};

// One micro-batch as two arrays [micro, S], row-major. Rows beyond `count` are padding: ids 0, labels -1.
struct Batch {
  std::int64_t first_sample = 0;
  std::int64_t count = 0;                 // rows that hold a sample
  std::vector<std::int32_t> ids, labels;  // labels: the next token of each id, -1 = not counted
  // If requested: for each id, the column where its document begins in its row (document_starts in dataset.h).
  std::vector<std::int32_t> document_start;
  std::optional<LoaderWait> wait;  // until this batch was ready; none if `next` found it ready
};

struct LoaderOptions {
  std::int64_t first_sample = 0;  // of the first step; a resumed run passes the position it reached
  std::int64_t global = 1, micro = 1;
  int rank = 0, ranks = 1;
  int depth = 4;                // micro-batches read ahead
  bool document_start = false;  // fill Batch::document_start
};

// Reads ahead in its own thread. `next` returns the rank's micro-batches in order, step after step, without end.
class Loader {
 public:
  // `dataset` must outlive the loader.
  Loader(const Dataset& dataset, const LoaderOptions& options);
  ~Loader();  // stops the thread, whatever it is doing
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Blocks until the next micro-batch is ready. Rethrows an error of the reading thread at the batch where it occurred,
  // and again on every later call.
  Batch next();
  std::int64_t micro_batches_per_step() const { return per_step_; }

 private:
  void run(const std::stop_token& stop);
  Batch make(const MicroBatch& samples) const;

  const Dataset& dataset_;
  LoaderOptions options_;
  std::int64_t per_step_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Batch> ready_;
  std::exception_ptr error_;
  std::jthread thread_;  // last member: destroyed first, before the members that it uses
};

}  // namespace molen::data
