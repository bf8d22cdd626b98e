#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace molen::comm {
namespace {

constexpr std::int64_t kBlock = 2048;  // elements combined at a time: fit in the L1 cache

float widen_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN.
std::uint16_t narrow_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float widen_f16(std::uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<float>(value);
}
std::uint16_t narrow_f16(float value) {
  const auto half = static_cast<_Float16>(value);
  std::uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

template <class T>
void apply(T* __restrict target, const T* __restrict source, std::int64_t n, Reduce op) {
  // NaN must survive max and min: a comparison that is false for NaN keeps it.
  switch (op) {
    case Reduce::kSum:
      for (std::int64_t i = 0; i < n; ++i) target[i] = static_cast<T>(target[i] + source[i]);
      return;
    case Reduce::kMax:
      for (std::int64_t i = 0; i < n; ++i)
        target[i] = source[i] <= target[i] || is_nan(target[i]) ? target[i] : source[i];
      return;
    case Reduce::kMin:
      for (std::int64_t i = 0; i < n; ++i)
        target[i] = source[i] >= target[i] || is_nan(target[i]) ? target[i] : source[i];
      return;
  }
}

template <class T>
void combine_plain(void* out, std::span<const void* const> sources, std::int64_t count, Reduce op) {
  std::array<T, kBlock> block;
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t n = std::min(kBlock, count - at);
    std::memcpy(block.data(), static_cast<const T*>(sources[0]) + at, static_cast<std::size_t>(n) * sizeof(T));
    for (std::size_t s = 1; s < sources.size(); ++s) apply(block.data(), static_cast<const T*>(sources[s]) + at, n, op);
    std::memcpy(static_cast<T*>(out) + at, block.data(), static_cast<std::size_t>(n) * sizeof(T));
  }
}

template <float Widen(std::uint16_t), std::uint16_t Narrow(float)>
void combine_half(void* out, std::span<const void* const> sources, std::int64_t count, Reduce op) {
  std::array<float, kBlock> block, other;
  for (std::int64_t at = 0; at < count; at += kBlock) {
    const std::int64_t n = std::min(kBlock, count - at);
    const auto load = [&](const void* from, std::array<float, kBlock>& to) {
      for (std::int64_t i = 0; i < n; ++i)
        to[static_cast<std::size_t>(i)] = Widen(static_cast<const std::uint16_t*>(from)[at + i]);
    };
    load(sources[0], block);
    for (std::size_t s = 1; s < sources.size(); ++s) {
      load(sources[s], other);
      apply(block.data(), other.data(), n, op);
    }
    for (std::int64_t i = 0; i < n; ++i)
      static_cast<std::uint16_t*>(out)[at + i] = Narrow(block[static_cast<std::size_t>(i)]);
  }
}

}  // namespace

void combine(void* out, std::span<const void* const> sources, std::int64_t count, DType dtype, Reduce op) {
  switch (dtype) {
    case DType::kF64:
      return combine_plain<double>(out, sources, count, op);
    case DType::kF32:
      return combine_plain<float>(out, sources, count, op);
    case DType::kI64:
      return combine_plain<std::int64_t>(out, sources, count, op);
    case DType::kI32:
      return combine_plain<std::int32_t>(out, sources, count, op);
    case DType::kU8:
      return combine_plain<std::uint8_t>(out, sources, count, op);
    case DType::kBF16:
      return combine_half<widen_bf16, narrow_bf16>(out, sources, count, op);
    case DType::kF16:
      return combine_half<widen_f16, narrow_f16>(out, sources, count, op);
    default:
      check_reducible(dtype);
  }
}

void check_reducible(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kI64:
    case DType::kI32:
    case DType::kU8:
    case DType::kBF16:
    case DType::kF16:
      return;
    default:
      throw Error("reduction of {} is not supported", name_of(dtype));
  }
}

std::int64_t offset_of(std::span<const std::int64_t> counts, int rank) {
  std::int64_t sum = 0;
  for (int r = 0; r < rank; ++r) sum += counts[static_cast<std::size_t>(r)];
  return sum;
}

std::int64_t total_of(std::span<const std::int64_t> counts, int ranks) {
  if (static_cast<int>(counts.size()) != ranks) throw Error("{} counts for {} ranks", counts.size(), ranks);
  for (std::size_t r = 0; r < counts.size(); ++r)
    if (counts[r] < 0) throw Error("a block of {} elements for rank {}", counts[r], r);
  return offset_of(counts, ranks);
}

void accumulate(void* target, const void* source, std::int64_t count, DType dtype, Reduce op) {
  const std::array<const void*, 2> both{target, source};
  combine(target, both, count, dtype, op);
}

}  // namespace molen::comm
