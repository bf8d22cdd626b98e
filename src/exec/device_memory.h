// Collectives of thread-ranks in the memory of a device that they share: copies and sums by ATen, on the calling
// thread's stream.
#pragma once

#include <c10/core/Device.h>

#include "comm/memory.h"

namespace molen::exec {

class DeviceMemory final : public comm::Memory {
 public:
  // `device` is the device of the ranks' arenas. It may be the host, so that the same code runs without a device.
  explicit DeviceMemory(at::Device device) : device_(device) {}

  bool holds(const void* data) const override;  // true when an arena on the device contains `data`
  void copy(void* to, const void* from, std::int64_t bytes) override;
  void combine(void* out, std::span<const void* const> sources, std::int64_t count, DType dtype,
               comm::Reduce op) override;
  void wait() override;

 private:
  at::Device device_of(const void* data) const;
  at::Device device_;
};

}  // namespace molen::exec
