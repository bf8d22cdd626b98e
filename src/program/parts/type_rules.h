// The types over the mesh in which a part finds its operands, and those in which it leaves them. They follow from the
// product that the part computes (arch/parts.h) and from how tensor ranks split its parameters
// (arch/tensor_parallel.h), and from no layout. A part's declaration states them beside its operands, and the checker
// (types/) takes nothing else from it, so that an error in the operands is not an error in the rules.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "program/ir/arg.h"
#include "program/ir/mesh_type.h"

namespace molen::program {

// One operand of a part over tensor ranks, context ranks and expert ranks. Over data-parallel ranks and stages every
// activation has one type (own_rows in type_checker.cpp).
struct OperandRule {
  Arg arg{};
  std::vector<AxisType> found;                          // over tp, where the part reads it: one of these
  std::optional<AxisType> left;                         // over tp, where the part writes it
  std::optional<Arg> follows = {};                      // left as this operand is found: the part is linear in it
  AxisType context = sharded(Dimension::kTokens);       // over cp, where the part reads it
  AxisType left_context = sharded(Dimension::kTokens);  // over cp, where the part writes it
  AxisType experts = sharded(Dimension::kBatch);        // over ep, in both cases
};

namespace parts {

inline constexpr AxisType kOfRows = sharded(Dimension::kRows), kOfHeads = sharded(Dimension::kHeads),
                          kOfFfn = sharded(Dimension::kFfn), kOfVocabulary = sharded(Dimension::kVocabulary),
                          kOfTokens = sharded(Dimension::kTokens), kOfExperts = sharded(Dimension::kExperts);

inline OperandRule takes(Arg arg, std::vector<AxisType> found) {
  return {arg, std::move(found), {}};
}
inline OperandRule leaves(Arg arg, AxisType left) {
  return {arg, {}, left};
}
inline OperandRule retypes(Arg arg, AxisType found, AxisType left) {
  return {arg, {found}, left};
}
inline OperandRule over_context(OperandRule rule, AxisType found, AxisType left) {
  rule.context = found;
  rule.left_context = left;
  return rule;
}
// The rule of rows that are on the rank of their experts.
inline OperandRule by_experts(OperandRule rule) {
  rule.experts = kOfExperts;
  return rule;
}

}  // namespace parts
}  // namespace molen::program
