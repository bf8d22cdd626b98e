// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
// A value is a pure function of (key, counter), so every layout draws the same bits for the same global element.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace molen {

using Philox4 = std::array<std::uint32_t, 4>;

// Returns one block of four 32-bit values. `counter` is spread over the two low words, `stream` over the two high ones.
Philox4 philox(std::uint64_t key, std::uint64_t counter, std::uint64_t stream = 0);

// Returns the key of a named stream. It depends on the seed and on every byte of the name.
std::uint64_t stream_key(std::uint64_t seed, std::string_view name);

// Return a uniform value in [0, 1) with 53 bits, and a standard normal value (by Box-Muller). Both are functions of
// (key, index) alone.
double uniform_at(std::uint64_t key, std::uint64_t index);
double normal_at(std::uint64_t key, std::uint64_t index);

// Returns the value at `index` of a pseudo-random permutation of [0, n), without a table (a cycle-walking Feistel
// network). Throws if index >= n.
std::uint64_t permute_at(std::uint64_t key, std::uint64_t index, std::uint64_t n);

}  // namespace molen
