#include "arch/alibi.h"

#include <bit>
#include <cmath>

namespace molen::arch {
namespace {

// Returns 2^(-8/n), 2^(-16/n), ..., 2^-8.
std::vector<double> geometric(std::int64_t n) {
  std::vector<double> slopes;
  for (std::int64_t i = 1; i <= n; ++i)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(n)));
  return slopes;
}

}  // namespace

std::vector<double> alibi_slopes(std::int64_t heads) {
  const auto below = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<double> slopes = geometric(below);
  const std::vector<double> finer = geometric(2 * below);
  for (std::int64_t i = 0; below + i < heads; ++i) slopes.push_back(finer[static_cast<std::size_t>(2 * i)]);
  return slopes;
}

}  // namespace molen::arch
