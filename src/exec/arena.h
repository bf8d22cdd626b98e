// The arena: one block of memory per rank in which the plan has placed every buffer and every op's scratch.
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
  // Zero-filled. Throws Error with the size if the device has no such memory. `pinned`: of the host, where a device
  // reaches it by itself.
  Arena(Bytes size, at::Device device, bool pinned = false);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Bytes size() const { return size_; }
  at::Device device() const { return device_; }
  // What the system has given of it: pages that were written or read since it was made, with the pages beside them
  // where it gives large ones; less what it has moved out since. Nothing where memory is not given page by page (a
  // device's, pinned memory).
  std::optional<Bytes> touched() const;
  void* at(std::int64_t offset) const { return static_cast<char*>(base_) + offset; }
  // The device of the arena that an address lies in; nothing where it lies in none of this process.
  static std::optional<at::Device> device_of(const void* data);
  // A view of `elements` elements; the arena outlives it.
  at::Tensor view(std::int64_t offset, DType dtype, at::IntArrayRef shape) const;

 private:
  void take(bool pinned);

  Bytes size_;
  at::Device device_;
  void* base_ = nullptr;
  at::Tensor block_;  // owns the memory on an accelerator, and what is pinned
};

}  // namespace molen::exec
