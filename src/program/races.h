// Ops of two streams that use one buffer with nothing between them that says which comes first.
#pragma once

#include <utility>
#include <vector>

#include "program/program.h"

namespace molen::program {

// Every pair of ops that touch one buffer on two streams, one of them writing, must be ordered: the edges that
// pass::order_streams finds must follow from the edges that are there. Of each that does not: the op, and the one it
// should wait for. `ops`: the expanded program.
std::vector<std::pair<int, int>> unordered(const Program& program, const std::vector<Expanded>& ops);

}  // namespace molen::program
