// The arguments of ops. An op's kernel finds each operand under the name of an argument.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace molen::program {

// `x` is the input of a part and `y` its output. The prefix d_ means the gradient of the loss with respect to a value:
// a backward reads d_y and makes d_x.
enum class Arg {
  kX,
  kY,
  kResidual,  // the residual stream, to which the op adds a product
  kParam,     // parameters of a unit
  kStats,     // statistics of the rows of a norm's input
  kIds,
  kLabels,
  kDocuments,  // for each token, the position where its document begins
  kRope,       // RoPE's table
  kSlopes,     // ALiBi's slopes
  kQkv,        // queries, keys and values side by side
  kKeys,       // keys and values of other context ranks
  kLse,        // log-sum-exp of each row of attention
  kYSoFar,     // attention output over the keys seen so far
  kLogits,
  kSums,  // two numbers per token on each tensor rank's logits (value.h: kHeadSums)
  kLosses,
  kScalars,
  kDX,
  kDY,
  kDResidual,  // the gradient of the residual stream that a norm's backward adds to
  kGrad,       // gradient of a unit's parameters
  kDQkv,
  kDQkvSoFar,
  kDKeys,
  kMoment1,
  kMoment2,
  kRowMoment2,
  kColumnMoment2,
  kMaster,
  kDirection,  // what an optimizer that updates parameters whole sends to other tensor ranks
  kFrom,       // source of a collective, a message, a copy or a cast
  kTo,         // the destination of what kFrom names
  kOwn,        // the rank's own keys, next to the received keys
  kSoFar,      // the value to which a sum is added
  kScores,     // scores of each token for each expert
  kChoice,     // the experts of each token
  kWeights,    // the weights of kChoice's experts
  kCounts,     // numbers of choices of each expert, for each sequence, run of positions and kind of token
  kLoad,       // number of tokens and sum of scores of each expert, for each sequence
  kPlaces,     // the row of each choice in expert order
  kOffsets,    // the first row of each expert, and the end of the last one
  kDWeights,
  kExpertOffsets,  // the first row of each expert of this rank, and the end of the last one
};

struct ArgInfo {
  Arg arg;
  std::string_view name;  // in the text form and in messages
};
inline constexpr std::array kArgs{
    ArgInfo{Arg::kX, "x"},
    ArgInfo{Arg::kY, "y"},
    ArgInfo{Arg::kResidual, "residual"},
    ArgInfo{Arg::kParam, "param"},
    ArgInfo{Arg::kStats, "stats"},
    ArgInfo{Arg::kIds, "ids"},
    ArgInfo{Arg::kLabels, "labels"},
    ArgInfo{Arg::kDocuments, "documents"},
    ArgInfo{Arg::kRope, "rope"},
    ArgInfo{Arg::kSlopes, "slopes"},
    ArgInfo{Arg::kQkv, "qkv"},
    ArgInfo{Arg::kKeys, "keys"},
    ArgInfo{Arg::kLse, "lse"},
    ArgInfo{Arg::kYSoFar, "y_so_far"},
    ArgInfo{Arg::kLogits, "logits"},
    ArgInfo{Arg::kSums, "sums"},
    ArgInfo{Arg::kLosses, "losses"},
    ArgInfo{Arg::kScalars, "scalars"},
    ArgInfo{Arg::kDX, "d_x"},
    ArgInfo{Arg::kDY, "d_y"},
    ArgInfo{Arg::kDResidual, "d_residual"},
    ArgInfo{Arg::kGrad, "grad"},
    ArgInfo{Arg::kDQkv, "d_qkv"},
    ArgInfo{Arg::kDQkvSoFar, "d_qkv_so_far"},
    ArgInfo{Arg::kDKeys, "d_keys"},
    ArgInfo{Arg::kMoment1, "m"},
    ArgInfo{Arg::kMoment2, "v"},
    ArgInfo{Arg::kRowMoment2, "v_rows"},
    ArgInfo{Arg::kColumnMoment2, "v_columns"},
    ArgInfo{Arg::kMaster, "master"},
    ArgInfo{Arg::kDirection, "direction"},
    ArgInfo{Arg::kFrom, "from"},
    ArgInfo{Arg::kTo, "to"},
    ArgInfo{Arg::kOwn, "own"},
    ArgInfo{Arg::kSoFar, "so_far"},
    ArgInfo{Arg::kScores, "scores"},
    ArgInfo{Arg::kChoice, "choice"},
    ArgInfo{Arg::kWeights, "weights"},
    ArgInfo{Arg::kCounts, "counts"},
    ArgInfo{Arg::kLoad, "load"},
    ArgInfo{Arg::kPlaces, "places"},
    ArgInfo{Arg::kOffsets, "offsets"},
    ArgInfo{Arg::kDWeights, "d_weights"},
    ArgInfo{Arg::kExpertOffsets, "expert_offsets"},
};
static_assert([] {
  for (std::size_t i = 0; i < kArgs.size(); ++i)
    if (kArgs[i].arg != static_cast<Arg>(i)) return false;
  return kArgs.back().arg == Arg::kExpertOffsets;
}());

constexpr std::string_view name_of(Arg arg) {
  return kArgs.at(static_cast<std::size_t>(arg)).name;
}
std::optional<Arg> arg_named(std::string_view name);

}  // namespace molen::program
