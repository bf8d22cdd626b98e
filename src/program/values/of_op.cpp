#include "program/values/of_op.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "program/parts/part.h"

namespace molen::program {
namespace {

// `experts`: return the unit of the layer's experts if they have a unit of their own.
int unit_with(const Program& program, std::int64_t layer, Sublayer sublayer, bool experts = false) {
  experts = experts && program.grid.sizes[mesh::Axis::kEp] > 1;
  for (std::size_t u = 0; u < program.units.size(); ++u)
    if (program.units[u].has(layer, sublayer) && program.units[u].experts == experts) return static_cast<int>(u);
  return -1;
}

}  // namespace

int unit_of_part(const Program& program, arch::Part part, std::int64_t layer) {
  const PartDeclaration& d = declaration_of(part);
  if (!d.has_parameters(program.arch)) return -1;
  switch (d.standing) {
    case Standing::kBefore:
      return program.find_unit("embed");
    case Standing::kAttentionBlock:
      return unit_with(program, layer, Sublayer::kAttention);
    case Standing::kMlpBlock:
      return unit_with(program, layer, Sublayer::kMlp, std::ranges::any_of(d.roles, arch::of_expert));
    case Standing::kAfter:
      return program.find_unit("final");
    case Standing::kHead:
      return program.find_unit(program.arch.tied ? "embed" : "final");
  }
  throw Error("no such place in a model");
}

RowsOfExperts rows_of_experts(Payload payload) {
  switch (payload) {
    case Payload::kExpertRows:
      return {Value::kExpertRows, Value::kRankRows};
    case Payload::kExpertOut:
      return {Value::kExpertOut, Value::kRankOut};
    case Payload::kDExpertOut:
      return {Value::kDExpertOut, Value::kDRankOut};
    case Payload::kDExpertRows:
      return {Value::kDExpertRows, Value::kDRankRows};
    default:
      throw Error("expert ranks send each other no {}", name_of(payload));
  }
}

bool shares_whole_matrices(const Program& program, int unit) {
  const Unit& of = program.units.at(static_cast<std::size_t>(unit));
  return program.grid.sizes[mesh::Axis::kTp] > 1 && std::ranges::any_of(of.entries, [](const UnitEntry& entry) {
           return entry.rows > 0;  // a router's bias is a whole vector, not a matrix
         });
}

bool by_pieces(const Rows& rows, arch::Part part) {
  return rows.in_pieces() && has_halves(part);
}

bool by_tiles(const Rows& rows, arch::Part part) {
  return rows.expert_tiles > 1 && declaration_of(part).computes_experts();
}

std::string_view portion_word(const Op& op) {
  if (std::holds_alternative<AllToAll>(op)) return "expert_tile";
  const auto* c = std::get_if<Compute>(&op);
  if (!c) return "piece";
  const PartDeclaration& part = declaration_of(c->part);
  if (of_head(c->part)) return "chunk";
  if (part.computes_experts()) return "expert_tile";
  return part.ring_step ? "step" : "piece";
}

Value kept_value(Payload payload) {
  static const auto values = [] {
    std::array<std::optional<Value>, kAllPayloads.size()> all;
    for (const Payload kept : kKeptForBackward) all.at(static_cast<std::size_t>(kept)) = value_named(name_of(kept));
    return all;
  }();
  const auto value = values.at(static_cast<std::size_t>(payload));
  if (!value) throw Error("no layer keeps {} for backward", name_of(payload));
  return *value;
}

Stream stream_of(const Offload& offload, const Op& op) {
  // Casts of messages run on the stream of their reductions, so that backward waits for neither.
  if (const auto axis = axis_of(op)) return stream_of(*axis);
  if (const auto* cast = std::get_if<Cast>(&op)) return stream_of(cast->over);
  if (std::holds_alternative<CopyToHost>(op)) return Stream::kToHost;
  if (std::holds_alternative<CopyToDevice>(op)) return Stream::kToDevice;
  // An optimizer step and a sum of squares run where their gradients are. The step's sums, which are a few bytes, do
  // not move.
  const bool host = (std::holds_alternative<OptimizerStep>(op) && offload.optimizer) ||
                    (std::holds_alternative<SumSquares>(op) && offload.gradients);
  return host ? Stream::kHost : Stream::kCompute;
}

int unit_of_step(const Program& program, const Step& step) {
  for (const Use& use : step.operands)
    if (const int unit = program.unit_of_buffer(use.buffer); unit >= 0) return unit;
  return -1;
}

}  // namespace molen::program
