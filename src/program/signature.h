// What each op reads and writes, in order: the positional operands, as values of the model's computation. The builder
// makes buffers from it, the verifier follows the values through a program, the executor binds operands by position.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace molen::program {

// Letters as in arch/parts.h. `layer` of an operand is the layer l, or the unit's index for kParam .. kMaster.
enum class Value {
  kIds,
  kLabels,     // i32 [N]
  kDocuments,  // i32 [N]: the position where the document of each token begins
  kResidual,   // x_Nd: input of layer l; l = L is the input of the final norm
  kStats1,
  kQkv,
  kLse,
  kAttention,
  kMid,
  kStats2,
  kUp,
  kActivation,
  kStatsFinal,
  kNormed,
  kDNormed,    // complete once every chunk of the head has written its part; of tensor ranks, a sum of all
  kLosses,     // one per token
  kDResidual,  // gradient of kResidual of layer l
  kDMid,
  kDActivation,
  kDUp,
  kDAttention,
  kDQkv,
  // Between tensor ranks: sums to which each rank has added its share (kResidualSum, ...), and under sequence
  // parallelism all rows of what the ranks keep by rows (kResidualRows, ...).
  kResidualSum,
  kMidSum,
  kDResidualSum,
  kDMidSum,
  kResidualRows,
  kMidRows,
  kDResidualRows,
  kDMidRows,
  // Of a chunk of the head (`layer` is the chunk) over a vocabulary that tensor ranks share: logits [C, V of the rank];
  // for each token (log of the sum of exp(logits), logit of the label or 0), of this rank and of all [ranks, C, 2].
  kLogits,
  kHeadSums,
  kHeadSumsAll,
  // Between context ranks: keys and values of a layer on all of them [ranks, N, 2*k*D], their gradients, and that of
  // qkv of which only the queries are made.
  // In a ring (`step` of it): what passes, and the outputs so far; in fp32 where compute is narrower.
  kKeysAll,
  kDKeysAll,
  kKeys,
  kDKeys,
  kDKeysIn,  // as they come, without this rank's share
  kAttentionPart,
  kLsePart,
  kDQuery,
  kParam,       // whole, of a unit; gathered where parameters are sharded
  kGrad,        // whole
  kParamShard,  // what the rank keeps of sharded parameters, and of sharded gradients
  kGradShard,
  kGradHost,     // on the host: of the gradient what this rank updates
  kParamHost,    // parameters that live there; or, of the compute type, what is updated there and goes to the device
  kGradMessage,  // on its way between data-parallel ranks, where narrower; `step` says how far (signature.cpp)
  kMoment1,
  kMoment2,
  kMaster,
  kScalars,
};
std::string_view name_of(Value value);

struct Operand {
  Value value{};
  std::int64_t layer = -1;
  Range range = Range::kAll;
  std::int64_t step = 0;  // of a ring, or of a message
  bool host = false;      // what a layer keeps, on the host meanwhile
  // Which piece of its rows an op uses (Setting::tensor_chunks); -1: all.
  std::int64_t chunk = -1;
  bool operator==(const Operand&) const = default;
};

struct Signature {
  std::vector<Operand> reads, writes;
};

// The operands of `op` in a program of this architecture and setting. `unit` is the unit an OptimizerStep, SumSquares
// or collective works on (it follows from the buffer that the step names).
Signature signature(const Program& program, const Op& op, int unit);

// Unit whose parameters a part reads; -1 where it has none.
int unit_of_part(const Program& program, arch::Part part, std::int64_t layer);

// Whether an op on this part runs once for each piece of its rows: the products that tensor ranks exchange rows around.
bool by_chunks(const Setting& setting, arch::Part part);
// Whether an operand that is a piece of a value's rows has a buffer of its own, and is no part of one that holds all.
// So has what tensor ranks have only on the way, sums to be made and rows brought together; but for the table and the
// final norm, which leave and take all rows at once.
bool chunk_apart(const Program& program, const Operand& operand);

// What of its unit a buffer with this value, or of this name, holds.
Range extent_of(const Program& program, Value value);
Range extent_of(const Program& program, const std::string& buffer);

// Of the largest rank.
std::int64_t elements_of(const Program& program, const Operand& operand);
DType dtype_of(const Program& program, Value value);
// Whether the value is a sum in the making that is kept wider than the compute dtype.
bool wide_partial(const Program& program, Value value);
// Whether an op must write a value in the place where it reads another.
bool in_place(const Program& program, const Op& op, const Operand& write, const Operand& read);
Lifetime lifetime_of(const Program& program, Value value);
Place place_of(const Program& program, const Operand& operand);
// The stream that an op runs on.
Stream stream_of(const Program& program, const Op& op);

// The value that a copy of what a layer keeps moves (kKeptForBackward).
Value kept_value(Moves moves);

// Which unit a step's operands belong to, from the first of its buffers that is a unit's; -1 if none is.
int unit_of_step(const Program& program, const Step& step);

}  // namespace molen::program
