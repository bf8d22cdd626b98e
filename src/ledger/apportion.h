// Whole numbers in proportion to real ones.
#pragma once

#include <cstdint>
#include <vector>

namespace molen::ledger {

// Rounds `shares`, which are not negative and add up to `total` but for rounding, to whole numbers that add up to
// `total` exactly, by the method of the largest remainder: each share is rounded down, and those that lost most get one
// more. A share above 2^53 has no fraction; what the rounding of its double left goes to, or comes from, the largest
// share. Throws Error when a share is negative or not finite, and when there is no share.
std::vector<std::int64_t> apportion(std::int64_t total, const std::vector<double>& shares);

}  // namespace molen::ledger
