// The values of a step, which buffers hold and ops exchange. Letters as in arch/parts.h.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace molen::program {

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
  kDNormed,    // complete once every chunk of the head has written its part; with tensor ranks, a partial sum
  kLosses,     // one per token
  kDResidual,  // gradient of kResidual of layer l
  kDMid,
  kDActivation,
  kDUp,
  kDAttention,
  kDQkv,
  kDProjected,  // kDQkv before RoPE: input of the projection's backward
  // Between tensor ranks: partial sums, to which each rank has added its share (kResidualSum, ...), and under sequence
  // parallelism the gathered rows of a value whose rows are sharded (kResidualRows, ...).
  kResidualSum,
  kMidSum,
  kDResidualSum,
  kDMidSum,
  kResidualRows,
  kMidRows,
  kDResidualRows,
  kDMidRows,
  // A chunk of the head (`layer` is the chunk) when tensor ranks share the vocabulary: logits [C, V of the rank]; for
  // each token (log of the sum of exp(logits), logit of the label or 0), of this rank and of all [ranks, C, 2].
  kLogits,
  kHeadSums,
  kHeadSumsAll,
  // Between context ranks: keys and values of a layer of all ranks [ranks, N, 2*k*D], their gradients, and a gradient
  // of qkv that holds only the queries' part yet. In a ring (`step` of it): the received keys, and the partial outputs,
  // which are in fp32 when compute is narrower.
  kKeysAll,
  kDKeysAll,
  kKeys,
  kDKeys,
  kDKeysIn,  // as received, without this rank's share
  kAttentionPart,
  kLsePart,
  kDQuery,
  kParam,       // whole parameters of a unit; gathered when parameters are sharded
  kGrad,        // whole
  kParamShard,  // the rank's part of sharded parameters; likewise kGradShard
  kGradShard,
  kGradHost,     // on the host: the part of the gradient that this rank updates
  kParamHost,    // offloaded parameters; or, in the compute type, updated on the host and copied to the device
  kGradMessage,  // in transit between data-parallel ranks, when narrower; `step`: see signature.cpp: message
  kMoment1,
  kMoment2,
  kMaster,
  kScalars,
};

// The class of a value. Each value has exactly one.
enum class ValueClass {
  kBatch,    // of the micro-batch: tokens, labels, losses
  kLayer,    // an activation or its gradient, whole on the rank or the rank's own rows
  kSum,      // a residual value before the sum over tensor ranks
  kRows,     // a residual value with the rows of all tensor ranks
  kHead,     // a chunk of the head that tensor ranks share
  kKeys,     // keys, values and partial outputs between context ranks
  kUnit,     // parameters, gradients and optimizer states of a unit
  kScalars,  // the step's sums
};

struct ValueInfo {
  Value value;
  std::string_view name;  // in the text form and in messages
  ValueClass of;
};
inline constexpr std::array kValues{
    ValueInfo{Value::kIds, "ids", ValueClass::kBatch},
    ValueInfo{Value::kLabels, "labels", ValueClass::kBatch},
    ValueInfo{Value::kDocuments, "documents", ValueClass::kBatch},
    ValueInfo{Value::kResidual, "x", ValueClass::kLayer},
    ValueInfo{Value::kStats1, "stats1", ValueClass::kLayer},
    ValueInfo{Value::kQkv, "qkv", ValueClass::kLayer},
    ValueInfo{Value::kLse, "lse", ValueClass::kLayer},
    ValueInfo{Value::kAttention, "attn", ValueClass::kLayer},
    ValueInfo{Value::kMid, "mid", ValueClass::kLayer},
    ValueInfo{Value::kStats2, "stats2", ValueClass::kLayer},
    ValueInfo{Value::kUp, "up", ValueClass::kLayer},
    ValueInfo{Value::kActivation, "act", ValueClass::kLayer},
    ValueInfo{Value::kStatsFinal, "stats_final", ValueClass::kLayer},
    ValueInfo{Value::kNormed, "normed", ValueClass::kLayer},
    ValueInfo{Value::kDNormed, "d_normed", ValueClass::kLayer},
    ValueInfo{Value::kLosses, "losses", ValueClass::kBatch},
    ValueInfo{Value::kDResidual, "d_x", ValueClass::kLayer},
    ValueInfo{Value::kDMid, "d_mid", ValueClass::kLayer},
    ValueInfo{Value::kDActivation, "d_act", ValueClass::kLayer},
    ValueInfo{Value::kDUp, "d_up", ValueClass::kLayer},
    ValueInfo{Value::kDAttention, "d_attn", ValueClass::kLayer},
    ValueInfo{Value::kDQkv, "d_qkv", ValueClass::kLayer},
    ValueInfo{Value::kDProjected, "d_projected", ValueClass::kLayer},
    ValueInfo{Value::kResidualSum, "x_sum", ValueClass::kSum},
    ValueInfo{Value::kMidSum, "mid_sum", ValueClass::kSum},
    ValueInfo{Value::kDResidualSum, "d_x_sum", ValueClass::kSum},
    ValueInfo{Value::kDMidSum, "d_mid_sum", ValueClass::kSum},
    ValueInfo{Value::kResidualRows, "x_rows", ValueClass::kRows},
    ValueInfo{Value::kMidRows, "mid_rows", ValueClass::kRows},
    ValueInfo{Value::kDResidualRows, "d_x_rows", ValueClass::kRows},
    ValueInfo{Value::kDMidRows, "d_mid_rows", ValueClass::kRows},
    ValueInfo{Value::kLogits, "logits", ValueClass::kHead},
    ValueInfo{Value::kHeadSums, "head_sums", ValueClass::kHead},
    ValueInfo{Value::kHeadSumsAll, "head_sums_all", ValueClass::kHead},
    ValueInfo{Value::kKeysAll, "keys_all", ValueClass::kKeys},
    ValueInfo{Value::kDKeysAll, "d_keys_all", ValueClass::kKeys},
    ValueInfo{Value::kKeys, "keys", ValueClass::kKeys},
    ValueInfo{Value::kDKeys, "d_keys", ValueClass::kKeys},
    ValueInfo{Value::kDKeysIn, "d_keys_in", ValueClass::kKeys},
    ValueInfo{Value::kAttentionPart, "attn_part", ValueClass::kKeys},
    ValueInfo{Value::kLsePart, "lse_part", ValueClass::kKeys},
    ValueInfo{Value::kDQuery, "d_query", ValueClass::kKeys},
    ValueInfo{Value::kParam, "param", ValueClass::kUnit},
    ValueInfo{Value::kGrad, "grad", ValueClass::kUnit},
    ValueInfo{Value::kParamShard, "param_shard", ValueClass::kUnit},
    ValueInfo{Value::kGradShard, "grad_shard", ValueClass::kUnit},
    ValueInfo{Value::kGradHost, "grad_host", ValueClass::kUnit},
    ValueInfo{Value::kParamHost, "param_host", ValueClass::kUnit},
    ValueInfo{Value::kGradMessage, "message", ValueClass::kUnit},
    ValueInfo{Value::kMoment1, "m", ValueClass::kUnit},
    ValueInfo{Value::kMoment2, "v", ValueClass::kUnit},
    ValueInfo{Value::kMaster, "master", ValueClass::kUnit},
    ValueInfo{Value::kScalars, "scalars", ValueClass::kScalars},
};

static_assert([] {
  for (std::size_t i = 0; i < kValues.size(); ++i)
    if (static_cast<std::size_t>(kValues[i].value) != i) return false;
  return true;
}());

constexpr ValueClass class_of(Value value) {
  return kValues.at(static_cast<std::size_t>(value)).of;
}
constexpr std::string_view name_of(Value value) {
  return kValues.at(static_cast<std::size_t>(value)).name;
}
constexpr bool of_unit(Value value) {
  return class_of(value) == ValueClass::kUnit;
}
std::optional<Value> value_named(std::string_view name);

}  // namespace molen::program
