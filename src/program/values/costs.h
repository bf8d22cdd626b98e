// The costs of an op: FLOPs, bytes and scratch. The costs follow from the op, its operands and attributes, and the
// program's sizes and grid.
#pragma once

#include "program/ir/traits.h"

namespace molen::program {

// Sets the costs of a step. The step's operands and attributes must be complete.
void set_costs(const Program& program, Step& step);

// Returns the forward FLOPs of a part on one rank, over all rows of a micro-batch and all steps of a ring.
Flops forward_flops(const arch::Architecture& local, const Traits& traits, arch::Part part);

}  // namespace molen::program
