// The operands of a part as its declaration states them, which depend neither on the part's layer nor on how ranks
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

// How ranks that share a part exchange an operand. The builder inserts the op for each kind (build/passes_tensor.cpp).
// A rank that shares nothing with other ranks has the whole value.
enum class Exchange {
  kNone,
  kGathers,     // if tensor ranks keep parts of the rows, all rows are gathered for the part
  kGathered,    // the part reads the rows that were gathered for an earlier part
  kSums,        // each tensor rank writes a term of a sum
  kSideBySide,  // each tensor rank writes a value of its own, and these are gathered side by side
};

// The condition under which a part has an operand.
enum class When {
  kAlways,
  kNormWeights,   // the model's norms have weights
  kDocuments,     // attention stays within documents
  kRotates,       // positions are encoded by RoPE
  kStands,        // positions are not encoded by RoPE
  kNormsQk,       // queries and keys are normalised
  kLeavesQk,      // queries and keys are not normalised
  kTurnsQkv,      // a norm or RoPE changes q|k|v between the projection and attention
  kHandsQkv,      // attention reads the result of the projection to q|k|v as it is
  kAlibi,         // positions are encoded by ALiBi
  kKeysGathered,  // context ranks gather the keys of all these ranks
  kKeysHere,      // there is one context rank, or keys are passed around a ring
  kShares,        // the model has experts that all tokens share
  kOnlyRouted,    // the model has no shared experts
  kExpertsApart,  // each expert rank holds some of a layer's experts
  kExpertsHere,   // the rank holds all experts of a layer
  kDropsHere,     // the rank holds all experts, and a capacity limits their rows
  kLimitsLater,   // experts have a capacity for sequences that context ranks share, which they apply together
  kLimitsNow,     // the router applies a capacity itself, if experts have one
};

bool holds(const Program& program, const Traits& traits, When when);

struct PartOperand {
  Arg arg{};
  Access access{};
  Value value{};
  // The value belongs to the layer that is this many layers after the part's own. A part before the layers counts as
  // layer -1; a part after the layers counts as layer L, the number of layers.
  std::int64_t after = 0;
  Exchange exchange = Exchange::kNone;
  When when = When::kAlways;
  bool may_add = false;  // the step may add to it instead of overwriting it
  // The value, of the same layer, that an update turns into this one.
  std::optional<Value> turned = {};
  // The gradient of the residual stream so far, to which the operand adds. The op adds in place, or into another buffer
  // if halves of backwards still have to read the old gradient. When tensor ranks keep parts of the rows, the reduction
  // of the sum does the addition.
  struct SoFar {
    Value value{};
    std::int64_t after = 0;
  };
  std::optional<SoFar> so_far = {};
};

// The three forms of a value of the residual stream that tensor ranks exchange: the kept value (whole, or the rank's
// rows), a term of a sum, and the rows of all ranks.
struct Exchanged {
  Payload payload{};
  Value kept{}, sum{}, rows{};
};
inline constexpr std::array kExchanged{
    Exchanged{Payload::kResidual, Value::kResidual, Value::kResidualSum, Value::kResidualRows},
    Exchanged{Payload::kMid, Value::kMid, Value::kMidSum, Value::kMidRows},
    Exchanged{Payload::kDResidual, Value::kDResidual, Value::kDResidualSum, Value::kDResidualRows},
    Exchanged{Payload::kDMid, Value::kDMid, Value::kDMidSum, Value::kDMidRows}};
// Return the forms of such a value. Throw Error for a value that tensor ranks do not exchange in this way.
const Exchanged& exchanged(Payload payload);
const Exchanged& exchanged(Value kept);

// Returns the declared operands of a pass. Throws Error when the part has no such pass.
const std::vector<PartOperand>& operands_declared(const PartDeclaration& part, Pass pass);
// Returns the layer that an operand of a part's step belongs to, as in Operand. The operand must not be a value of a
// unit.
std::int64_t layer_of(const Program& program, const Compute& step, const PartOperand& operand);
// Returns the operands of a step of a part in a program of this architecture and these traits; `unit` holds its
// parameters.
std::vector<Operand> operands_of(const Program& program, const Traits& traits, const Compute& step, int unit);

namespace parts {

inline PartOperand reads(Arg arg, Value value, std::int64_t after = 0) {
  return {arg, Access::kRead, value, after};
}
// Declares an operand that reads all rows of a value of the residual stream.
inline PartOperand reads_rows(Arg arg, Value value, std::int64_t after = 0, Exchange exchange = Exchange::kGathers) {
  return {arg, Access::kRead, value, after, exchange};
}
inline PartOperand consumes(Arg arg, Value value) {
  return {arg, Access::kConsume, value};
}
inline PartOperand writes(Arg arg, Value value) {
  return {arg, Access::kWrite, value};
}
// Declares an operand that writes a value of the residual stream.
inline PartOperand sums(Arg arg, Value value, std::int64_t after = 0) {
  return {arg, Access::kWrite, value, after, Exchange::kSums};
}
// Declares an operand that adds to the gradient of the residual stream so far.
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
