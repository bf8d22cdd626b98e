// The type checker: follows the types of values over the mesh through a program, in the order of its schedule, by the
// local rule of each op. It calls no builder pass and reads no setting: the ops, the grid of ranks and the parts of
// units that buffers hold say all. A program that it accepts computes the right sums over the ranks, up to the kernels
// and the places of values, which the verifier follows.
#pragma once

#include <string>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// Returns why a program does not type-check, at most 20 sentences that name op, operand and axis: an operand that an
// op's rule does not admit, a state that the step leaves with another type than the next step finds, or an operand
// whose stated type (Use::type) is not the inferred one. Empty for a sound program, and for a mesh of one rank.
std::vector<std::string> type_errors(const Program& program);

// States the inferred type of each operand. Operands whose types the rules cannot infer keep the unstated type.
Program with_types(Program program);

}  // namespace molen::program
