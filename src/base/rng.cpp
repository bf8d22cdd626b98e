#include "base/rng.h"

#include <xxhash.h>

#include <bit>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace molen {
namespace {

constexpr std::uint32_t kMul0 = 0xD2511F53, kMul1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

double to_unit(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

Philox4 philox(std::uint64_t key, std::uint64_t counter, std::uint64_t stream) {
  Philox4 c{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
            static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kMul0) * c[0];
    const std::uint64_t p1 = static_cast<std::uint64_t>(kMul1) * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

std::uint64_t stream_key(std::uint64_t seed, std::string_view name) {
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

double uniform_at(std::uint64_t key, std::uint64_t index) {
  const Philox4 r = philox(key, index);
  return to_unit(r[0], r[1]);
}

double normal_at(std::uint64_t key, std::uint64_t index) {
  const Philox4 r = philox(key, index, 1);
  const double u = 1.0 - to_unit(r[0], r[1]);  // in (0, 1], so the logarithm is finite
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * to_unit(r[2], r[3]));
}

std::uint64_t permute_at(std::uint64_t key, std::uint64_t index, std::uint64_t n) {
  MOLEN_CHECK(index < n, "permutation index {} of {}", index, n);
  if (n == 1) return 0;
  // The network permutes 2^(2 half) values, at least n and less than 4 n. So the loop takes fewer than four rounds on
  // average until the index is below n.
  const int half = (std::bit_width(n - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half, right = index & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const Philox4 r = philox(key, right, round + 2);
      const std::uint64_t f = (static_cast<std::uint64_t>(r[0]) << 32 | r[1]) & mask;
      const std::uint64_t next = left ^ f;
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= n);
  return index;
}

}  // namespace molen
