#include "program/verify/needs.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/values/of_op.h"
#include "program/values/value_memory.h"
#include "program/verify/operand_rules.h"

namespace molen::program {

Needs::Needs(const Program& program, const Traits& traits) : p_(program), t_(traits) {
  for (const Body& body : p_.bodies) steps_.emplace_back(body.steps.size());
}

const NeedsOfStep& Needs::of(const Expanded& e) {
  OfStep& of = steps_[static_cast<std::size_t>(e.body)][static_cast<std::size_t>(e.op)];
  if (!of.known) of = {true, find(*e.step)};
  return of.needs;
}

NeedsOfStep Needs::find(const Step& step) {
  const std::vector<Operand> operands = operands_needed(p_, t_, step.op, unit_of_step(p_, step));
  const auto same = [](const Use& use, const Operand& o) {
    return use.arg == o.arg && (use.access == o.access || (o.may_add && use.access == Access::kUpdate));
  };
  if (!std::ranges::equal(step.operands, operands, same))
    return {
        {}, fmt::format("has the operands [{}] where it needs [{}]", text_of(step.operands), text_of(operands)), {}};
  if (std::ranges::any_of(operands, [](const Operand& o) { return of_unit(o.value) && o.layer < 0; }))
    return {{}, "names no parameter unit", {}};
  NeedsOfStep needs;
  needs.operands.reserve(operands.size());
  for (const Operand& o : operands)
    needs.operands.push_back({o, dtype_of(t_, o.value), elements_of(p_, t_, o), lifetime_of(t_, o.value),
                              place_of(t_, o), of_unit(o.value) ? extent_of(t_, o.value) : Range::kAll});
  if (!costs_) costs_.emplace(p_, t_);
  needs.wrong_costs = costs_->refused(step, needs.operands).value_or("");
  return needs;
}

}  // namespace molen::program
