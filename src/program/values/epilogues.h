// The epilogues of ops: work on memory that an op does besides what its kind names. They follow from the op, its
// operands and their accesses, as its costs do: a text that turns `writes=to:x` of a reduce-scatter into `updates=to:x`
// makes it add.
#pragma once

#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// Returns the epilogues of a step on the rank at 0, in the order of Epilogue. What a part declares
// (PartDeclaration::assembled) is not among them; set_costs adds it.
std::vector<EpilogueCost> epilogues_of(const Program& program, const Step& step);

// Returns "add:4096,pack:512" or, if there are none, "none".
std::string text_of(const std::vector<EpilogueCost>& epilogues);

}  // namespace molen::program
