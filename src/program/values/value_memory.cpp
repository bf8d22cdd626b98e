#include "program/values/value_memory.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "program/values/optimizer.h"

namespace molen::program {

bool piece_apart(const Program& program, const Operand& o) {
  const ValueClass of = class_of(o.value);
  if (o.portion < 0 || (of != ValueClass::kSum && of != ValueClass::kRows)) return false;
  const bool of_table = (o.value == Value::kResidualSum || o.value == Value::kDResidualRows) && o.layer == 0;
  const bool of_norm =
      (o.value == Value::kResidualRows || o.value == Value::kDResidualSum) && o.layer == program.arch.layers;
  return !of_table && !of_norm;
}

bool wide_partial(const Traits& traits, Value value) {
  const bool partial =
      value == Value::kAttentionPart || value == Value::kDQuery || value == Value::kDKeys || value == Value::kDKeysIn;
  return partial && traits.ring() && size_of(traits.compute) < 4;
}

Range extent_of(const Traits& traits, Value value) {
  const Range own = traits.owns_part() ? Range::kOwn : Range::kAll;
  if (class_of(value) == ValueClass::kState) return own;
  switch (value) {
    case Value::kParamShard:
    case Value::kGradShard:
      return Range::kShard;
    case Value::kParamHost:
      if (traits.offload.parameters) return traits.sharded_parameters() ? Range::kShard : Range::kAll;
      [[fallthrough]];
    case Value::kGradHost:
    case Value::kDirection:
    case Value::kDirectionAll:
      return own;
    default:
      return Range::kAll;
  }
}

std::int64_t elements_before(const Program& program, Value value, const Unit& unit, std::int64_t at) {
  if (value == Value::kDirectionAll)
    return elements_before(program, Value::kDirection, unit, at) * program.grid.sizes[mesh::Axis::kTp];
  const OptimizerState* state = program.optimizer->find(value);
  if (state && state->of == StateOf::kRest) return elements_outside_whole(unit, at);
  // Numbers that do not correspond to elements of a parameter are placed at its end, which is safe since no rank owns
  // only a part of the parameter.
  const bool beside = value == Value::kDirection && program.optimizer->whole_parameters;
  const bool shaped = state && state->has_shape();
  if (!beside && !shaped) return at;
  std::int64_t before = shaped ? 0 : at;
  for (const UnitEntry& entry : unit.entries) {
    if (at < entry.offset + entry.whole) continue;
    if (beside) ++before;
    if (!shaped) continue;
    for (const std::int64_t numbers : state->shape(entry.rows, entry.columns)) before += numbers;
  }
  return before;
}

namespace {

// Returns the width that a letter of a shape means (value.h), which the rank's part of the model alone decides; nullopt
// for a letter that counts rows or ranks.
std::optional<std::int64_t> width_of_letter(const arch::Architecture& a, char letter) {
  switch (letter) {
    case 'd':
      return a.hidden;
    case 'D':
      return a.head_dim;
    case 'Q':
      return a.qkv_size();
    case 'q':
      return a.query_size();
    case 'K':
      return 2 * a.kv_heads * a.head_dim;
    case 'U':
      return a.up_size();
    case 'f':
      return a.ffn;
    case 'h':
      return a.heads;
    case 's':
      return a.norm == arch::Norm::kRms ? 1 : 2;
    case 'V':
      return a.vocabulary;
    case 'E':
      return a.sparse_experts().count;
    case 'O':
      return a.sparse_experts().count + 1;
    case 't':
      return a.sparse_experts().per_token;
    case 'W':
      return a.expert_up_size();
    case 'X':
      return a.shared_up_size();
    case 'x':
      return a.shared_ffn();
    case 'w':
      return a.sparse_experts().ffn;
    case '2':
      return 2;
    default:
      return std::nullopt;
  }
}

// Returns the size that any letter of a shape means. `rows`: the rows of the piece.
std::int64_t size_of_letter(const Program& program, const Traits& t, char letter, std::int64_t rows) {
  const arch::Architecture& a = program.local;
  if (const auto width = width_of_letter(a, letter)) return *width;
  switch (letter) {
    case 'N':
      return t.tokens();
    case 'S':
      return t.rows.length;
    case 'R':
      return kept_rows(t.rows, t.grid, {});
    case 'P':
      return rows;
    case 'C':
      return t.head_chunk_tokens(0);
    case 'T':
      return t.ranks(mesh::Axis::kTp);
    case 'c':
      return t.context_ranks();
    case 'B':
      return t.rows.sequences;
    case 'o':
      return a.sparse_experts().count / t.expert_ranks() + 1;
    case 'p':
      return t.expert_ranks();
    case 'G':
      return most_rows_of_experts(a.sparse_experts(), {t.rows.sequences, t.rows.length, t.context_ranks()},
                                  t.expert_ranks());
    case 'M':
      return most_rows_of_experts(a.sparse_experts(), {t.rows.sequences, t.rows.length, t.context_ranks()}, 1);
    default:
      throw Error("unknown letter '{}' of a shape", letter);
  }
}

}  // namespace

std::int64_t elements_of(const Program& program, const Traits& traits, const Operand& operand) {
  if (operand.value == Value::kScalars) return num_scalars(program.arch);
  if (of_unit(operand.value)) {
    const Unit& unit = program.units.at(static_cast<std::size_t>(operand.layer));
    std::int64_t most = 0;
    for (const auto& [first, last] : unit_ranges(program.grid, unit, extent_of(traits, operand.value)))
      most = std::max(most, elements_before(program, operand.value, unit, last) -
                                elements_before(program, operand.value, unit, first));
    return most;
  }
  std::string_view shape = info_of(operand.value).shape;
  // The gradient of the queries becomes that of q|k|v in place, so its buffer has room for both. If it is in a wider
  // type, it has a buffer for the queries alone.
  if (operand.value == Value::kDQuery && wide_partial(traits, operand.value)) shape = "Nq";
  const auto [first_row, end_row] = rows_of_piece(traits.rows, piece_apart(program, operand) ? operand.portion : -1);
  std::int64_t elements = 1;
  for (const char letter : shape) elements *= size_of_letter(program, traits, letter, end_row - first_row);
  return elements;
}

DType dtype_of(const Traits& traits, Value value) {
  const DType accurate = traits.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  if (wide_partial(traits, value)) return accurate;
  switch (info_of(value).type) {
    case ValueType::kCompute:
      return traits.compute;
    case ValueType::kAccurate:
      return accurate;
    case ValueType::kInteger:
      return DType::kI32;
    case ValueType::kCommunication:
      return traits.message;
    case ValueType::kMaster:
      return traits.master;
    case ValueType::kDouble:
      return DType::kF64;
  }
  throw Error("value {} has no type", name_of(value));
}

Lifetime lifetime_of(const Traits& traits, Value value) {
  if (value == Value::kParam && traits.materializes_parameters()) return Lifetime::kTransient;
  if (value == Value::kParamShard && traits.offload.parameters) return Lifetime::kTransient;
  if (value == Value::kGrad && traits.reduces_each_micro_batch()) return Lifetime::kTransient;
  if (value == Value::kGradShard && traits.offload.gradients) return Lifetime::kTransient;
  if (value == Value::kGradCommunication || value == Value::kDirection || value == Value::kDirectionAll)
    return Lifetime::kTransient;
  const bool parameters = value == Value::kParam || value == Value::kParamShard || value == Value::kParamHost;
  const bool constant = class_of(value) == ValueClass::kConstant;
  if ((parameters || constant) && !traits.trains()) return Lifetime::kExternal;
  if (constant) return Lifetime::kConstant;
  const bool persistent = of_unit(value) || value == Value::kScalars;
  return persistent ? Lifetime::kPersistent : Lifetime::kTransient;
}

Place place_of(const Traits& traits, const Operand& operand) {
  if (operand.host || operand.value == Value::kGradHost || operand.value == Value::kParamHost) return Place::kHost;
  const bool state = class_of(operand.value) == ValueClass::kState;
  return state && traits.offload.optimizer ? Place::kHost : Place::kDevice;
}

}  // namespace molen::program
