#include "checkpoint/digest.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace molen::checkpoint {
namespace {

// A bijection of 64 bits in which each input bit changes about half of the output's (multiply and fold, twice).
inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
  x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
  return x ^ (x >> 32);
}

template <class Word>
void add_words(std::array<std::uint64_t, 2>& lanes, std::uint64_t key, std::int64_t offset, std::int64_t count,
               const void* data) {
  const auto* bytes = static_cast<const char*>(data);
  std::uint64_t first = 0, second = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, bytes + i * static_cast<std::int64_t>(sizeof(Word)), sizeof(Word));
    const std::uint64_t place = key + static_cast<std::uint64_t>(offset + i + 1) * 0x9E3779B97F4A7C15u;
    const std::uint64_t mixed = mix(mix(place) + word);
    first += mixed;
    second += (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9u ^ (mixed << 17);
  }
  lanes[0] += first;
  lanes[1] += second;
}

}  // namespace

void StateDigest::add(std::string_view tensor, DType dtype, const std::vector<std::int64_t>& shape, std::int64_t offset,
                      std::int64_t count, const void* data) {
  const std::string identity = fmt::format("{}|{}|{}", tensor, name_of(dtype), fmt::join(shape, ","));
  const std::uint64_t key = XXH3_64bits(identity.data(), identity.size());
  switch (size_of(dtype)) {
    case 1:
      return add_words<std::uint8_t>(lanes_, key, offset, count, data);
    case 2:
      return add_words<std::uint16_t>(lanes_, key, offset, count, data);
    case 4:
      return add_words<std::uint32_t>(lanes_, key, offset, count, data);
    default:
      return add_words<std::uint64_t>(lanes_, key, offset, count, data);
  }
}

void StateDigest::merge(const StateDigest& other) {
  lanes_[0] += other.lanes_[0];
  lanes_[1] += other.lanes_[1];
}

StateDigest StateDigest::from_lanes(const std::array<std::uint64_t, 2>& lanes) {
  StateDigest digest;
  digest.lanes_ = lanes;
  return digest;
}

std::string StateDigest::hex() const {
  return fmt::format("{:016x}{:016x}", lanes_[0], lanes_[1]);
}

StateDigest state_digest(const Checkpoint& checkpoint) {
  StateDigest digest;
  std::vector<char> buffer;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const std::int64_t size = size_of(tensor.dtype), step = kBlockBytes / size;
    for (std::int64_t at = 0; at < tensor.elements(); at += step) {
      const std::int64_t count = std::min(step, tensor.elements() - at);
      buffer.resize(static_cast<std::size_t>(count * size));
      checkpoint.read(name, at, count, buffer.data());
      digest.add(name, tensor.dtype, tensor.shape, at, count, buffer.data());
    }
  }
  return digest;
}

}  // namespace molen::checkpoint
