// Scratch: the memory that an op may use while it runs, taken from one block that the memory plan has placed. Kernels
// do not allocate. Scratch counts the bytes that they take, and throws when they take more than the plan gave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"

namespace molen::math {

class Scratch {
 public:
  static constexpr std::int64_t kAlignment = 64;
  static constexpr std::int64_t aligned(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  Scratch() = default;
  Scratch(void* base, std::int64_t capacity) : base_(static_cast<char*>(base)), capacity_(capacity) {}

  // Returns memory that is 64-byte aligned, uninitialised, and valid until `reset`.
  void* take_bytes(std::int64_t bytes) {
    const std::int64_t begin = used_;
    used_ += aligned(bytes);
    if (used_ > high_water_) high_water_ = used_;
    MOLEN_CHECK(used_ <= capacity_, "an op asks for {} bytes of scratch where its program gives {}", used_, capacity_);
    return base_ + begin;
  }
  std::span<std::byte> take_span(std::int64_t bytes) {
    return {static_cast<std::byte*>(take_bytes(bytes)), static_cast<std::size_t>(bytes)};
  }
  template <class T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(count * static_cast<std::int64_t>(sizeof(T))));
  }
  void reset() { used_ = 0; }
  // Gives back everything that was taken since `used()` returned `used`.
  void rewind(std::int64_t used) { used_ = used; }
  bool owns(const void* p) const { return base_ && p >= base_ && p < base_ + capacity_; }
  std::int64_t used() const { return used_; }
  std::int64_t high_water() const { return high_water_; }
  std::int64_t capacity() const { return capacity_; }

 private:
  char* base_ = nullptr;
  std::int64_t capacity_ = 0, used_ = 0, high_water_ = 0;
};

// Gives back, at the end of its scope, the scratch that was taken in the scope.
class Rewind {
 public:
  explicit Rewind(Scratch& scratch) : scratch_(scratch), used_(scratch.used()) {}
  ~Rewind() { scratch_.rewind(used_); }
  Rewind(const Rewind&) = delete;
  Rewind& operator=(const Rewind&) = delete;

 private:
  Scratch& scratch_;
  std::int64_t used_;
};

}  // namespace molen::math
