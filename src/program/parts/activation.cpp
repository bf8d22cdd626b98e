// The activation between the two products of the MLP, or of the shared experts: a_Nf from gate|up.
#include "program/parts/part.h"

namespace molen::program::parts {

namespace {

PartDeclaration activation() {
  return {
      .part = arch::Part::kActivation,
      .standing = Standing::kMlpBlock,
      .forward = {reads(Arg::kX, Value::kUp), writes(Arg::kY, Value::kActivation)},
      .backward = {reads(Arg::kDY, Value::kDActivation), reads(Arg::kX, Value::kUp), writes(Arg::kDX, Value::kDUp)},
      .forward_types = {takes(Arg::kX, {kOfFfn}), leaves(Arg::kY, kOfFfn)},
      .backward_types = {takes(Arg::kDY, {kOfFfn}), takes(Arg::kX, {kOfFfn}), leaves(Arg::kDX, kOfFfn)},
      .moved = [](const Sizes& s, Pass pass) { return s.e * s.N * (is_backward(pass) ? 2 * s.U + s.f : s.U + s.f); },
  };
}

// The activation of the shared experts.
PartDeclaration shared_activation() {
  PartDeclaration d = activation();
  d.part = arch::Part::kSharedActivation;
  d.forward = {reads(Arg::kX, Value::kSharedUp), writes(Arg::kY, Value::kSharedActivation)};
  d.backward = {reads(Arg::kDY, Value::kDSharedActivation), reads(Arg::kX, Value::kSharedUp),
                writes(Arg::kDX, Value::kDSharedUp)};
  d.moved = [](const Sizes& s, Pass pass) { return s.e * s.N * (is_backward(pass) ? 2 * s.X + s.x : s.X + s.x); };
  d.kernels = kernels_of_experts();
  return d;
}

}  // namespace

std::vector<PartDeclaration> activations() {
  return {activation(), shared_activation()};
}

}  // namespace molen::program::parts
