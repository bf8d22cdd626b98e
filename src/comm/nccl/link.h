// One NCCL communicator, and the code that waits for it. Every call that may hang, fail or be aborted goes through
// `Link`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/dtype.h"
#include "comm/nccl/api.h"

namespace molen::comm::nccl {

// A failure that all ranks of a world in this process share, with the groups that were split off: the first failure
// ends all of them.
class Failure {
 public:
  void set(const std::string& reason) noexcept;
  bool is_set() const { return set_.load(std::memory_order_acquire); }
  void check() const;  // throws Error with the reason

 private:
  mutable std::mutex mutex_;
  std::string reason_;
  std::atomic<bool> set_ = false;
};

// Returns the same object for the same id, while any holder keeps it alive.
std::shared_ptr<Failure> failure_of(const UniqueId& id);

// This rank's GPU: the stream of all its communicators and a scratch buffer. Used by one thread at a time.
class Device {
 public:
  Device(std::shared_ptr<const Api> api, int ordinal, NcclOptions options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void use() const;                  // makes it the calling thread's current device
  void* scratch(std::size_t bytes);  // valid until the next call
  // Throws Error unless the device can reach `bytes` at `data`.
  void check_memory(const void* data, std::int64_t bytes) const;
  void check(int error, const char* what) const;  // `what`: the runtime's function without "cuda" or "hip"

  const std::shared_ptr<const Api> api;
  const int ordinal;
  const NcclOptions options;
  Stream stream = nullptr;

 private:
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
};

// The current operation of a rank, for messages.
inline constexpr std::int64_t kNone = INT64_MIN;
struct Call {
  const char* kind;
  std::int64_t count = kNone;  // elements
  DType dtype = DType::kU8;
  int peer = -1;
  std::string text() const;
};

class Link {
 public:
  Link(std::shared_ptr<Device> device, std::shared_ptr<Failure> failure, int rank, int size)
      : device_(std::move(device)), failure_(std::move(failure)), rank_(rank), size_(size) {}
  ~Link();  // finalises, for a few seconds at most; aborts after a failure
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Both are collective, and return when the communicator can be used.
  void init(const UniqueId& id);
  void split_from(Link& parent, int color, int key);

  // Ends the communicator and throws Error unless `code` is success or "in progress".
  void check(int code, const Call& call);
  void settle(const Call& call);       // waits until NCCL has accepted the operation
  void wait_stream(const Call& call);  // waits until the device has completed it
  // Checks for a failure of any rank. A failure ends this communicator and its operations on the device.
  void check_failure();

  Comm comm() const { return comm_; }

 private:
  [[noreturn]] void fail(const std::string& what, const Call& call);
  std::string why(int code) const;
  void verify();
  void kill() noexcept;

  std::shared_ptr<Device> device_;
  std::shared_ptr<Failure> failure_;
  int rank_, size_;
  Comm comm_ = nullptr;
};

}  // namespace molen::comm::nccl
