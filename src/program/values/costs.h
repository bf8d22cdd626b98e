// The costs of an op: FLOPs, bytes and scratch. The costs follow from the op, its operands and attributes, and the
// program's sizes and grid.
#pragma once

#include <optional>

#include "program/ir/traits.h"
#include "program/parts/sizes.h"

namespace molen::program {

// Sets the costs of a step. The step's operands and attributes must be complete.
void set_costs(const Program& program, Step& step);

// Returns the sizes of the matrix product of the forward of a step's part, on the largest rank; nothing for a step
// without one. `count` products with as many FLOPs make up the step.
struct StepProducts {
  parts::MatrixProduct forward;
  int count = 0;
};
std::optional<StepProducts> products_of(const Program& program, const Step& step);

// Returns the forward FLOPs of a part on one rank, over all rows of a micro-batch and all steps of a ring.
Flops forward_flops(const arch::Architecture& local, const Traits& traits, arch::Part part);

}  // namespace molen::program
