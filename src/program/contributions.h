// What adds to the gradient of each unit in a step: the backwards of its parts, in halves (input, weights), for each
// micro-batch and chunk of the head.
#pragma once

#include <cstddef>
#include <vector>

#include "program/program.h"

namespace molen::program {

// The halves of gradients that an op makes, 0 and 1: norms' own come with the input's half. A whole backward makes
// both; where a half has no gradient of its own, the other makes both.
std::vector<int> halves_of(const Program& program, const Compute& op);

// How many halves the ops of a body add to each unit's gradient.
std::vector<std::size_t> contributions_in(const Program& program, const Body& body);

// How many halves all ops of a step add to a unit's gradient.
std::size_t expected_contributions(const Program& program, int unit);

}  // namespace molen::program
