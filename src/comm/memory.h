// Device memory that may hold the buffers of thread-ranks. The code that knows the device (exec/device_memory.h)
// implements how its bytes are copied and combined.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "comm/communicator.h"

namespace molen::comm {

// Any thread may call. An operation is complete when `wait` has returned on the same thread. A communicator waits for
// no other stream of the device, so data in this memory must be complete before the call.
class Memory {
 public:
  virtual ~Memory() = default;
  // Returns whether an address is in this memory; otherwise it is host memory.
  virtual bool holds(const void* data) const = 0;
  // Copies `bytes`. At least one of the two buffers is in this memory.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  // Computes what comm::combine (reduce.h) does, except that the sign of a zero and the bits of a NaN may differ. All
  // buffers are in this memory.
  virtual void combine(void* out, std::span<const void* const> sources, std::int64_t count, DType dtype, Reduce op) = 0;
  virtual void wait() = 0;
};

}  // namespace molen::comm
