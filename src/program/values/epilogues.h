// The epilogues of ops: work on memory that an op does besides the work that its kind names. Epilogues follow from the
// op, its operands and their accesses, as costs do. For example, a reduce-scatter adds to its target if a text says
// `updates=to:x` instead of `writes=to:x`.
#pragma once

#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// Returns the epilogues of a step on the rank at 0, in the order of Epilogue. The epilogue that a part declares
// (PartDeclaration::assembled) is not included; set_costs adds it.
std::vector<EpilogueCost> epilogues_of(const Program& program, const Step& step);

}  // namespace molen::program
