// A part with the sizes that its kernel gets on the largest rank, as a step's attributes and the grid of ranks say.
#pragma once

#include "arch/parts.h"
#include "program/ir/program.h"

namespace molen::program {

struct PartOfRank {
  arch::Part part{};
  arch::Pass pass{};
  arch::PartShape shape;
  bool ring = false;       // one step of a ring, or all of them
  std::int64_t step = -1;  // the step in the ring; -1: all steps

  arch::PartCost cost(const arch::Architecture& local) const;
  Bytes scratch(const arch::Architecture& local) const;
};

arch::PartShape shape_of(const Attributes& attributes, const Grid& grid);
PartOfRank part_of(const Program& program, const Compute& op, const Step& step);

}  // namespace molen::program
