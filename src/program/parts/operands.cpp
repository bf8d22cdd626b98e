#include "program/parts/operands.h"

#include "base/error.h"
#include "program/ir/traits.h"
#include "program/parts/part.h"
#include "program/values/operands.h"

namespace molen::program {

bool holds(const Program& p, const Traits& t, When when) {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kNormWeights:
      return p.arch.norm != arch::Norm::kLayerPlain;
    case When::kDocuments:
      return t.documents;
    case When::kRotates:
      return p.arch.position == arch::Position::kRope;
    case When::kStands:
      return p.arch.position != arch::Position::kRope;
    case When::kNormsQk:
      return p.arch.norms_qk();
    case When::kLeavesQk:
      return !p.arch.norms_qk();
    case When::kTurnsQkv:
      return p.arch.norms_qk() || holds(p, t, When::kRotates);
    case When::kHandsQkv:
      return !holds(p, t, When::kTurnsQkv);
    case When::kAlibi:
      return p.arch.position == arch::Position::kAlibi;
    case When::kKeysGathered:
      return t.context() && !t.ring();
    case When::kKeysHere:
      return !t.context() || t.ring();
    case When::kShares:
      return p.arch.shares_experts();
    case When::kOnlyRouted:
      return !p.arch.shares_experts();
    case When::kExpertsApart:
      return t.shares_experts();
    case When::kExpertsHere:
      return !t.shares_experts();
    case When::kDropsHere:
      return !t.shares_experts() && p.arch.drops_tokens();
    case When::kLimitsLater:
      return t.context() && p.arch.drops_tokens();
    case When::kLimitsNow:
      return !holds(p, t, When::kLimitsLater);
  }
  throw Error("no such condition");
}

namespace {

Value exchanged_value(const Traits& t, const PartOperand& o) {
  switch (o.exchange) {
    case Exchange::kGathers:
    case Exchange::kGathered:
      return t.sharded_rows() ? exchanged(o.value).rows : o.value;
    case Exchange::kSums:
      return t.tensor() ? exchanged(o.value).sum : o.value;
    case Exchange::kNone:
    case Exchange::kSideBySide:
      break;
  }
  return o.value;
}

void add_operand(const Program& p, const Traits& t, const Compute& c, int unit, const PartOperand& declared,
                 std::vector<Operand>& operands) {
  if (!holds(p, t, declared.when)) return;
  Operand o{exchanged_value(t, declared), of_unit(declared.value) ? unit : layer_of(p, c, declared)};
  o.may_add = declared.may_add;
  if (declared.turned) {
    operands.push_back(operand::turns(declared.arg, {*declared.turned, o.layer}, o));
    return;
  }
  if (declared.so_far && !t.sharded_rows()) {
    PartOperand before{declared.arg, Access::kRead, declared.so_far->value, declared.so_far->after};
    const Operand so_far{before.value, layer_of(p, c, before)};
    if (!t.halves) {
      operands.push_back(operand::turns(declared.arg, so_far, o));
      return;
    }
    operands.push_back(operand::reads(Arg::kDResidual, so_far));
  }
  operands.push_back(operand::with(declared.arg, declared.access, o));
}

}  // namespace

const Exchanged& exchanged(Payload payload) {
  for (const Exchanged& e : kExchanged)
    if (e.payload == payload) return e;
  throw Error("tensor ranks exchange no {} so", name_of(payload));
}

const Exchanged& exchanged(Value kept) {
  for (const Exchanged& e : kExchanged)
    if (e.kept == kept) return e;
  throw Error("tensor ranks exchange no {}", name_of(kept));
}

const std::vector<PartOperand>& operands_declared(const PartDeclaration& part, Pass pass) {
  switch (pass) {
    case Pass::kForward:
    case Pass::kRecompute:
      return part.forward;
    case Pass::kBackwardInput:
      if (part.halves) return part.input;
      break;
    case Pass::kBackwardWeights:
      if (!part.halves) throw Error("part {} has no weights' half of its backward", arch::name_of(part.part));
      return part.weights;
    case Pass::kBackward:
      break;
  }
  if (part.backward.empty()) throw Error("part {} has no backward", arch::name_of(part.part));
  return part.backward;
}

std::int64_t layer_of(const Program& p, const Compute& c, const PartOperand& o) {
  switch (class_of(o.value)) {
    case ValueClass::kLayer:
    case ValueClass::kSum:
    case ValueClass::kRows:
    case ValueClass::kKeys:
      return (declaration_of(c.part).standing == Standing::kAfter ? p.arch.layers : c.layer) + o.after;
    case ValueClass::kHead:
      return c.portion;
    default:
      return -1;
  }
}

std::vector<Operand> operands_of(const Program& p, const Traits& t, const Compute& c, int unit) {
  const PartDeclaration& part = declaration_of(c.part);
  if (part.ring_step && c.portion >= 0) return part.ring_step(p, t, c);
  const std::vector<PartOperand>& declared = operands_declared(part, c.pass);
  std::vector<Operand> operands;
  operands.reserve(declared.size() + 1);
  for (const PartOperand& o : declared) add_operand(p, t, c, unit, o, operands);
  return operands;
}

}  // namespace molen::program
