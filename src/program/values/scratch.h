// The scratch of ops whose kernels say how much they need.
#pragma once

#include "program/ir/program.h"

namespace molen::program {

// Returns the scratch that the kernel of a part or of an optimizer asks for on the largest rank: the query that is
// declared beside the kernel's name (Implementation::scratch, Optimizer::whole_matrices). A run compares it with the
// memory that the kernel takes. The result is 0 for other ops.
Bytes kernel_scratch(const Program& program, const Step& step);

}  // namespace molen::program
