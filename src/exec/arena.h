// The arena: one block of memory per rank, in which the plan has placed every buffer and every op's scratch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "base/units.h"

namespace molen::exec {

at::ScalarType to_aten(DType dtype);

class Arena {
 public:
  // Makes an arena filled with zeros. Throws Error with the size when the device does not have that much memory. With
  // `pinned`, the arena is host memory that a device can access directly.
  Arena(Bytes size, at::Device device, bool pinned = false);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Bytes size() const { return size_; }
  at::Device device() const { return device_; }
  // Returns how much of the arena the system has allocated: the pages that were written or read since the arena was
  // made. When the system allocates large pages, the neighbours of these pages count too. Pages that were swapped out
  // since do not count. Returns nothing when memory is not allocated page by page, as on a device or in pinned memory.
  std::optional<Bytes> touched() const;
  void* at(std::int64_t offset) const { return static_cast<char*>(base_) + offset; }
  // Returns the device of the arena that contains an address; or nothing when no arena of this process contains it.
  static std::optional<at::Device> device_of(const void* data);
  // Returns a view with the given shape; the arena must outlive it.
  at::Tensor view(std::int64_t offset, DType dtype, at::IntArrayRef shape) const;

 private:
  void take(bool pinned);

  Bytes size_;
  at::Device device_;
  void* base_ = nullptr;
  at::Tensor block_;  // owns accelerator memory and pinned memory
};

}  // namespace molen::exec
