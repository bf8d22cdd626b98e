// A place in an expanded program, for people: the ops around it, as program.txt has them.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace molen::program {

// "all_reduce axis=dp of layers.3", on one line; empty where there is no such op.
std::string op_title(const Program& program, const std::vector<Expanded>& ops, int op);

// The lines of the ops from 3 before to 3 behind in the expansion, that of `op` marked "<-- here", with the bodies that
// they are of; empty where there is no such op.
std::string excerpt(const Program& program, const std::vector<Expanded>& ops, int op);

}  // namespace molen::program
