// A product whose result is added to the residual stream: the middle of a layer is its input plus o Wo^T, and the next
// layer's input is the middle plus a Wd^T.
#include "program/parts/part.h"

namespace molen::program::parts {
namespace {

// Forward reads the residual only in the rows in which the rank adds it.
i64 projection_moved(const Sizes& s, i64 in, Pass pass) {
  return linear_moved(s, in, s.d, pass) + (is_backward(pass) ? 0 : s.e * s.own * s.d);
}

i64 projection_aten(const Sizes& s, i64 in, Pass pass) {
  const bool weights = is_backward(pass) && pass != Pass::kBackwardInput;
  return weights ? AtenScratch{s}.linear_gradient(in, s.d) : 0;
}

// If tensor ranks cut the matrix of a product by rows, each rank's result is a term of a sum. Each rank adds the
// residual and the bias in its own rows.
std::vector<OperandRule> projection_types(AxisType inputs) {
  return {takes(Arg::kX, {inputs}), takes(Arg::kResidual, {kReplicated, kOfRows}), leaves(Arg::kY, kPartial)};
}

PartDeclaration out_projection() {
  return {
      .part = arch::Part::kOutProjection,
      .standing = Standing::kAttentionBlock,
      .halves = true,
      .roles = {arch::Role::kOutput, arch::Role::kOutputBias},
      .forward = {reads(Arg::kX, Value::kAttention), reads(Arg::kResidual, Value::kResidual), parameters(),
                  sums(Arg::kY, Value::kMid)},
      .backward = {reads_rows(Arg::kDY, Value::kDMid), reads(Arg::kX, Value::kAttention), parameters(),
                   writes(Arg::kDX, Value::kDAttention), gradient()},
      .input = {reads_rows(Arg::kDY, Value::kDMid), parameters(), writes(Arg::kDX, Value::kDAttention)},
      .weights = {reads_rows(Arg::kDY, Value::kDMid), reads(Arg::kX, Value::kAttention), gradient()},
      .forward_types = projection_types(kOfHeads),
      .backward_types = {takes(Arg::kDY, {kInvariant}), takes(Arg::kX, {kOfHeads}), leaves(Arg::kDX, kOfHeads)},
      .product =
          [](const Sizes& s) {
            return MatrixProduct{s.N, s.d, s.q};
          },
      .moved = [](const Sizes& s, Pass pass) { return projection_moved(s, s.q, pass); },
      .kernels = {fused(), aten([](const Sizes& s, Pass pass) { return projection_aten(s, s.q, pass); }), reference()},
  };
}

PartDeclaration down() {
  return {
      .part = arch::Part::kDown,
      .standing = Standing::kMlpBlock,
      .halves = true,
      .roles = {arch::Role::kDown, arch::Role::kDownBias},
      .forward = {reads(Arg::kX, Value::kActivation), reads(Arg::kResidual, Value::kMid), parameters(),
                  sums(Arg::kY, Value::kResidual, 1)},
      .backward = {reads_rows(Arg::kDY, Value::kDResidual, 1), reads(Arg::kX, Value::kActivation), parameters(),
                   writes(Arg::kDX, Value::kDActivation), gradient()},
      .input = {reads_rows(Arg::kDY, Value::kDResidual, 1), parameters(), writes(Arg::kDX, Value::kDActivation)},
      .weights = {reads_rows(Arg::kDY, Value::kDResidual, 1), reads(Arg::kX, Value::kActivation), gradient()},
      .forward_types = projection_types(kOfFfn),
      .backward_types = {takes(Arg::kDY, {kInvariant}), takes(Arg::kX, {kOfFfn}), leaves(Arg::kDX, kOfFfn)},
      .product =
          [](const Sizes& s) {
            return MatrixProduct{s.N, s.d, s.f};
          },
      .moved = [](const Sizes& s, Pass pass) { return projection_moved(s, s.f, pass); },
      .kernels = {fused(), aten([](const Sizes& s, Pass pass) { return projection_aten(s, s.f, pass); }), reference()},
  };
}

// The down projection of the shared experts. Its result is added to the middle of the layer before that of the routed
// experts.
PartDeclaration shared_down() {
  PartDeclaration d = down();
  const PartOperand d_y = reads_rows(Arg::kDY, Value::kDResidual, 1), x = reads(Arg::kX, Value::kSharedActivation);
  d.part = arch::Part::kSharedDown;
  d.halves = d.again = false;
  d.roles = {arch::Role::kSharedDown};
  d.forward = {x, reads(Arg::kResidual, Value::kMid), parameters(), writes(Arg::kY, Value::kSharedOut)};
  d.backward = {d_y, x, parameters(), writes(Arg::kDX, Value::kDSharedActivation), gradient()};
  d.input = d.weights = {};
  d.product = [](const Sizes& s) { return MatrixProduct{s.N, s.d, s.x}; };
  d.moved = [](const Sizes& s, Pass pass) { return projection_moved(s, s.x, pass); };
  d.kernels = kernels_of_experts(nullptr, [](const Sizes& s, Pass pass) { return projection_aten(s, s.x, pass); });
  return d;
}

}  // namespace

std::vector<PartDeclaration> projections() {
  return {out_projection(), down(), shared_down()};
}

}  // namespace molen::program::parts
