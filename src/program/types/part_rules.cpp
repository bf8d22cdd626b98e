#include "program/types/part_rules.h"

#include "base/error.h"
#include "program/values/of_op.h"
#include "program/values/optimizer.h"
#include "program/values/tiles.h"

namespace molen::program {

std::vector<OperandRule> part_rule(const Compute& c, int context_ranks, bool keys) {
  const PartDeclaration& part = declaration_of(c.part);
  if (part.context_types) return part.context_types(c, context_ranks, keys);
  const bool backward = is_backward(c.pass);
  const std::vector<OperandRule>& rules = backward ? part.backward_types : part.forward_types;
  if (rules.empty())
    throw Error("no rule types the {} of {}", backward ? "backward" : "forward", arch::name_of(c.part));
  return rules;
}

bool has_parameter(const Program& p, const Compute& c, const arch::Parameter& parameter) {
  return parameter.layer == c.layer && declaration_of(c.part).reads_role(parameter.role, p.arch.tied);
}

bool in_tile(const Program& p, const Rows& rows, const Compute& c, const arch::Parameter& parameter) {
  if (!by_tiles(rows, c.part)) return true;
  const auto [first, end] = experts_of_tile(p, rows, c.portion);
  return first <= parameter.expert && parameter.expert < end;
}

bool makes_gradient(const Compute& c, arch::Role role) {
  if (!declaration_of(c.part).halves_share() || c.pass == Pass::kBackward) return true;
  return arch::of_norm(role) == (c.pass == Pass::kBackwardInput);
}

MeshType parameter_type(const Program& p, int unit, const arch::Parameter& parameter) {
  const mesh::PerAxis& mesh = p.grid.sizes;
  MeshType type = unstated_type(mesh);
  if (mesh[mesh::Axis::kPp] > 1 && p.shared_by_ends(unit)) type[mesh::Axis::kPp] = kReplicated;
  if (mesh[mesh::Axis::kTp] > 1 && parameter.shard != arch::ShardDim::kNone)
    type[mesh::Axis::kTp] = sharded(parameter.shard == arch::ShardDim::kRows ? Dimension::kOut : Dimension::kIn);
  if (mesh[mesh::Axis::kEp] > 1 && p.units[static_cast<std::size_t>(unit)].experts)
    type[mesh::Axis::kEp] = sharded(Dimension::kExperts);
  return type;
}

MeshType gradient_type(const Program& p, int unit, const arch::Parameter& parameter) {
  MeshType type = parameter_type(p, unit, parameter);
  for (const mesh::Axis axis : kMeshAxes)
    if (p.grid.sizes[axis] > 1 && type[axis] == kReplicated) type[axis] = kPartial;
  return type;
}

MeshType constant_type(const Program& p, Value value) {
  MeshType type;
  for (const mesh::Axis axis : kMeshAxes)
    if (p.grid.sizes[axis] > 1) type[axis] = kInvariant;
  const auto shard = [&](mesh::Axis axis, AxisType of) {
    if (p.grid.sizes[axis] > 1) type[axis] = of;
  };
  if (value == Value::kRope) shard(mesh::Axis::kCp, parts::kOfTokens);
  if (value == Value::kSlopes) shard(mesh::Axis::kTp, parts::kOfHeads);
  return type;
}

std::optional<MeshType> kept_type(const Program& p, const Buffer& b, const arch::Parameter& parameter) {
  const bool state = class_of(b.role) == ValueClass::kState && b.role != Value::kMaster;
  const bool weights = b.role == Value::kParam || b.role == Value::kParamShard || b.role == Value::kParamHost ||
                       b.role == Value::kMaster;
  const bool kept = b.lifetime == Lifetime::kPersistent || b.lifetime == Lifetime::kExternal;
  if (!kept || (!state && !weights)) return std::nullopt;
  const mesh::Axes cut = b.extent == Range::kOwn ? p.grid.own : b.extent == Range::kShard ? p.grid.shard : mesh::Axes{};
  MeshType type = parameter_type(p, b.unit, parameter);
  for (const mesh::Axis axis : kMeshAxes) {
    if (p.grid.sizes[axis] == 1) continue;
    if (type[axis] == parts::kOfExperts) continue;  // each rank has its own, so nothing is cut over the axis
    if (cut.contains(axis))
      type[axis] = sharded(Dimension::kUnit);
    else if (state && (type[axis] == kReplicated || (axis == mesh::Axis::kTp && p.optimizer->whole_parameters)))
      type[axis] = kInvariant;
  }
  return type;
}

}  // namespace molen::program
