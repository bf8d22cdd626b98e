// Memory that buffers of thread-ranks may lie in besides the host's: how its bytes are copied and combined, by whoever
// knows the device (exec/device_memory.h).
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "comm/communicator.h"

namespace molen::comm {

// Any thread may call; what a call begins is done when `wait` has returned on the same thread. What lies in the memory
// must be there when a communicator is called: it waits for no other stream of the device.
class Memory {
 public:
  virtual ~Memory() = default;
  // Whether an address is in this memory; else it is the host's.
  virtual bool holds(const void* data) const = 0;
  // At least one side is here.
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;
  // As comm::combine (reduce.h), but for the sign of a zero and the bits of a NaN; all of it is here.
  virtual void combine(void* out, std::span<const void* const> sources, std::int64_t count, DType dtype, Reduce op) = 0;
  virtual void wait() = 0;
};

}  // namespace molen::comm
