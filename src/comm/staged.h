// The suites of comm_suite.h use host buffers; this adapter runs them on a communicator of device memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "comm/reduce.h"

namespace molen::comm::suite {

// The memory that holds a rank's buffers during a call.
class Staging {
 public:
  virtual ~Staging() = default;
  virtual void begin() = 0;  // frees all buffers that this thread took
  virtual char* take(std::int64_t bytes) = 0;
  // Copies `bytes`; the copy is complete on return. At least one of the two buffers is in this memory.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
};

// A communicator for callers with host buffers that forwards to a communicator of device memory.
class Staged final : public Communicator {
 public:
  Staged(Communicator& inner, Staging& memory) : inner_(&inner), memory_(memory) {}
  Staged(std::unique_ptr<Communicator> inner, Staging& memory)
      : inner_(inner.get()), own_(std::move(inner)), memory_(memory) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  bool one_at_a_time() const override { return inner_->one_at_a_time(); }
  void add_callers(int change) noexcept override { inner_->add_callers(change); }
  void all_reduce(void* data, std::int64_t count, DType t, Reduce op) override {
    memory_.begin();
    Buffer b(*this, data, count * size_of(t));
    inner_->all_reduce(b.there, count, t, op);
    b.back();
  }
  void reduce_scatter(const void* send, void* receive, std::span<const std::int64_t> counts, DType t,
                      Reduce op) override {
    memory_.begin();
    Buffer from(*this, send, total_of(counts, size()) * size_of(t));
    Buffer to = within(from, receive, counts[static_cast<std::size_t>(rank())] * size_of(t));
    inner_->reduce_scatter(from.there, to.there, counts, t, op);
    to.back();
  }
  void all_gather(const void* send, void* receive, std::span<const std::int64_t> counts, DType t) override {
    memory_.begin();
    Buffer to(*this, receive, total_of(counts, size()) * size_of(t));
    Buffer from = within(to, send, counts[static_cast<std::size_t>(rank())] * size_of(t));
    inner_->all_gather(from.there, to.there, counts, t);
    to.back();
  }
  void all_to_all(const void* send, const Blocks& sent, void* receive, const Blocks& received, DType t) override {
    memory_.begin();
    Buffer from(*this, send, sent.extent() * size_of(t)), to(*this, receive, received.extent() * size_of(t));
    inner_->all_to_all(from.there, sent, to.there, received, t);
    to.back();
  }
  void broadcast(void* data, std::int64_t count, DType t, int root) override {
    memory_.begin();
    Buffer b(*this, data, count * size_of(t));
    inner_->broadcast(b.there, count, t, root);
    b.back();
  }
  void send(const void* data, std::int64_t count, DType t, int to) override {
    memory_.begin();
    Buffer b(*this, data, count * size_of(t));
    inner_->send(b.there, count, t, to);
  }
  void recv(void* data, std::int64_t count, DType t, int from) override {
    memory_.begin();
    Buffer b(*this, data, count * size_of(t));
    inner_->recv(b.there, count, t, from);
    b.back();
  }
  void barrier() override { inner_->barrier(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<Staged>(inner_->split(color, key), memory_);
  }
  void abort(const std::string& reason) noexcept override { inner_->abort(reason); }
  Traffic traffic_of(CallKind kind) const override { return inner_->traffic_of(kind); }

 private:
  struct Buffer {
    Buffer(Staged& s, const void* data, std::int64_t n) : memory(s.memory_), host(data), bytes(n) {
      if (bytes == 0) return;
      there = memory.take(bytes);
      memory.copy(there, host, bytes);
    }
    void back() {
      if (bytes > 0) memory.copy(const_cast<void*>(host), there, bytes);
    }
    Staging& memory;
    const void* host;
    std::int64_t bytes;
    char* there = nullptr;
  };
  // A buffer that may be a part of another buffer.
  Buffer within(Buffer& all, const void* part, std::int64_t bytes) {
    const std::ptrdiff_t at = static_cast<const char*>(part) - static_cast<const char*>(all.host);
    if (at < 0 || at >= all.bytes) return {*this, part, bytes};
    Buffer inside = all;
    inside.host = part;
    inside.bytes = bytes;
    inside.there = all.there + at;
    return inside;
  }
  Communicator* inner_;
  std::unique_ptr<Communicator> own_;
  Staging& memory_;
};

}  // namespace molen::comm::suite
