// Shows a position in an expanded program to people: the ops around it, as program.txt prints them.
#pragma once

#include <string>
#include <vector>

#include "program/ir/program.h"

namespace molen::program {

// Returns a line such as "all_reduce axis=dp of grad.layer.3", or an empty string when there is no such op.
std::string op_title(const Program& program, const std::vector<Expanded>& ops, int op);

// Returns the lines of the ops from 3 before `op` to 3 after it in the expansion, with the names of their bodies. The
// line of `op` has the mark "<-- here". Returns an empty string when there is no such op.
std::string excerpt(const Program& program, const std::vector<Expanded>& ops, int op);

}  // namespace molen::program
