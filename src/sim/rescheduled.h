// Frameworks whose published runs molen predicts begin some communication at other times than molen's programs do. The
// work of ops is given to other ops, or taken away where it would run beside compute of the next step.
#pragma once

#include <vector>

#include "program/ir/program.h"

namespace molen::sim {

// Gives the last reduction of gradients over data-parallel ranks the work of all of them. `work`: seconds of each op.
void reduce_last(const std::vector<program::Expanded>& ops, std::vector<double>& work);

// Takes the time of the first forward off the gathers of updated parameters that end a step: they run beside it.
void gather_in_forward(const std::vector<program::Expanded>& ops, std::vector<double>& work);

}  // namespace molen::sim
