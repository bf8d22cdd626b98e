// A digest of tensors that depends on their contents alone, and not on how they are cut into parts or in which order
// the parts are added.
//
// Each element contributes mix(key(name, dtype, shape), position, bits). The digest is the sum of these modulo 2^64, in
// two lanes. A sum commutes, so each rank digests its own elements and the results are added. It detects errors, not
// forgeries.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.h"
#include "base/dtype.h"

namespace molen::checkpoint {

class StateDigest {
 public:
  // Adds `count` elements from flattened position `offset` of the tensor.
  void add(std::string_view tensor, DType dtype, const std::vector<std::int64_t>& shape, std::int64_t offset,
           std::int64_t count, const void* data);
  // Adds a box of the tensor, in row-major order.
  void add(std::string_view tensor, DType dtype, const std::vector<std::int64_t>& shape, const Box& box,
           const void* data);
  void merge(const StateDigest& other);
  // The lanes, for a reduction over ranks by addition modulo 2^64.
  const std::array<std::uint64_t, 2>& lanes() const { return lanes_; }
  static StateDigest from_lanes(const std::array<std::uint64_t, 2>& lanes);
  std::string hex() const;  // 32 digits

 private:
  std::array<std::uint64_t, 2> lanes_{};
};

class Checkpoint;
// Returns the digest of all tensors of a checkpoint.
StateDigest state_digest(const Checkpoint& checkpoint);

}  // namespace molen::checkpoint
