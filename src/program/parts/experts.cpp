// The experts of a sparse layer on rows in expert order: grouped products, one for each expert on its rows, and the
// activation between them. Costs are those of R rows; a rank gets at most G.
#include <algorithm>

#include "program/parts/part.h"

namespace molen::program::parts {
namespace {

// Returns the bytes that the products in -> out of all experts move: as for a linear layer (sizes.h), plus the offsets.
i64 grouped_moved(const Sizes& s, i64 in, i64 out, Pass pass) {
  const i64 weights = s.L * in * out, offsets = 4 * (s.L + 1);
  if (!is_backward(pass)) return s.e * (s.R * (in + out) + weights) + offsets;
  return s.e * (s.R * (out + 2 * in) + weights) + 2 * s.g * weights + offsets;
}

// Where the number of rows depends on the router, it is read from the offsets.
i64 expert_activation_moved(const Sizes& s, Pass pass) {
  const i64 offsets = s.apart || s.drops ? 4 * (s.L + 1) : 0;
  return s.e * s.R * (is_backward(pass) ? 2 * s.W + s.w : s.W + s.w) + offsets;
}

// The scratch of math::grouped_tn: each thread copies some columns of some rows.
i64 grouped_fused(const Sizes& s, i64 out, Pass pass) {
  constexpr i64 kGroupOutputs = 256, kGroupTerms = 1024;
  return is_backward(pass) && out > kGroupOutputs ? aligned(s.threads * kGroupTerms * kGroupOutputs * 4) : 0;
}

i64 grouped_aten(const Sizes& s, i64 in, i64 out, Pass pass) {
  return is_backward(pass) ? AtenScratch{s}.weight_gradient(in, out, s.G) : 0;
}

// Tensor ranks cut each expert as they cut the MLP of a dense layer. `in` and `out` are the types of a product's input
// and output; `d_out` and `d_in` are the types of their gradients.
std::vector<OperandRule> forward_types(AxisType in, AxisType out) {
  return {by_experts(takes(Arg::kX, {in})), by_experts(takes(Arg::kOffsets, {kReplicated})),
          by_experts(leaves(Arg::kY, out))};
}
std::vector<OperandRule> backward_types(AxisType d_out, AxisType in, AxisType d_in) {
  return {by_experts(takes(Arg::kDY, {d_out})), by_experts(takes(Arg::kX, {in})),
          by_experts(takes(Arg::kOffsets, {kReplicated})), by_experts(leaves(Arg::kDX, d_in))};
}

// An operand whose rows are in the order of experts. With several expert ranks, the rank uses `of_rank` instead, which
// holds only the rows for its own experts.
struct ByExperts {
  PartOperand here, apart;
  ByExperts(PartOperand operand, Value of_rank)
      : here(only(When::kExpertsHere, operand)), apart(only(When::kExpertsApart, operand)) {
    apart.value = of_rank;
  }
};
const ByExperts& offsets() {
  static const ByExperts all(reads(Arg::kOffsets, Value::kOffsets), Value::kExpertOffsets);
  return all;
}

PartDeclaration expert_up() {
  const ByExperts x(reads(Arg::kX, Value::kExpertRows), Value::kRankRows),
      d_x(writes(Arg::kDX, Value::kDExpertRows), Value::kDRankRows);
  return {
      .part = arch::Part::kExpertUp,
      .standing = Standing::kMlpBlock,
      .roles = {arch::Role::kExpertGate, arch::Role::kExpertUp},
      .forward = {x.here, x.apart, offsets().here, offsets().apart, parameters(), writes(Arg::kY, Value::kExpertUp)},
      .backward = {reads(Arg::kDY, Value::kDExpertUp), x.here, x.apart, offsets().here, offsets().apart, parameters(),
                   d_x.here, d_x.apart, gradient()},
      .forward_types = forward_types(kReplicated, kOfFfn),
      .backward_types = backward_types(kOfFfn, kReplicated, kPartial),
      .product =
          [](const Sizes& s) {
            return MatrixProduct{s.R, s.W, s.d, s.L};
          },
      .moved = [](const Sizes& s, Pass pass) { return grouped_moved(s, s.d, s.W, pass); },
      .kernels = kernels_of_experts([](const Sizes& s, Pass pass) { return grouped_fused(s, s.W, pass); },
                                    [](const Sizes& s, Pass pass) { return grouped_aten(s, s.d, s.W, pass); }),
  };
}

PartDeclaration expert_activation() {
  // With neither expert ranks nor a capacity there is a row for each slot, so the number of rows is known without
  // offsets.
  const PartOperand x = reads(Arg::kX, Value::kExpertUp),
                    offsets_here = only(When::kDropsHere, reads(Arg::kOffsets, Value::kOffsets));
  return {
      .part = arch::Part::kExpertActivation,
      .standing = Standing::kMlpBlock,
      .forward = {x, offsets_here, offsets().apart, writes(Arg::kY, Value::kExpertActivation)},
      .backward = {reads(Arg::kDY, Value::kDExpertActivation), x, offsets_here, offsets().apart,
                   writes(Arg::kDX, Value::kDExpertUp)},
      .forward_types = {by_experts(takes(Arg::kX, {kOfFfn})), by_experts(takes(Arg::kOffsets, {kReplicated})),
                        by_experts(leaves(Arg::kY, kOfFfn))},
      .backward_types = {by_experts(takes(Arg::kDY, {kOfFfn})), by_experts(takes(Arg::kX, {kOfFfn})),
                         by_experts(takes(Arg::kOffsets, {kReplicated})), by_experts(leaves(Arg::kDX, kOfFfn))},
      .moved = expert_activation_moved,
      .kernels = kernels_of_experts(),
  };
}

PartDeclaration expert_down() {
  const PartOperand x = reads(Arg::kX, Value::kExpertActivation);
  const ByExperts y(writes(Arg::kY, Value::kExpertOut), Value::kRankOut),
      d_y(reads(Arg::kDY, Value::kDExpertOut), Value::kDRankOut);
  return {
      .part = arch::Part::kExpertDown,
      .standing = Standing::kMlpBlock,
      .roles = {arch::Role::kExpertDown},
      .again = false,
      .forward = {x, offsets().here, offsets().apart, parameters(), y.here, y.apart},
      .backward = {d_y.here, d_y.apart, x, offsets().here, offsets().apart, parameters(),
                   writes(Arg::kDX, Value::kDExpertActivation), gradient()},
      .forward_types = forward_types(kOfFfn, kPartial),
      .backward_types = backward_types(kReplicated, kOfFfn, kOfFfn),
      .product =
          [](const Sizes& s) {
            return MatrixProduct{s.R, s.d, s.w, s.L};
          },
      .moved = [](const Sizes& s, Pass pass) { return grouped_moved(s, s.w, s.d, pass); },
      .kernels = kernels_of_experts([](const Sizes& s, Pass pass) { return grouped_fused(s, s.d, pass); },
                                    [](const Sizes& s, Pass pass) { return grouped_aten(s, s.w, s.d, pass); }),
  };
}

// The shared experts read the rows that the router normalised, and add to the gradient of these rows. The other parts
// of the shared experts are like those of the MLP (activation.cpp, projection.cpp).
PartDeclaration shared_up() {
  const PartOperand x = reads(Arg::kX, Value::kRouted);
  return {
      .part = arch::Part::kSharedUp,
      .standing = Standing::kMlpBlock,
      .roles = {arch::Role::kSharedGate, arch::Role::kSharedUp},
      .forward = {x, parameters(), writes(Arg::kY, Value::kSharedUp)},
      .backward = {reads(Arg::kDY, Value::kDSharedUp), x, parameters(),
                   turns(Arg::kDX, Value::kDDispatched, Value::kDRouted), gradient()},
      .forward_types = {takes(Arg::kX, {kReplicated}), leaves(Arg::kY, kOfFfn)},
      .backward_types = {takes(Arg::kDY, {kOfFfn}), takes(Arg::kX, {kReplicated}),
                         retypes(Arg::kDX, kPartial, kPartial)},
      .product =
          [](const Sizes& s) {
            return MatrixProduct{s.N, s.X, s.d};
          },
      .moved = [](const Sizes& s,
                  Pass pass) { return linear_moved(s, s.d, s.X, pass) + (is_backward(pass) ? residual_bytes(s) : 0); },
      .kernels = kernels_of_experts(
          nullptr,
          [](const Sizes& s, Pass pass) { return is_backward(pass) ? AtenScratch{s}.linear_gradient(s.d, s.X) : 0; }),
  };
}

}  // namespace

std::vector<PartDeclaration> experts() {
  return {expert_up(), expert_activation(), expert_down(), shared_up()};
}

}  // namespace molen::program::parts
