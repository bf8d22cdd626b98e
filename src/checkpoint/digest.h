// A digest of tensors that depends on their contents alone: not on the order in which parts are added, nor on how they
// were cut.
//
// Each element gives mix(key(name, dtype, shape), position, bits); the digest is the sum of these modulo 2^64, in two
// lanes. A sum commutes, so ranks digest what they hold and add the results. It finds errors, not forgeries.
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
  // `count` elements from flattened position `offset` of the tensor.
  void add(std::string_view tensor, DType dtype, const std::vector<std::int64_t>& shape, std::int64_t offset,
           std::int64_t count, const void* data);
  // A box of the tensor, in row-major order.
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
// Of all tensors of a checkpoint.
StateDigest state_digest(const Checkpoint& checkpoint);

}  // namespace molen::checkpoint
