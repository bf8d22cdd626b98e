// The verifier's own rules of what operands an op has. They share with the builder the declarations of parts and of
// optimizers, and no code that says which layout needs which operand (values/signature.h): a mistake there is refused
// here.
#pragma once

#include <vector>

#include "program/ir/traits.h"
#include "program/values/operands.h"

namespace molen::program {

// Returns the operands that `op` has in a program with these traits, in the order of the text form. `unit` is that of
// its operands, -1 when they name none.
std::vector<Operand> operands_needed(const Program& program, const Traits& traits, const Op& op, int unit);

}  // namespace molen::program
