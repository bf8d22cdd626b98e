// Divides a power among devices whose limits can be set. Pure and deterministic.
#pragma once

#include <span>
#include <vector>

namespace molen::manage {

// A device in watts: its limit may be anything from `least` to `most`, and it would draw `wants`, which counts within
// these bounds. 0 <= least <= most.
struct Demand {
  double least = 0, most = 0, wants = 0;
};

struct Shares {
  std::vector<double> watts;  // the limits, in the order of the demands
  bool met = true;            // false: already the least limits exceed the power, and each device has its least one
};

// Returns limits whose sum is at most `power`, as far as the least limits allow it. Each device gets its least limit.
// Up to the sum of what they want, each then gets the same part of (wants - least); beyond it, each gets what it wants
// and the same part of (most - wants). So the limits grow with the power, a device's limit grows with what it wants,
// and nothing is left over while a device is below its greatest limit. Throws UsageError for demands out of order.
Shares divide_power(double power, std::span<const Demand> demands);

}  // namespace molen::manage
