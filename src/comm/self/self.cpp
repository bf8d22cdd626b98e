#include "comm/self/self.h"

#include <cstring>
#include <mutex>

#include "base/error.h"
#include "comm/reduce.h"

namespace molen::comm {
namespace {

// Shared with the communicators that `split` makes, so that an abort reaches all.
struct Failure {
  std::mutex mutex;
  std::string reason;
};

class Self final : public Communicator {
 public:
  explicit Self(std::shared_ptr<Failure> failure) : failure_(std::move(failure)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "self"; }

  void all_reduce(void*, std::int64_t count, DType dtype, Reduce) override {
    check_reducible(dtype);
    note(CallKind::kAllReduce, count, dtype);
  }
  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype,
                      Reduce) override {
    check_reducible(dtype);
    copy(CallKind::kReduceScatter, send, receive, counts, dtype);
  }
  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType dtype) override {
    copy(CallKind::kAllGather, send, receive, counts, dtype);
  }
  void all_to_all(const void* send, const Blocks& sent, void* receive, const Blocks& received, DType dtype) override {
    const std::int64_t out = sent.total(1), in = received.total(1), width = size_of(dtype);
    if (out != in) throw Error("all_to_all: rank 0 sends {} elements to rank 0, which expects {}", out, in);
    copy(CallKind::kAllToAll, static_cast<const char*>(send) + sent.offset(0) * width,
         static_cast<char*>(receive) + received.offset(0) * width, sent.counts, dtype);
  }
  void broadcast(void*, std::int64_t count, DType dtype, int root) override {
    if (root != 0) throw Error("broadcast from rank {} of 1", root);
    note(CallKind::kBroadcast, count, dtype);
  }
  void send(const void*, std::int64_t, DType, int to) override { throw Error("rank 0 of 1 talks to rank {}", to); }
  void recv(void*, std::int64_t, DType, int from) override { throw Error("rank 0 of 1 talks to rank {}", from); }
  void barrier() override { check(); }
  std::unique_ptr<Communicator> split(int color, int) override {
    check();
    if (color < 0) throw Error("split: color {} of rank 0; colors are not negative", color);
    return std::make_unique<Self>(failure_);
  }
  void abort(const std::string& reason) noexcept override {
    try {
      const std::lock_guard lock(failure_->mutex);
      if (failure_->reason.empty()) failure_->reason = reason.empty() ? "aborted" : reason;
    } catch (...) {  // no memory for the text: nothing more can be done here
    }
  }
  Traffic traffic_of(CallKind kind) const override { return traffic_[kind]; }

 private:
  void check() const {
    const std::lock_guard lock(failure_->mutex);
    if (!failure_->reason.empty()) throw Error(failure_->reason);
  }
  void note(CallKind kind, std::int64_t count, DType dtype) {
    check();
    ++traffic_[kind].calls;
    traffic_[kind].bytes += count * size_of(dtype);
  }
  void copy(CallKind kind, const void* from, void* to, std::span<const std::int64_t> counts, DType dtype) {
    const std::int64_t count = total_of(counts, 1);
    note(kind, count, dtype);
    if (from != to && count > 0) std::memcpy(to, from, static_cast<std::size_t>(count * size_of(dtype)));
  }
  std::shared_ptr<Failure> failure_;
  TrafficByCall traffic_{{0, 0, 0, 0}};  // no bytes leave this rank
};

}  // namespace

std::unique_ptr<Communicator> make_self() {
  return std::make_unique<Self>(std::make_shared<Failure>());
}

}  // namespace molen::comm
