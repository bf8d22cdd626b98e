// The operands of a part as its declaration states them: before it is known which layer the part is of, and how ranks
// share the model.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "program/ir/op.h"
#include "program/values/value.h"

namespace molen::program {

struct Operand;
struct PartDeclaration;
struct Program;
struct Traits;

// How ranks that share a part exchange an operand. Each kind is an operation of the layout, which the builder inserts
// (build/passes_tensor.cpp); a rank that shares nothing has the whole value.
enum class Exchange {
  kNone,
  kGathers,     // where tensor ranks keep parts of the rows, the part reads all of them, gathered for it
  kGathered,    // the same, and an earlier part has gathered them
  kSums,        // each tensor rank leaves a term of a sum
  kSideBySide,  // each tensor rank leaves its own, and all of them are gathered side by side
};

// When a part has an operand.
enum class When {
  kAlways,
  kNormWeights,   // the model's norms have weights
  kDocuments,     // attention stays within documents
  kRotates,       // positions are RoPE's
  kStands,        // positions are not RoPE's
  kNormsQk,       // queries and keys are normalised
  kLeavesQk,      // they are not
  kTurnsQkv,      // a norm or RoPE stands between the projection to q|k|v and attention
  kHandsQkv,      // none does: attention reads what the projection leaves
  kAlibi,         // positions are ALiBi's
  kKeysGathered,  // context ranks gather the keys of all
  kKeysHere,      // there is one context rank, or keys go around in a ring
  kShares,        // experts are shared by all tokens
  kOnlyRouted,    // none is
  kExpertsApart,  // expert ranks each hold some of a layer's experts
  kExpertsHere,   // the rank holds all of them
  kDropsHere,     // it does, and a capacity decides how many rows they have
};

bool holds(const Program& program, const Traits& traits, When when);

struct PartOperand {
  Arg arg{};
  Access access{};
  Value value{};
  // A value of a layer belongs to the layer this many layers after the part's own. Parts before the layers count as
  // layer -1, those after them as the number of layers.
  std::int64_t after = 0;
  Exchange exchange = Exchange::kNone;
  When when = When::kAlways;
  bool may_add = false;  // the step may add to it instead of overwriting it
  // The value, of the same layer, that an update turns into this one.
  std::optional<Value> turned = {};
  // The gradient of the residual stream so far, which the operand adds to: in place; or from another buffer when halves
  // of backwards still have to read it. When tensor ranks keep parts of the rows, the reduction of the sum adds it.
  struct SoFar {
    Value value{};
    std::int64_t after = 0;
  };
  std::optional<SoFar> so_far = {};
};

// The three states of a value of the residual stream that tensor ranks exchange: as it is kept, whole or by rows; as
// terms of a sum; and with the rows of all ranks.
struct Exchanged {
  Moves moves{};
  Value kept{}, sum{}, rows{};
};
inline constexpr std::array kExchanged{
    Exchanged{Moves::kResidual, Value::kResidual, Value::kResidualSum, Value::kResidualRows},
    Exchanged{Moves::kMid, Value::kMid, Value::kMidSum, Value::kMidRows},
    Exchanged{Moves::kDResidual, Value::kDResidual, Value::kDResidualSum, Value::kDResidualRows},
    Exchanged{Moves::kDMid, Value::kDMid, Value::kDMidSum, Value::kDMidRows}};
// Throw Error for what tensor ranks do not exchange so.
const Exchanged& exchanged(Moves moves);
const Exchanged& exchanged(Value kept);

// Returns the declared operands of a pass. Throws Error when the part has no such pass.
const std::vector<PartOperand>& operands_declared(const PartDeclaration& part, ComputePass pass);
// Returns the layer that an operand of a step of a part belongs to: as in Operand, but for values of a unit.
std::int64_t layer_of(const Program& program, const Compute& step, const PartOperand& operand);
// Returns the operands of a step of a part in a program of this architecture and these traits; `unit` holds its
// parameters.
std::vector<Operand> operands_of(const Program& program, const Traits& traits, const Compute& step, int unit);

namespace parts {

inline PartOperand reads(Arg arg, Value value, std::int64_t after = 0) {
  return {arg, Access::kRead, value, after};
}
// Reads all rows of a value of the residual stream.
inline PartOperand reads_rows(Arg arg, Value value, std::int64_t after = 0, Exchange exchange = Exchange::kGathers) {
  return {arg, Access::kRead, value, after, exchange};
}
inline PartOperand consumes(Arg arg, Value value) {
  return {arg, Access::kConsume, value};
}
inline PartOperand writes(Arg arg, Value value) {
  return {arg, Access::kWrite, value};
}
// Leaves a value of the residual stream.
inline PartOperand sums(Arg arg, Value value, std::int64_t after = 0) {
  return {arg, Access::kWrite, value, after, Exchange::kSums};
}
// Adds to the gradient of the residual stream so far.
inline PartOperand sums_onto(Arg arg, Value value, PartOperand::SoFar so_far) {
  PartOperand o = sums(arg, value);
  o.so_far = so_far;
  return o;
}
inline PartOperand turns(Arg arg, Value before, Value after) {
  PartOperand o{arg, Access::kUpdate, after};
  o.turned = before;
  return o;
}
inline PartOperand parameters() {
  return reads(Arg::kParam, Value::kParam);
}
inline PartOperand gradient() {
  PartOperand o = writes(Arg::kGrad, Value::kGrad);
  o.may_add = true;
  return o;
}
inline PartOperand step_sums() {
  return {Arg::kScalars, Access::kUpdate, Value::kScalars};
}
inline PartOperand only(When when, PartOperand o) {
  o.when = when;
  return o;
}

}  // namespace parts
}  // namespace molen::program
