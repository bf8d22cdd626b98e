// The verifier's own rules for the operands of an op. They share with the builder only the declarations of parts and of
// optimizers. They do not use the builder's code that says which layout needs which operand (values/signature.h), so
// that the verifier refuses a mistake in that code.
#pragma once

#include <vector>

#include "program/ir/traits.h"
#include "program/values/operands.h"

namespace molen::program {

// Returns the operands that `op` has in a program with these traits, in the order of the text form. `unit` is the unit
// of the operands, -1 when they name none.
std::vector<Operand> operands_needed(const Program& program, const Traits& traits, const Op& op, int unit);

}  // namespace molen::program
