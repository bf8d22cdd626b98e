// Counts the contributions to the gradient of each unit in a step. A contribution is one half (input or weights) of the
// backward of a part, for one micro-batch and one chunk of the head.
#pragma once

#include <cstddef>
#include <vector>

#include "program/ir/traits.h"

namespace molen::program {

// Returns which halves of gradients an op makes: 0 (input; it includes the gradients of norm weights) and 1 (weights).
// A whole backward makes both, and so does the first half of a part without halves. When a part has no gradient in one
// half, the other half counts as both.
std::vector<int> halves_of(const Program& program, const Compute& op);

// Returns the number of halves that the ops of a body add to each unit's gradient.
std::vector<std::size_t> contributions_in(const Program& program, const Body& body);

// Returns the number of halves that all ops of a step add to a unit's gradient.
std::size_t expected_contributions(const Program& program, const Traits& traits, int unit);

}  // namespace molen::program
