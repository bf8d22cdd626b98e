// Finds pairs of ops that use one buffer on two streams without an order between them.
#pragma once

#include <utility>
#include <vector>

#include "program/program.h"

namespace molen::program {

// Every pair of ops that touch one buffer on two streams, one of them writing, must be ordered: the edges that
// pass::order_streams finds must follow from the existing edges. Returns, for each edge that does not follow, the op
// and the op that it should wait for. `ops` is the expanded program.
std::vector<std::pair<int, int>> unordered(const Program& program, const std::vector<Expanded>& ops);

}  // namespace molen::program
