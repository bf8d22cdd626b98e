#include "data/loader.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace molen::data {

std::vector<MicroBatch> samples_of(std::int64_t start, int rank, int ranks, std::int64_t global, std::int64_t micro) {
  if (global < 1) throw UsageError("batch.global: {} must be at least 1", global);
  if (micro < 1) throw UsageError("batch.micro: {} must be at least 1", micro);
  MOLEN_CHECK(ranks > 0 && rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  MOLEN_CHECK(start >= 0, "sample {}", start);
  const std::int64_t slots = (global + micro - 1) / micro, count = (slots + ranks - 1) / ranks;
  std::vector<MicroBatch> batches;
  for (std::int64_t m = 0; m < count; ++m) {
    const std::int64_t slot = m * ranks + rank;
    const std::int64_t first = std::min(global, slot * micro), last = std::min(global, first + micro);
    batches.push_back({start + first, last - first});
  }
  return batches;
}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options)
    : dataset_(dataset),
      options_(options),
      per_step_(static_cast<std::int64_t>(
          samples_of(options.first_sample, options.rank, options.ranks, options.global, options.micro).size())) {
  MOLEN_CHECK(options.depth > 0, "prefetch depth {}", options.depth);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Loader::~Loader() {
  thread_.request_stop();
  thread_.join();
}

Batch Loader::make(const MicroBatch& samples) const {
  const auto length = static_cast<std::size_t>(dataset_.sequence_length());
  Batch batch;
  batch.first_sample = samples.first;
  batch.count = samples.count;
  batch.ids.assign(static_cast<std::size_t>(options_.micro) * length, 0);
  batch.labels.assign(batch.ids.size(), -1);
  if (options_.document_start) batch.document_start.assign(batch.ids.size(), 0);
  std::vector<std::int32_t> tokens(length + 1);
  for (std::int64_t row = 0; row < samples.count; ++row) {
    dataset_.read(samples.first + row, tokens);
    const auto at = static_cast<std::ptrdiff_t>(row) * static_cast<std::ptrdiff_t>(length);
    std::copy(tokens.begin(), tokens.end() - 1, batch.ids.begin() + at);
    std::copy(tokens.begin() + 1, tokens.end(), batch.labels.begin() + at);
    if (options_.document_start)
      document_starts(std::span(batch.ids).subspan(static_cast<std::size_t>(at), length),
                      dataset_.end_of_text(samples.first + row),
                      std::span(batch.document_start).subspan(static_cast<std::size_t>(at), length));
  }
  return batch;
}

void Loader::run(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "loader");  // as `top -H` shows it
  const auto depth = static_cast<std::size_t>(options_.depth);
  try {
    for (std::int64_t start = options_.first_sample;; start += options_.global) {
      for (const MicroBatch& samples :
           samples_of(start, options_.rank, options_.ranks, options_.global, options_.micro)) {
        if (stop.stop_requested()) return;
        Batch batch = make(samples);
        std::unique_lock lock(mutex_);
        if (!changed_.wait(lock, stop, [&] { return ready_.size() < depth; })) return;
        ready_.push_back(std::move(batch));
        lock.unlock();
        changed_.notify_all();
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

Batch Loader::next() {
  std::unique_lock lock(mutex_);
  std::optional<LoaderWait> wait;
  const auto there = [&] { return !ready_.empty() || error_ != nullptr; };
  if (!there()) {
    const std::int64_t start_ns = now_ns();
    changed_.wait(lock, there);
    wait = LoaderWait{start_ns, now_ns()};
  }
  if (ready_.empty()) std::rethrow_exception(error_);
  Batch batch = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  batch.wait = wait;
  return batch;
}

}  // namespace molen::data
