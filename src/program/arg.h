// What an operand is to the kernel of its op: the name under which the op finds it.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace molen::program {

// `x` goes in and `y` comes out; d_ stands for the gradient of the loss, so that backward takes d_y and leaves d_x.
enum class Arg {
  kX,
  kY,
  kResidual,  // the residual stream, to which a product is added
  kParam,     // parameters of a unit
  kStats,     // of the rows that a norm has seen
  kIds,
  kLabels,
  kDocuments,  // for each token, where its document begins
  kQkv,        // queries, keys and values beside each other
  kKeys,       // keys and values of other ranks
  kLse,        // the logarithm of the sum of exponentials of each row of attention
  kYSoFar,     // attention over the keys that have come by
  kLseSoFar,
  kLogits,
  kSums,  // what tensor ranks tell each other of their logits
  kLosses,
  kScalars,
  kDX,
  kDY,
  kDResidual,  // the gradient of the residual stream that a norm's backward adds to
  kGrad,       // of a unit's parameters
  kDQkv,
  kDQkvSoFar,
  kDKeys,
  kDProjected,  // the gradient of q|k|v before RoPE
  kMoment1,
  kMoment2,
  kMaster,
  kFrom,   // what a collective, a message, a copy or a cast takes
  kTo,     // and what it leaves
  kOwn,    // the rank's own keys, beside those that come
  kSoFar,  // what a sum is added to
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
    ArgInfo{Arg::kQkv, "qkv"},
    ArgInfo{Arg::kKeys, "keys"},
    ArgInfo{Arg::kLse, "lse"},
    ArgInfo{Arg::kYSoFar, "y_so_far"},
    ArgInfo{Arg::kLseSoFar, "lse_so_far"},
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
    ArgInfo{Arg::kDProjected, "d_projected"},
    ArgInfo{Arg::kMoment1, "m"},
    ArgInfo{Arg::kMoment2, "v"},
    ArgInfo{Arg::kMaster, "master"},
    ArgInfo{Arg::kFrom, "from"},
    ArgInfo{Arg::kTo, "to"},
    ArgInfo{Arg::kOwn, "own"},
    ArgInfo{Arg::kSoFar, "so_far"},
};
static_assert([] {
  for (std::size_t i = 0; i < kArgs.size(); ++i)
    if (kArgs[i].arg != static_cast<Arg>(i)) return false;
  return kArgs.back().arg == Arg::kSoFar;
}());

constexpr std::string_view name_of(Arg arg) {
  return kArgs.at(static_cast<std::size_t>(arg)).name;
}
std::optional<Arg> arg_named(std::string_view name);

}  // namespace molen::program
