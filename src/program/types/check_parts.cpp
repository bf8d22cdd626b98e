// The rules of compute ops, of the batch, of the step's sums, and of the update.
#include <fmt/format.h>

#include <algorithm>

#include "program/types/type_checker.h"
#include "program/values/optimizer.h"

namespace molen::program {

void TypeChecker::rule(const Compute& c) {
  const std::vector<OperandRule> rules = part_rule(c, mesh_[mesh::Axis::kCp], find(Arg::kKeys) != nullptr);
  const auto rule_for = [&](Arg arg) {
    return std::find_if(rules.begin(), rules.end(), [&](const OperandRule& r) { return r.arg == arg; });
  };
  std::vector<std::pair<const Use*, MeshType>> written;
  for (const Use& use : step_->operands) {
    if (use.arg == Arg::kParam) check_parameters(c, use);
    if (use.arg == Arg::kRope || use.arg == Arg::kSlopes) check_constant(use);
    if (use.arg == Arg::kParam || use.arg == Arg::kGrad || use.arg == Arg::kScalars || use.arg == Arg::kRope ||
        use.arg == Arg::kSlopes)
      continue;
    const auto rule = rule_for(use.arg);
    if (rule == rules.end()) {
      error(use, 0, "is of no rule of the op");
      continue;
    }
    if (use.reads()) {
      const MeshType type = found(use), wanted = own_rows(kReplicated, rule->context, rule->experts);
      const std::size_t first = first_of(use);
      for (const mesh::Axis axis : kMeshAxes)
        expect(use, first, type, axis, axis == mesh::Axis::kTp ? rule->found : std::vector{wanted[axis]});
    }
    if (!use.writes()) continue;
    const Use* source = rule->follows ? find(*rule->follows) : nullptr;
    const AxisType tensor = source ? found(*source)[mesh::Axis::kTp] : rule->left.value_or(kPartial);
    written.emplace_back(&use, own_rows(tensor, rule->left_context, rule->experts));
  }
  if (const Use* grad = find(Arg::kGrad)) add_gradients(rules, *grad);
  if (const Use* scalars = sums())
    for (const Scalar sum : declaration_of(c.part).sums)
      if (sum < num_scalars(p_.arch)) add(*scalars, sum, sum_over_rows());
  for (const auto& [use, type] : written) leave(*use, type);
}

void TypeChecker::check_constant(const Use& use) {
  const MeshType type = found(use), wanted = constant_type(p_, use.arg == Arg::kRope ? Value::kRope : Value::kSlopes);
  for (const mesh::Axis axis : kMeshAxes) expect(use, first_of(use), type, axis, {wanted[axis]});
}

// A part reads whole parameters, which have been gathered over the ranks that share a unit. Only tensor ranks compute
// with parts of parameters, and they too hold some parameters whole.
void TypeChecker::check_parameters(const Compute& c, const Use& use) {
  const Segments segments = of_parameters(buffer_of(use)) ? segments_of(use) : Segments{};
  if (segments.empty()) error(use, 0, "holds no parameter of the part");
  for (const std::size_t segment : segments) {
    const MeshType type = found(use, segment);
    MeshType wanted = parameter_type(p_, buffer_of(use).unit, parameter_of(use.buffer, segment));
    if (declaration_of(c.part).whole_parameters) wanted[mesh::Axis::kTp] = kReplicated;
    for (const mesh::Axis axis : kMeshAxes) expect(use, segment, type, axis, {wanted[axis]});
  }
}

// Over tensor ranks, the gradient of a parameter that all of them hold is a term of a sum: each rank has the outputs of
// its heads or columns, or adds its own rows. When the gradient depends linearly on a whole output gradient, it is
// whole.
void TypeChecker::add_gradients(const std::vector<OperandRule>& rules, const Use& use) {
  const Segments segments = of_parameters(buffer_of(use)) ? segments_of(use) : Segments{};
  if (segments.empty()) error(use, 0, "holds no parameter of the part");
  for (const std::size_t segment : segments) {
    MeshType term = gradient_type(p_, buffer_of(use).unit, parameter_of(use.buffer, segment));
    for (const OperandRule& rule : rules)
      if (const Use* source = rule.follows ? find(*rule.follows) : nullptr)
        if (found(*source)[mesh::Axis::kTp] == kInvariant) term[mesh::Axis::kTp] = kInvariant;
    put(use, segment, term);
  }
}

void TypeChecker::rule(const LoadBatch& o) {
  for (const Use& use : step_->operands)
    if (use.arg != Arg::kScalars) leave(use, own_rows(kInvariant));
  if (const Use* scalars = sums(); scalars && o.counts_tokens) add(*scalars, kValidTokens, sum_over_rows());
}

// Zeros are terms of any sum, so a cleared operand has the type of the terms that ops will add. The squares take the
// type of the first gradient that is counted.
void TypeChecker::rule(const ZeroFill& o) {
  const Use* use = find(Arg::kTo);
  if (!use || o.padding) return;
  if (of_parameters(buffer_of(*use))) {
    for (const std::size_t segment : segments_of(*use))
      leave(*use, segment, gradient_type(p_, buffer_of(*use).unit, parameter_of(use->buffer, segment)));
  } else if (buffer_of(*use).role == Value::kScalars) {
    for (std::size_t i = 0; i < kNumScalars; ++i) state(*use, i) = {};
    for (const Scalar sum : sums_of(p_.arch))
      if (sum != kSumSquares) leave(*use, sum, sum_over_rows());
    state(*use, kSumSquares).content = TypeState::Content::kZero;
  } else {
    error(*use, 0, "is neither a gradient nor the sums of the step, which alone may be cleared");
  }
}

// Returns the type of the squares of a gradient. They are the same on all ranks when all ranks hold the gradient alike,
// and terms of a sum when the gradient is sharded. Over tensor ranks, the first rank counts the parameters that all of
// them hold. Over the ends of a pipeline, the first stage counts the shared table. Over expert ranks that have whole
// gradients, the first rank counts all units but the experts.
AxisType TypeChecker::square_of(const Use& use, std::size_t segment, const MeshType& type, mesh::Axis axis) {
  if (mesh_[axis] == 1) return {};
  const AxisType& has = type[axis];
  if (axis == mesh::Axis::kPp) {
    expect(use, segment, type, axis, {kVarying, kInvariant});
    if (has == kInvariant && !p_.counts(buffer_of(use).unit))
      error(use, segment, "is invariant over pp, so only the first stage may count it");
    return kPartial;
  }
  if (axis == mesh::Axis::kTp) {
    const MeshType whole = parameter_type(p_, buffer_of(use).unit, parameter_of(use.buffer, segment));
    expect(use, segment, type, axis, {whole[axis] == kReplicated ? kInvariant : whole[axis]});
    return kPartial;
  }
  const AxisType experts = sharded(Dimension::kExperts);
  if (axis == mesh::Axis::kEp && (unit_of(use).experts || !p_.grid.own.contains(axis))) {
    expect(use, segment, type, axis, {unit_of(use).experts ? experts : kInvariant});
    return kPartial;
  }
  expect(use, segment, type, axis, {kInvariant, sharded(Dimension::kUnit)});
  return has == kInvariant ? kInvariant : kPartial;
}

void TypeChecker::rule(const SumSquares&) {
  const Use *grad = find(Arg::kGrad), *scalars = sums();
  if (!grad || !scalars) return;
  if (!of_parameters(buffer_of(*grad))) {
    error(*grad, 0, "holds no gradient of a unit");
    return;
  }
  for (const std::size_t segment : segments_of(*grad)) {
    const MeshType type = found(*grad, segment);
    MeshType squares;
    for (const mesh::Axis axis : kMeshAxes) squares[axis] = square_of(*grad, segment, type, axis);
    add(*scalars, kSumSquares, squares);
  }
}

void TypeChecker::rule(const ClipScale&) {
  const Use* scalars = sums();
  if (!scalars) return;
  MeshType same;
  for (const mesh::Axis axis : kMeshAxes) same[axis] = kInvariant;
  for (const Scalar sum : sums_of(p_.arch)) {
    const auto segment = static_cast<std::size_t>(sum);
    const MeshType type = found(*scalars, segment);
    for (const mesh::Axis axis : kMeshAxes) expect(*scalars, segment, type, axis, {kInvariant});
  }
  leave(*scalars, kGradNorm, same);
  leave(*scalars, kGradScale, same);
}

void TypeChecker::rule(const SetFlag&) {
  const Use* scalars = sums();
  if (!scalars) return;
  const MeshType type = found(*scalars, kGradNorm);
  for (const mesh::Axis axis : kMeshAxes) expect(*scalars, kGradNorm, type, axis, {kInvariant});
}

void TypeChecker::rule(const OptimizerStep& o) {
  const Use* grad = find(Arg::kGrad);
  if (!grad) return;
  if (const Use* scalars = sums()) {
    const MeshType type = found(*scalars, kGradScale);
    for (const mesh::Axis axis : kMeshAxes) expect(*scalars, kGradScale, type, axis, {kInvariant});
  }
  const Use *direction = find(Arg::kDirection), *param = find(Arg::kParam);
  if (o.stage == UpdateStage::kDirection) {
    if (direction && both_of_parameters(*grad, *direction)) make_direction(*grad, *direction);
    return;
  }
  if (!param || !both_of_parameters(*grad, *param)) return;
  if (direction && both_of_parameters(*grad, *direction)) expect_directions(*grad, *direction);
  for (const std::size_t segment : segments_of(*grad)) update_parameter(*grad, *param, segment);
}

// Along an axis over which a parameter is replicated, the ranks must have summed its gradient: it is whole (invariant),
// or sharded as the states of the optimizer are. Along an axis over which the parameter is split, the gradient is split
// alike.
MeshType TypeChecker::expect_summed(const Use& grad, std::size_t segment) {
  const MeshType home = parameter_type(p_, buffer_of(grad).unit, parameter_of(grad.buffer, segment));
  const MeshType has = found(grad, segment);
  for (const mesh::Axis axis : kMeshAxes)
    expect(grad, segment, has, axis,
           home[axis] == kReplicated ? std::vector{kInvariant, sharded(Dimension::kUnit)} : std::vector{home[axis]});
  return has;
}

void TypeChecker::make_direction(const Use& grad, const Use& direction) {
  for (const std::size_t segment : segments_of(direction)) leave(direction, segment, expect_summed(grad, segment));
}

// The update of a part of a matrix needs the directions of all parts, so tensor ranks must have gathered them.
void TypeChecker::expect_directions(const Use& grad, const Use& direction) {
  for (const std::size_t segment : segments_of(direction)) {
    const MeshType type = found(direction, segment), of_gradient = found(grad, segment);
    for (const mesh::Axis axis : kMeshAxes)
      expect(direction, segment, type, axis, {axis == mesh::Axis::kTp ? kInvariant : of_gradient[axis]});
  }
}

void TypeChecker::update_parameter(const Use& grad, const Use& param, std::size_t segment) {
  const MeshType home = parameter_type(p_, buffer_of(grad).unit, parameter_of(grad.buffer, segment));
  const MeshType has = expect_summed(grad, segment), before = param.reads() ? found(param, segment) : home;
  MeshType after = home;
  for (const mesh::Axis axis : kMeshAxes) {
    if (mesh_[axis] == 1) continue;
    const AxisType part = sharded(Dimension::kUnit);
    const bool replicated = home[axis] == kReplicated, shard = replicated && has[axis] == part;
    if (shard)
      after[axis] = part;
    else
      expect(param, segment, before, axis, {home[axis]});
    const bool state_whole = replicated || (axis == mesh::Axis::kTp && p_.optimizer->whole_parameters);
    const auto expect_kept = [&](Arg arg, const AxisType& whole) {
      if (const Use* kept = find(arg); kept && both_of_parameters(grad, *kept))
        expect(*kept, segment, found(*kept, segment), axis, {shard ? part : whole});
    };
    for (const OptimizerState& state : p_.optimizer->states)
      expect_kept(state.arg, state_whole ? kInvariant : home[axis]);
    expect_kept(Arg::kMaster, home[axis]);
  }
  leave(param, segment, after);
}

}  // namespace molen::program
