// Branch-free loops over bit patterns, which the compiler turns into vector code.
#include "checkpoint/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace molen::checkpoint {
namespace {

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet =
      (bits >> 16) | 0x40u;  // else a NaN whose payload is only in the bits cut off would become infinity
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

float from_fp16(std::uint16_t half) {
  const std::uint32_t magnitude = half & 0x7FFFu, sign = (half & 0x8000u) << 16;
  // After the shift, the exponent is too small by 127 - 15. The multiplication corrects it, for subnormal numbers too.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special = (magnitude << 13) | 0x7F800000u;
  return std::bit_cast<float>((magnitude >= 0x7C00u ? special : finite) | sign);
}

std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t rebased = magnitude - 0x38000000u;  // exponent bias 127 -> 15
  const std::uint32_t normal = (rebased + 0xFFFu + ((rebased >> 13) & 1u)) >> 13;
  // Below 2^-14 the spacing of fp16 is 2^-24, which is the spacing of floats just above one half. So the addition
  // itself rounds.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u;
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477FF000u ? 0x7C00u : result;  // 65520 and above
  result = magnitude > 0x7F800000u ? 0x7E00u | (magnitude >> 13 & 0x3FFu) : result;
  return static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000u));
}

// Rounds to float by rounding to odd: a second rounding, to fewer bits, then equals a single rounding.
float narrow_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (static_cast<double>(nearest) == value || std::isnan(value) || (bits & 1u)) return nearest;
  const bool away = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  return std::bit_cast<float>(away ? bits - 1 : bits + 1);
}

template <class From, class To, class F>
void each(const void* source, void* destination, std::int64_t count, F&& function) {
  const auto* in = static_cast<const From*>(source);
  auto* out = static_cast<To*>(destination);
  for (std::int64_t i = 0; i < count; ++i) out[i] = function(in[i]);
}

void to_float(DType from, const void* source, float* destination, std::int64_t count, bool odd) {
  if (from == DType::kBF16) return each<std::uint16_t, float>(source, destination, count, from_bf16);
  if (from == DType::kF16) return each<std::uint16_t, float>(source, destination, count, from_fp16);
  if (from == DType::kF32)
    return static_cast<void>(std::memcpy(destination, source, static_cast<std::size_t>(count) * 4));
  if (odd) return each<double, float>(source, destination, count, narrow_to_odd);
  each<double, float>(source, destination, count, [](double x) { return static_cast<float>(x); });
}

void from_float(const float* source, DType to, void* destination, std::int64_t count) {
  if (to == DType::kBF16) return each<float, std::uint16_t>(source, destination, count, to_bf16);
  if (to == DType::kF16) return each<float, std::uint16_t>(source, destination, count, to_fp16);
  if (to == DType::kF64)
    return each<float, double>(source, destination, count, [](float x) { return static_cast<double>(x); });
  std::memcpy(destination, source, static_cast<std::size_t>(count) * 4);
}

}  // namespace

bool is_floating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

void convert(DType from, const void* source, DType to, void* destination, std::int64_t count) {
  MOLEN_CHECK(is_floating(from) && is_floating(to), "conversion from {} to {}", name_of(from), name_of(to));
  if (count == 0) return;
  if (from == to)
    return static_cast<void>(std::memcpy(destination, source, static_cast<std::size_t>(count * size_of(from))));
  if (to == DType::kF32) return to_float(from, source, static_cast<float*>(destination), count, false);
  if (from == DType::kF32) return from_float(static_cast<const float*>(source), to, destination, count);
  constexpr std::int64_t kChunk = 4096;  // the intermediate floats stay in the cache
  std::vector<float> between(kChunk);
  for (std::int64_t at = 0; at < count; at += kChunk) {
    const std::int64_t n = std::min(kChunk, count - at);
    to_float(from, static_cast<const char*>(source) + at * size_of(from), between.data(), n, true);
    from_float(between.data(), to, static_cast<char*>(destination) + at * size_of(to), n);
  }
}

}  // namespace molen::checkpoint
