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
  kProjected,  // q|k|v before their norms and RoPE
  kNormedQkv,  // q|k|v after the norms of q and k, before RoPE
  kQkv,
  kLse,
  kAttention,
  kMid,
  kStats2,
  kUp,
  kActivation,
  // Only sparse layers have the values from here to kExpertOut, and only layers with shared experts have kSharedUp to
  // kSharedOut. From kExpertRows on, a value has a row for each slot (a token with one of its experts), in the order of
  // experts.
  kRouted,         // normalised middle of the layer
  kRouterScores,   // the score of each token for each expert
  kRouterLse,      // log sum exp of a token's logits
  kChosen,         // the experts of each token, before any is dropped; only if context ranks limit the choices
  kChoice,         // the experts of each token
  kRouterWeights,  // the weights of the chosen experts
  kLoad,           // for each sequence: the tokens of each expert, then the sums of the experts' scores
  kCounts,         // the numbers of choices of a context rank (math/expert_order.h: count_choices)
  kCountsAll,      // kCounts of each context rank
  kSharedUp,       // gate|up of the shared experts
  kSharedActivation,
  kSharedOut,  // the middle of the layer plus the result of the shared experts
  kPlaces,     // the row of each slot in expert order
  kOffsets,    // the first row of each expert, and the end
  kExpertRows,
  kExpertUp,
  kExpertActivation,
  kExpertOut,
  // With several expert ranks, the experts of a rank get rows from the tokens of all these ranks, one rank after the
  // other.
  kOffsetsAll,     // kOffsets of each expert rank
  kExpertOffsets,  // the first row of each expert of this rank, and the end
  kRankRows,       // kExpertRows of these experts
  kRankOut,        // kExpertOut of these experts
  kStatsFinal,
  kNormed,
  kDNormed,    // complete when every chunk of the head has written its part; with tensor ranks, a partial sum
  kLosses,     // one for each token
  kDResidual,  // gradient of kResidual of layer l
  kDMid,
  kDActivation,
  kDUp,
  kDExpertOut,
  kDRouterWeights,
  kDExpertActivation,
  kDExpertUp,
  kDExpertRows,
  kDRankOut,
  kDRankRows,
  kDDispatched,  // the part of kRouted's gradient that comes from the chosen experts
  kDRouted,
  kDSharedActivation,
  kDSharedUp,
  kDAttention,
  kDQkv,
  kDNormedQkv,
  kDProjected,  // gradient of kProjected
  // Values between tensor ranks: partial sums, of which each rank has its own term (kResidualSum, ...), and under
  // sequence parallelism the gathered rows of a value whose rows are sharded (kResidualRows, ...).
  kResidualSum,
  kMidSum,
  kDResidualSum,
  kDMidSum,
  kResidualRows,
  kMidRows,
  kDResidualRows,
  kDMidRows,
  // A chunk of the head (`layer` is the chunk) when tensor ranks share the vocabulary: the logits [C, V of the rank];
  // then, for each token, the log of the sum of exp(logits) and the logit of the label (or 0), of this rank [C, 2] and
  // of all ranks [ranks, C, 2].
  kLogits,
  kHeadSums,
  kHeadSumsAll,
  // Values between context ranks: a layer's keys and values of all ranks [ranks, N, 2*k*D], their gradients, and a
  // gradient of qkv of which only the queries' part is complete. In a ring (`step` is its step): the received keys and
  // the partial outputs, which are in fp32 when compute is narrower.
  kKeysAll,
  kDKeysAll,
  kKeys,
  kDKeys,
  kDKeysIn,  // as received, without this rank's term
  kAttentionPart,
  kLsePart,
  kDQuery,
  kParam,       // whole parameters of a unit; gathered when parameters are sharded
  kGrad,        // whole
  kParamShard,  // the rank's part of sharded parameters; kGradShard is the same for the gradient
  kGradShard,
  kGradHost,   // on the host: the part of the gradient that this rank updates
  kParamHost,  // offloaded parameters; or, in the compute type, updated on the host and then copied to the device
  kGradCommunication,  // a gradient in a narrower message between data-parallel ranks; `step`: see
                       // `grad_comm` in signature.cpp
  kDirection,          // what tensor ranks exchange for parameters that are updated whole: this rank's parts
  kDirectionAll,       // the directions of all tensor ranks, one after another
  kMoment1,
  kMoment2,
  kRowMoment2,  // means of the second moment over each row of a matrix; kColumnMoment2: over each column
  kColumnMoment2,
  kMaster,
  kScalars,
  kRope,    // cosines, then sines, for the rank's positions of a sequence
  kSlopes,  // ALiBi's slope of each head
};

// The class of a value. Each value has exactly one.
enum class ValueClass {
  kBatch,     // of the micro-batch but of no layer: tokens, labels, losses, values between layers and head
  kLayer,     // an activation or its gradient, whole on the rank or the rank's own rows
  kSum,       // a residual value before the sum over tensor ranks
  kRows,      // a residual value with the rows of all tensor ranks
  kHead,      // a chunk of the head that tensor ranks share
  kKeys,      // keys, values and partial outputs between context ranks
  kUnit,      // parameters and gradients of a unit
  kState,     // a state that an optimizer keeps for a unit from step to step (optimizer.h)
  kScalars,   // the step's sums
  kConstant,  // tables that follow from the architecture and the rank's place
};

// The type of a value's elements.
enum class ValueType {
  kCompute,        // the type of activations and weights
  kAccurate,       // fp32; fp64 if compute is fp64
  kInteger,        // i32
  kCommunication,  // the type of gradients in messages
  kMaster,         // the type of master weights
  kDouble,         // fp64
};

// Which buffers hold a value of the layers.
enum class Keeping {
  kOfPass,         // one buffer for each layer; parts that run a second time share one more buffer
  kOfLayer,        // one buffer for each layer, whichever pass makes the value
  kInTurn,         // one buffer for all layers in turn: no op after the layer's own reads the value
  kInTurnOfWhole,  // as kInTurn; if backwards are split, one for each layer, since the second half reads it later
};

// Letters of a shape, as in arch/parts.h: N tokens of a micro-batch on this rank, S of a sequence on it, d, D, f, h, V;
// Q columns of q|k|v, q of queries, K of keys and values, U of gate|up, s the numbers that a norm keeps for a row, C
// tokens of a chunk of the head. R: the rows of the residual stream that this rank keeps; P: the rows of one piece; T:
// tensor ranks; c: context ranks. Letters of a sparse layer: E experts; O = E + 1; t experts of a token; W columns of
// an expert's gate|up; w the width of an expert; X and x the same sizes of the shared experts; B sequences of a
// micro-batch; p expert ranks; o one more than the experts of one expert rank; G the most rows that these experts may
// get; M the most rows that this rank's tokens have in the order of experts. A digit means itself. A value of a unit
// has the size of the unit's parameters, and no letters.
struct ValueInfo {
  Value value;
  std::string_view name;  // the name in the text form and in messages
  ValueClass of;
  std::string_view shape;
  ValueType type = ValueType::kCompute;
  Keeping keeping = Keeping::kOfPass;
};
inline constexpr std::array kValues{
    ValueInfo{Value::kIds, "ids", ValueClass::kBatch, "N", ValueType::kInteger},
    ValueInfo{Value::kLabels, "labels", ValueClass::kBatch, "N", ValueType::kInteger},
    ValueInfo{Value::kDocuments, "documents", ValueClass::kBatch, "N", ValueType::kInteger},
    ValueInfo{Value::kResidual, "x", ValueClass::kLayer, "Rd", ValueType::kCompute, Keeping::kOfLayer},
    ValueInfo{Value::kStats1, "stats1", ValueClass::kLayer, "Ns", ValueType::kAccurate},
    ValueInfo{Value::kProjected, "projected", ValueClass::kLayer, "NQ"},
    ValueInfo{Value::kNormedQkv, "normed_qkv", ValueClass::kLayer, "NQ"},
    ValueInfo{Value::kQkv, "qkv", ValueClass::kLayer, "NQ"},
    ValueInfo{Value::kLse, "lse", ValueClass::kLayer, "Nh", ValueType::kAccurate},
    ValueInfo{Value::kAttention, "attn", ValueClass::kLayer, "Nq"},
    ValueInfo{Value::kMid, "mid", ValueClass::kLayer, "Rd"},
    ValueInfo{Value::kStats2, "stats2", ValueClass::kLayer, "Ns", ValueType::kAccurate},
    ValueInfo{Value::kUp, "up", ValueClass::kLayer, "NU"},
    ValueInfo{Value::kActivation, "act", ValueClass::kLayer, "Nf"},
    ValueInfo{Value::kRouted, "routed", ValueClass::kLayer, "Nd"},
    ValueInfo{Value::kRouterScores, "scores", ValueClass::kLayer, "NE", ValueType::kAccurate},
    ValueInfo{Value::kRouterLse, "router_lse", ValueClass::kLayer, "N", ValueType::kAccurate},
    ValueInfo{Value::kChosen, "chosen", ValueClass::kLayer, "Nt", ValueType::kInteger},
    ValueInfo{Value::kChoice, "choice", ValueClass::kLayer, "Nt", ValueType::kInteger},
    ValueInfo{Value::kRouterWeights, "weights", ValueClass::kLayer, "Nt", ValueType::kAccurate},
    ValueInfo{Value::kLoad, "load", ValueClass::kLayer, "B2E", ValueType::kAccurate},
    ValueInfo{Value::kCounts, "counts", ValueClass::kLayer, "B22E", ValueType::kInteger, Keeping::kInTurn},
    ValueInfo{Value::kCountsAll, "counts_all", ValueClass::kLayer, "cB22E", ValueType::kInteger, Keeping::kInTurn},
    ValueInfo{Value::kSharedUp, "shared_up", ValueClass::kLayer, "NX"},
    ValueInfo{Value::kSharedActivation, "shared_act", ValueClass::kLayer, "Nx"},
    ValueInfo{Value::kSharedOut, "shared_out", ValueClass::kLayer, "Nd"},
    ValueInfo{Value::kPlaces, "places", ValueClass::kLayer, "Nt", ValueType::kInteger},
    ValueInfo{Value::kOffsets, "offsets", ValueClass::kLayer, "O", ValueType::kInteger},
    ValueInfo{Value::kExpertRows, "expert_rows", ValueClass::kLayer, "Md"},
    ValueInfo{Value::kExpertUp, "expert_up", ValueClass::kLayer, "GW"},
    ValueInfo{Value::kExpertActivation, "expert_act", ValueClass::kLayer, "Gw"},
    ValueInfo{Value::kExpertOut, "expert_out", ValueClass::kLayer, "Md"},
    ValueInfo{Value::kOffsetsAll, "offsets_all", ValueClass::kLayer, "pO", ValueType::kInteger},
    ValueInfo{Value::kExpertOffsets, "expert_offsets", ValueClass::kLayer, "o", ValueType::kInteger},
    ValueInfo{Value::kRankRows, "rank_rows", ValueClass::kLayer, "Gd"},
    ValueInfo{Value::kRankOut, "rank_out", ValueClass::kLayer, "Gd", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kStatsFinal, "stats_final", ValueClass::kBatch, "Ns", ValueType::kAccurate},
    ValueInfo{Value::kNormed, "normed", ValueClass::kBatch, "Nd"},
    ValueInfo{Value::kDNormed, "d_normed", ValueClass::kBatch, "Nd"},
    ValueInfo{Value::kLosses, "losses", ValueClass::kBatch, "N", ValueType::kAccurate},
    ValueInfo{Value::kDResidual, "d_x", ValueClass::kLayer, "Rd", ValueType::kCompute, Keeping::kInTurnOfWhole},
    ValueInfo{Value::kDMid, "d_mid", ValueClass::kLayer, "Rd", ValueType::kCompute, Keeping::kInTurnOfWhole},
    ValueInfo{Value::kDActivation, "d_act", ValueClass::kLayer, "Nf", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDUp, "d_up", ValueClass::kLayer, "NU", ValueType::kCompute, Keeping::kInTurnOfWhole},
    ValueInfo{Value::kDExpertOut, "d_expert_out", ValueClass::kLayer, "Md", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDRouterWeights, "d_weights", ValueClass::kLayer, "Nt", ValueType::kAccurate, Keeping::kInTurn},
    ValueInfo{Value::kDExpertActivation, "d_expert_act", ValueClass::kLayer, "Gw", ValueType::kCompute,
              Keeping::kInTurn},
    ValueInfo{Value::kDExpertUp, "d_expert_up", ValueClass::kLayer, "GW", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDExpertRows, "d_expert_rows", ValueClass::kLayer, "Md", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDRankOut, "d_rank_out", ValueClass::kLayer, "Gd", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDRankRows, "d_rank_rows", ValueClass::kLayer, "Gd", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDDispatched, "d_dispatched", ValueClass::kLayer, "Nd", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDRouted, "d_routed", ValueClass::kLayer, "Nd", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDSharedActivation, "d_shared_act", ValueClass::kLayer, "Nx", ValueType::kCompute,
              Keeping::kInTurn},
    ValueInfo{Value::kDSharedUp, "d_shared_up", ValueClass::kLayer, "NX", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDAttention, "d_attn", ValueClass::kLayer, "Nq", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDQkv, "d_qkv", ValueClass::kLayer, "NQ", ValueType::kCompute, Keeping::kInTurnOfWhole},
    ValueInfo{Value::kDNormedQkv, "d_normed_qkv", ValueClass::kLayer, "NQ"},
    ValueInfo{Value::kDProjected, "d_projected", ValueClass::kLayer, "NQ"},
    ValueInfo{Value::kResidualSum, "x_sum", ValueClass::kSum, "Pd", ValueType::kCompute, Keeping::kOfLayer},
    ValueInfo{Value::kMidSum, "mid_sum", ValueClass::kSum, "Pd"},
    ValueInfo{Value::kDResidualSum, "d_x_sum", ValueClass::kSum, "Pd", ValueType::kCompute, Keeping::kOfLayer},
    ValueInfo{Value::kDMidSum, "d_mid_sum", ValueClass::kSum, "Pd", ValueType::kCompute, Keeping::kOfLayer},
    ValueInfo{Value::kResidualRows, "x_rows", ValueClass::kRows, "Pd", ValueType::kCompute, Keeping::kOfLayer},
    ValueInfo{Value::kMidRows, "mid_rows", ValueClass::kRows, "Pd"},
    ValueInfo{Value::kDResidualRows, "d_x_rows", ValueClass::kRows, "Pd", ValueType::kCompute, Keeping::kOfLayer},
    ValueInfo{Value::kDMidRows, "d_mid_rows", ValueClass::kRows, "Pd", ValueType::kCompute, Keeping::kOfLayer},
    ValueInfo{Value::kLogits, "logits", ValueClass::kHead, "CV", ValueType::kAccurate, Keeping::kInTurn},
    ValueInfo{Value::kHeadSums, "head_sums", ValueClass::kHead, "C2", ValueType::kAccurate, Keeping::kInTurn},
    ValueInfo{Value::kHeadSumsAll, "head_sums_all", ValueClass::kHead, "TC2", ValueType::kAccurate, Keeping::kInTurn},
    ValueInfo{Value::kKeysAll, "keys_all", ValueClass::kKeys, "cNK", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDKeysAll, "d_keys_all", ValueClass::kKeys, "cNK", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kKeys, "keys", ValueClass::kKeys, "NK", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDKeys, "d_keys", ValueClass::kKeys, "NK", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kDKeysIn, "d_keys_in", ValueClass::kKeys, "NK", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kAttentionPart, "attn_part", ValueClass::kKeys, "Nq", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kLsePart, "lse_part", ValueClass::kKeys, "Nh", ValueType::kAccurate, Keeping::kInTurn},
    ValueInfo{Value::kDQuery, "d_query", ValueClass::kKeys, "NQ", ValueType::kCompute, Keeping::kInTurn},
    ValueInfo{Value::kParam, "param", ValueClass::kUnit, ""},
    ValueInfo{Value::kGrad, "grad", ValueClass::kUnit, "", ValueType::kAccurate},
    ValueInfo{Value::kParamShard, "param_shard", ValueClass::kUnit, ""},
    ValueInfo{Value::kGradShard, "grad_shard", ValueClass::kUnit, "", ValueType::kAccurate},
    ValueInfo{Value::kGradHost, "grad_host", ValueClass::kUnit, "", ValueType::kAccurate},
    ValueInfo{Value::kParamHost, "param_host", ValueClass::kUnit, ""},
    ValueInfo{Value::kGradCommunication, "grad_comm", ValueClass::kUnit, "", ValueType::kCommunication},
    ValueInfo{Value::kDirection, "direction", ValueClass::kUnit, "", ValueType::kAccurate},
    ValueInfo{Value::kDirectionAll, "direction_all", ValueClass::kUnit, "", ValueType::kAccurate},
    ValueInfo{Value::kMoment1, "m", ValueClass::kState, "", ValueType::kAccurate},
    ValueInfo{Value::kMoment2, "v", ValueClass::kState, "", ValueType::kAccurate},
    ValueInfo{Value::kRowMoment2, "v_rows", ValueClass::kState, "", ValueType::kAccurate},
    ValueInfo{Value::kColumnMoment2, "v_columns", ValueClass::kState, "", ValueType::kAccurate},
    ValueInfo{Value::kMaster, "master", ValueClass::kState, "", ValueType::kMaster},
    ValueInfo{Value::kScalars, "scalars", ValueClass::kScalars, "", ValueType::kDouble},
    ValueInfo{Value::kRope, "rope", ValueClass::kConstant, "SD", ValueType::kAccurate},
    ValueInfo{Value::kSlopes, "slopes", ValueClass::kConstant, "h", ValueType::kDouble},
};

static_assert([] {
  for (std::size_t i = 0; i < kValues.size(); ++i)
    if (static_cast<std::size_t>(kValues[i].value) != i) return false;
  return true;
}());

constexpr const ValueInfo& info_of(Value value) {
  return kValues.at(static_cast<std::size_t>(value));
}
constexpr ValueClass class_of(Value value) {
  return info_of(value).of;
}
// Returns whether a value has the rows that the experts of a rank get.
constexpr bool of_experts(Value value) {
  return info_of(value).shape.starts_with('G');
}
// Returns whether a value has a row for each slot (a token with one of its experts), in the order of experts.
constexpr bool in_expert_order(Value value) {
  return of_experts(value) || info_of(value).shape.starts_with('M');
}

constexpr std::string_view name_of(Value value) {
  return info_of(value).name;
}
constexpr bool of_unit(Value value) {
  return class_of(value) == ValueClass::kUnit || class_of(value) == ValueClass::kState;
}
std::optional<Value> value_named(std::string_view name);

}  // namespace molen::program
