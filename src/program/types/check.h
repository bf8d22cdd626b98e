// The type checker. It follows the types of values over the mesh through a program, in the order of its schedule, by
// the local rule of each op. It calls no builder pass and reads no setting: it needs only the ops, the grid of ranks
// and the parts of units that buffers hold. A program that it accepts computes the right sums over the ranks, provided
// that the kernels are right and that values are in the right places. The verifier checks those places.
#pragma once

#include <string>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// Returns why a program does not type-check, as at most 20 sentences that name op, operand and axis. There are three
// kinds of errors: an op's rule does not admit an operand, the step leaves a state with another type than the next step
// finds, or the stated type of an operand (Use::type) is not the inferred one. A program that states no types
// (Program::states_types) has no errors of the third kind. The result is empty for a sound program,
// and for a mesh of one rank.
std::vector<std::string> type_errors(const Program& program);

// Returns the program with the inferred type of each operand stated. Operands whose types the rules cannot infer keep
// the unstated type.
Program with_types(Program program);

}  // namespace molen::program
