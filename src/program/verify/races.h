// Finds pairs of ops that use the same memory on two streams without an order between them. The check works from
// streams, edges and accesses alone; it shares no code with the pass that makes the edges.
#pragma once

#include <utility>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// An op happens before another when it is earlier on the same stream, or when a chain of edges and streams leads from
// one to the other. Two ops must be so ordered when they use one buffer and one of them changes it, when one decides a
// flag that the other depends on, when both communicate over one axis, and when both work in the space that instances
// use in turn, for different instances. Returns each op that lacks such an order, with the op for which it should wait.
// `ops` is the expanded program.
std::vector<std::pair<int, int>> unordered(const Program& program, const std::vector<Expanded>& ops);

}  // namespace molen::program
