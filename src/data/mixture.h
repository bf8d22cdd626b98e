// Chooses the component of a weighted mixture for a global sample: a pure function of the sample's index, without
// tables.
//
// The components are the leaves of a binary tree. At a node whose children weigh L and R (integers), the n-th sample
// that reaches the node goes left iff floor((n+1) L / (L+R)) > floor(n L / (L+R)). The left child has then seen floor(n
// L / (L+R)) samples before it. So among the first N samples a component's count differs from its exact share by less
// than the tree's depth (1 for two components), at every N. Any batch holds nearly the exact mixture, and no random
// draw is needed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace molen::data {

class Mixture {
 public:
  // Weights > 0 in any unit; throws UsageError otherwise. They are rounded to multiples of 2^-32 of their sum.
  explicit Mixture(std::span<const double> weights);

  struct Place {
    int component;
    std::int64_t index;  // samples of this component that come earlier
  };
  Place at(std::int64_t sample) const;
  int components() const { return static_cast<int>(prefix_.size()) - 1; }

 private:
  std::vector<std::uint64_t> prefix_;  // running sums of the integer weights
};

}  // namespace molen::data
