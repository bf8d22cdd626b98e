// Control of ATen's allocations on the host while an op of the plan runs. An allocator that molen installs takes their
// memory from the op's scratch, and throws when the scratch is exceeded. Memory that the GEMM library takes for itself
// is no tensor of the plan, and comes from a block that each thread keeps.
#pragma once

#include <cstdint>

#include "math/scratch.h"

namespace molen::math {

// Marks a call into the GEMM library on this thread. oneDNN asks ATen's allocator for a scratchpad whose size depends
// on the processor, the version and the number of threads, so no plan can know it. Each thread keeps one block for it,
// as large as the largest request so far. The block belongs to the process and not to the plan, and its size is
// measured when the process starts.
class LibraryCall {
 public:
  LibraryCall() { ++depth_; }
  ~LibraryCall() { --depth_; }
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;
  static bool active() { return depth_ > 0; }
  // Returns the size of this thread's block in bytes.
  static std::int64_t kept();

 private:
  static thread_local int depth_;
};

// During the lifetime of a guard, ATen's allocations on its thread are taken from `scratch`, and freed blocks are
// returned when they are the topmost. The guard takes kStray bytes at once, for scalars that ATen wraps into tensors
// (16 bytes at most). When `scratch` is null, nothing may be allocated. Without a guard, ATen allocates as usual.
class AllocationGuard {
 public:
  static constexpr std::int64_t kStray = 1024;

  explicit AllocationGuard(Scratch* scratch);
  ~AllocationGuard();
  AllocationGuard(const AllocationGuard&) = delete;
  AllocationGuard& operator=(const AllocationGuard&) = delete;

  static void install();  // once per process

  // Returns the bytes that neither a guard nor a library's block served since the process began, on all threads. Tests
  // require 0.
  static std::int64_t unserved();
};

}  // namespace molen::math
