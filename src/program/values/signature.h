// The operands that the builder gives to each op. The parser and `locate` use them too. The verifier has its own rules
// (verify/operand_rules.h).
#pragma once

#include <vector>

#include "program/ir/traits.h"
#include "program/values/of_op.h"
#include "program/values/operands.h"

namespace molen::program {

struct Signature {
  std::vector<Operand> operands;
  const Operand& operand(Arg arg) const;  // throws Error when there is no such operand
};

// Returns the operands of `op` in a program of this architecture and these traits. `unit` is the unit that an
// OptimizerStep, SumSquares or collective works on, which follows from the buffer that the step names.
Signature signature(const Program& program, const Traits& traits, const Op& op, int unit);

}  // namespace molen::program
