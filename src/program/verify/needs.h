// The needs of each step of a program: which operands the step must have, and what each operand must hold. The needs
// are the same in each instance of a body, so they are computed once.
#pragma once

#include <string>
#include <vector>

#include "program/ir/traits.h"
#include "program/values/operands.h"

namespace molen::program {

struct Need {
  Operand operand;
  // The buffer that holds the operand must have this type and these properties.
  DType dtype{};
  std::int64_t elements = 0;
  Lifetime lifetime{};
  Place place{};
  Range extent = Range::kAll;
};

struct NeedsOfStep {
  std::vector<Need> operands;           // in the order of the step's operands
  std::vector<EpilogueCost> epilogues;  // the epilogues that follow from the operands
  std::string refused;                  // why the step's operands are not the needed ones; `operands` is then empty
};

class Needs {
 public:
  Needs(const Program& program, const Traits& traits);
  const NeedsOfStep& of(const Expanded& e);

 private:
  struct OfStep {
    bool known = false;
    NeedsOfStep needs;
  };
  NeedsOfStep find(const Step& step) const;

  const Program& p_;
  const Traits& t_;
  std::vector<std::vector<OfStep>> steps_;  // by body and op
};

}  // namespace molen::program
