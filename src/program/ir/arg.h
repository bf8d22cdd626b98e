// The arguments of ops: the names under which an op's kernel finds its operands.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace molen::program {

// `x` goes in and `y` comes out. The prefix d_ means the gradient of the loss with respect to a value: a backward takes
// d_y and leaves d_x.
enum class Arg {
  kX,
  kY,
  kResidual,  // the residual stream, to which a product is added
  kParam,     // parameters of a unit
  kStats,     // statistics of the rows that a norm has seen
  kIds,
  kLabels,
  kDocuments,  // for each token, the position where its document begins
  kRope,       // RoPE's table
  kSlopes,     // ALiBi's slopes
  kQkv,        // queries, keys and values side by side
  kKeys,       // keys and values of other ranks
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
  kDirection,  // where an optimizer moves a unit's matrices
  kFrom,       // source of a collective, a message, a copy or a cast
  kTo,         // its destination
  kOwn,        // the rank's own keys, next to the received keys
  kSoFar,      // what a sum is added to
  kScores,     // of each token for each expert
  kChoice,     // the experts of each token
  kWeights,    // and their weights
  kLoad,       // tokens and scores of each expert, by sequence
  kPlaces,     // the row that each choice has in expert order
  kOffsets,    // the first row of each expert, and the end
  kDWeights,
  kExpertOffsets,  // the first row of each expert of this rank, and the end
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
