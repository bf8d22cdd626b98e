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

void StateDigest::add(std::string_view tensor, DType dtype, const std::vector<std::int64_t>& shape, const Box& box,
                      const void* data) {
  if (shape.empty()) return add(tensor, dtype, shape, 0, 1, data);
  // Adds row by row, or all at once when the rows are contiguous.
  const Box whole = whole_box(shape);
  std::size_t inner = shape.size() - 1;
  while (inner > 0 && box.sizes[inner] == shape[inner]) --inner;
  std::int64_t run = 1;
  for (std::size_t d = inner; d < shape.size(); ++d) run *= box.sizes[d];
  const std::int64_t runs = box.elements() / run;
  const auto* bytes = static_cast<const char*>(data);
  for (std::int64_t r = 0; r < runs; ++r) {
    const Box row = boxes_of_run(box, r * run, run).front();
    add(tensor, dtype, shape, position_in(whole, row), run, bytes + r * run * size_of(dtype));
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
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const Box whole = whole_box(tensor.shape);
    checkpoint.read(name, {&whole, 1},
                    [&, &name = name, &tensor = tensor](std::size_t, const Box& part, const Box&, const void* data) {
                      digest.add(name, tensor.dtype, tensor.shape, part, data);
                    });
  }
  return digest;
}

}  // namespace molen::checkpoint
