// What ATen allocates on the host while an op of the plan runs. An allocator that we install serves it from the op's
// scratch and fails loudly beyond; what a product's library takes for itself is no tensor of ours and comes from a
// block that is kept.
#pragma once

#include <cstdint>

#include "math/scratch.h"

namespace molen::math {

// Marks a call into a product's library on this thread. oneDNN asks ATen's allocator for a scratchpad whose size is a
// matter of the processor, the version and the number of threads, so that no plan can know it: each thread keeps one
// block for it, as large as any call has asked, which belongs to the process beside the plan and is measured at start.
class LibraryCall {
 public:
  LibraryCall() { ++depth_; }
  ~LibraryCall() { --depth_; }
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;
  static bool active() { return depth_ > 0; }
  // Bytes of this thread's block.
  static std::int64_t kept();

 private:
  static thread_local int depth_;
};

// While one of these lives on a thread, what ATen allocates on that thread is taken from `scratch`, and given back
// where it lies on top; scalars that ATen wraps into tensors (16 bytes at most) have kStray bytes of their own, taken
// at once. Without scratch nothing may be allocated. Outside, ATen allocates as always.
class AllocationGuard {
 public:
  static constexpr std::int64_t kStray = 1024;

  explicit AllocationGuard(Scratch* scratch);
  ~AllocationGuard();
  AllocationGuard(const AllocationGuard&) = delete;
  AllocationGuard& operator=(const AllocationGuard&) = delete;

  static void install();  // once per process

  // Bytes that no guard and no library's block served since the process began, on all threads: what tests hold at 0.
  static std::int64_t unserved();
};

}  // namespace molen::math
