// The needs of each step of a program: which operands the step must have, and what each operand must hold. The needs
// are the same in each instance of a body, so they are computed once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/ir/traits.h"
#include "program/verify/cost_rules.h"
#include "program/verify/need.h"

namespace molen::program {

struct NeedsOfStep {
  std::vector<Need> operands;  // in the order of the step's operands
  std::string refused;         // why the step's operands are not the needed ones; `operands` is then empty
  std::string wrong_costs;     // which of the step's costs does not follow from its operands; empty if all do
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
  NeedsOfStep find(const Step& step);

  const Program& p_;
  const Traits& t_;
  std::optional<CostRules> costs_;          // made for the first step: its sizes must be known to be sound
  std::vector<std::vector<OfStep>> steps_;  // by body and op
};

}  // namespace molen::program
