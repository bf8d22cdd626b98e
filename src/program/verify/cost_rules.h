// The verifier's own rules for the costs of an op: the FLOPs, bytes and scratch that it must state. They follow from
// what its operands hold, its attributes, the grid of ranks and the model's parameters. They use neither the builder's
// code for costs (values/costs.h) nor the formulas that a part declares, so that the verifier refuses a mistake in
// these. The scratch of a part or an optimizer is what the kernel's own query says (values/scratch.h): a run compares
// it with the memory that the kernel really takes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/verify/epilogue_rules.h"
#include "program/verify/need.h"
#include "program/verify/part_cost_rules.h"

namespace molen::program {

class CostRules {
 public:
  CostRules(const Program& program, const Traits& traits) : p_(program), t_(traits), parts_(program, traits) {}

  // Returns which cost of a step is wrong, what the step states and what its operands ask for; nothing if all costs are
  // right. `needs` are what the operands of the step hold, in the order of the step's operands.
  std::optional<std::string> refused(const Step& step, const std::vector<Need>& needs) const;

 private:
  const Program& p_;
  const Traits& t_;
  PartCostRules parts_;
};

}  // namespace molen::program
