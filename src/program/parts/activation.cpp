// The activation between the two products of the MLP: a_Nf from gate|up.
#include "program/parts/part.h"

namespace molen::program::parts {

std::vector<PartDeclaration> activations() {
  return {{
      .part = arch::Part::kActivation,
      .standing = Standing::kMlpBlock,
      .forward = {reads(Arg::kX, Value::kUp), writes(Arg::kY, Value::kActivation)},
      .backward = {reads(Arg::kDY, Value::kDActivation), reads(Arg::kX, Value::kUp), writes(Arg::kDX, Value::kDUp)},
      .forward_types = {takes(Arg::kX, {kOfFfn}), leaves(Arg::kY, kOfFfn)},
      .backward_types = {takes(Arg::kDY, {kOfFfn}), takes(Arg::kX, {kOfFfn}), leaves(Arg::kDX, kOfFfn)},
      .moved = [](const Sizes& s, Pass pass) { return s.e * s.N * (is_backward(pass) ? 2 * s.U + s.f : s.U + s.f); },
  }};
}

}  // namespace molen::program::parts
