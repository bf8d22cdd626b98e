#include "program/value_memory.h"

#include "base/error.h"

namespace molen::program {

bool chunk_apart(const Program& program, const Operand& o) {
  const ValueClass of = class_of(o.value);
  if (o.chunk < 0 || (of != ValueClass::kSum && of != ValueClass::kRows)) return false;
  const bool of_table = (o.value == Value::kResidualSum || o.value == Value::kDResidualRows) && o.layer == 0;
  const bool of_norm =
      (o.value == Value::kResidualRows || o.value == Value::kDResidualSum) && o.layer == program.arch.layers;
  return !of_table && !of_norm;
}

bool wide_partial(const Program& program, Value value) {
  const bool partial =
      value == Value::kAttentionPart || value == Value::kDQuery || value == Value::kDKeys || value == Value::kDKeysIn;
  return partial && program.setting.ring() && size_of(program.setting.compute) < 4;
}

Range extent_of(const Program& program, Value value) {
  switch (value) {
    case Value::kParamShard:
    case Value::kGradShard:
      return Range::kShard;
    case Value::kParamHost:
      if (program.setting.offload.parameters) return program.setting.sharded_parameters() ? Range::kShard : Range::kAll;
      [[fallthrough]];
    case Value::kGradHost:
    case Value::kMoment1:
    case Value::kMoment2:
    case Value::kMaster:
      return program.setting.owns_part() ? Range::kOwn : Range::kAll;
    default:
      return Range::kAll;
  }
}

std::int64_t elements_of(const Program& program, const Operand& operand) {
  const auto& a = program.local;
  const Setting& s = program.setting;
  const std::int64_t n = s.tokens();
  const auto [first_row, end_row] = chunk_rows(s, chunk_apart(program, operand) ? operand.chunk : -1);
  const std::int64_t stats = a.norm == arch::Norm::kRms ? n : 2 * n;
  switch (operand.value) {
    case Value::kIds:
    case Value::kLabels:
    case Value::kDocuments:
    case Value::kLosses:
      return n;
    case Value::kResidual:
    case Value::kMid:
    case Value::kDResidual:
    case Value::kDMid:
      return kept_rows(s, {}) * a.hidden;
    case Value::kNormed:
    case Value::kDNormed:
      return n * a.hidden;
    case Value::kResidualSum:
    case Value::kMidSum:
    case Value::kDResidualSum:
    case Value::kDMidSum:
    case Value::kResidualRows:
    case Value::kMidRows:
    case Value::kDResidualRows:
    case Value::kDMidRows:
      return (end_row - first_row) * a.hidden;
    case Value::kLogits:
      return s.head_chunk_tokens(0) * a.vocabulary;
    case Value::kHeadSums:
      return s.head_chunk_tokens(0) * 2;
    case Value::kHeadSumsAll:
      return s.head_chunk_tokens(0) * 2 * s.tensor_ranks();
    case Value::kStats1:
    case Value::kStats2:
    case Value::kStatsFinal:
      return stats;
    case Value::kQkv:
    case Value::kDQkv:
    case Value::kDProjected:
      return n * a.qkv_size();
    case Value::kDQuery:  // becomes q|k|v in place, unless it is wider
      return n * (wide_partial(program, Value::kDQuery) ? a.query_size() : a.qkv_size());
    case Value::kKeys:
    case Value::kDKeys:
    case Value::kDKeysIn:
      return n * 2 * a.kv_heads * a.head_dim;
    case Value::kKeysAll:
    case Value::kDKeysAll:
      return s.context_ranks() * n * 2 * a.kv_heads * a.head_dim;
    case Value::kLse:
    case Value::kLsePart:
      return n * a.heads;
    case Value::kAttention:
    case Value::kAttentionPart:
    case Value::kDAttention:
      return n * a.query_size();
    case Value::kUp:
    case Value::kDUp:
      return n * a.up_size();
    case Value::kActivation:
    case Value::kDActivation:
      return n * a.ffn;
    case Value::kParam:
    case Value::kGrad:
    case Value::kParamShard:
    case Value::kGradShard:
    case Value::kGradHost:
    case Value::kParamHost:
    case Value::kGradMessage:
    case Value::kMoment1:
    case Value::kMoment2:
    case Value::kMaster: {
      const Unit& unit = program.units.at(static_cast<std::size_t>(operand.layer));
      const auto [first, last] = unit_range(s, {}, unit, extent_of(program, operand.value));
      return last - first;
    }
    case Value::kScalars:
      return kNumScalars;
  }
  throw Error("unknown value {}", static_cast<int>(operand.value));
}

DType dtype_of(const Program& program, Value value) {
  const Setting& s = program.setting;
  const DType accurate = s.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  if (wide_partial(program, value)) return accurate;
  switch (value) {
    case Value::kIds:
    case Value::kLabels:
    case Value::kDocuments:
      return DType::kI32;
    case Value::kStats1:
    case Value::kStats2:
    case Value::kStatsFinal:
    case Value::kLse:
    case Value::kLsePart:
    case Value::kLosses:
    case Value::kLogits:
    case Value::kHeadSums:
    case Value::kHeadSumsAll:
    case Value::kGrad:
    case Value::kGradShard:
    case Value::kGradHost:
    case Value::kMoment1:
    case Value::kMoment2:
      return accurate;
    case Value::kGradMessage:
      return s.reduce;
    case Value::kMaster:
      return s.master;
    case Value::kScalars:
      return DType::kF64;
    default:
      return s.compute;
  }
}

Lifetime lifetime_of(const Program& program, Value value) {
  const Setting& s = program.setting;
  if (value == Value::kParam && s.parameters_come()) return Lifetime::kTransient;
  if (value == Value::kParamShard && s.offload.parameters) return Lifetime::kTransient;
  if (value == Value::kGrad && s.gradients_leave()) return Lifetime::kTransient;
  if (value == Value::kGradShard && s.offload.gradients) return Lifetime::kTransient;
  if (value == Value::kGradMessage) return Lifetime::kTransient;
  const bool parameters = value == Value::kParam || value == Value::kParamShard || value == Value::kParamHost;
  if (parameters && s.purpose == Purpose::kEvaluate) return Lifetime::kExternal;
  const bool persistent = of_unit(value) || value == Value::kScalars;
  return persistent ? Lifetime::kPersistent : Lifetime::kTransient;
}

Place place_of(const Program& program, const Operand& operand) {
  if (operand.host) return Place::kHost;
  switch (operand.value) {
    case Value::kGradHost:
    case Value::kParamHost:
      return Place::kHost;
    case Value::kMoment1:
    case Value::kMoment2:
    case Value::kMaster:
      return program.setting.offload.optimizer ? Place::kHost : Place::kDevice;
    default:
      return Place::kDevice;
  }
}

}  // namespace molen::program
