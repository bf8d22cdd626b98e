// The types over the mesh that a part's operands must have before it runs, and those that they have afterwards. The
// types follow from the product that the part computes (arch/parts.h) and from how tensor ranks split the part's
// parameters (arch/tensor_parallel.h); they do not depend on the layout. A part's declaration states the types beside
// its operands. The checker (types/) reads only the types from the declaration, so that a mistake in the operands does
// not repeat itself in the rules.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "program/ir/arg.h"
#include "program/ir/mesh_type.h"

namespace molen::program {

// The types of one operand of a part over tensor ranks, context ranks and expert ranks. Over data-parallel ranks and
// stages every activation has one type (own_rows in types/check.cpp).
struct OperandRule {
  Arg arg{};
  std::vector<AxisType> found;      // over tp, if the part reads the operand: one of these
  std::optional<AxisType> left;     // over tp, if the part writes the operand
  std::optional<Arg> follows = {};  // the written type is the type of this operand, in which the part is linear
  AxisType context = sharded(Dimension::kTokens);       // over cp, if the part reads the operand
  AxisType left_context = sharded(Dimension::kTokens);  // over cp, if the part writes the operand
  AxisType experts = sharded(Dimension::kBatch);        // over ep, whether read or written
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
// Returns the rule for rows that are on the rank of their experts.
inline OperandRule by_experts(OperandRule rule) {
  rule.experts = kOfExperts;
  return rule;
}

}  // namespace parts
}  // namespace molen::program
