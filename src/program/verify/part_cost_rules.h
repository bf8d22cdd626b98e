// The verifier's own rules for the costs of parts: FLOPs from the matrices that an op multiplies, bytes from its
// operands. They read neither the FLOPs nor the bytes that a part's declaration states.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "arch/parameters.h"
#include "program/verify/amounts.h"

namespace molen::program {

// Elements of parameters, on the rank with the most of them.
struct ParameterSizes {
  std::int64_t matrices = 0, norms = 0, biases = 0;
  std::int64_t all() const { return matrices + norms + biases; }
};

class PartCostRules {
 public:
  PartCostRules(const Program& program, const Traits& traits);

  double flops(const Compute& op, const Amounts& amounts) const;
  std::int64_t moved(const Compute& op, const Amounts& amounts) const;
  // Returns the bytes that cross memory when the heads of keys and values that the rank needs are copied out of all of
  // them, and gradients back; 0 if the op copies no heads.
  std::int64_t assembled(const Compute& op, const Amounts& amounts) const;

 private:
  // Returns the elements of a role in the layer that the op works on. For keys and values, it counts the heads that
  // the rank needs.
  std::int64_t elements_of(const Compute& op, arch::Role role) const;
  // Return the sizes of the parameters of an op's part, or of its tile; of those that the op reads; and of those whose
  // gradients it makes.
  ParameterSizes sizes_of(const Compute& op, const Amounts& amounts) const;
  ParameterSizes read_by(const Compute& op, const Amounts& amounts) const;
  ParameterSizes gradients_of(const Compute& op, const Amounts& amounts) const;
  std::int64_t bytes_used(const Compute& op, const Need& need, const Amounts& amounts) const;
  std::int64_t attention_bytes(const Compute& op, const Need& need, const Amounts& amounts) const;
  double pairs(const Compute& op) const;

  static constexpr std::size_t kRoles = static_cast<std::size_t>(arch::Role::kHead) + 1;
  const Program& p_;
  const Traits& t_;
  std::vector<std::array<std::int64_t, kRoles>> elements_;  // by layer, after the parameters outside of the layers
  std::vector<double> pairs_;  // of one sequence, by step of the ring: (query, key) for the keys of one context rank
  bool copies_heads_ = false;
};

}  // namespace molen::program
