// A norm and the product that follows it: q|k|v from a layer's input, gate|up from its middle.
#include <algorithm>

#include "program/parts/part.h"

namespace molen::program::parts {
namespace {

// Returns the bytes that the part moves. To the bytes of a linear layer d -> out it adds the statistics and weights (if
// there is a norm), the residual to which d_in is added (unless the reduction of the rows that tensor ranks keep does
// this), the norm's gradients, and the norm's input if the product does not read it.
i64 norm_product_moved(const Sizes& s, i64 out, Pass pass) {
  const i64 x = residual_bytes(s), read = s.a * s.stats * s.N + s.e * s.norm_vectors * s.d;
  const bool input = pass == Pass::kBackward || pass == Pass::kBackwardInput;
  return linear_moved(s, s.d, out, pass) + read + (input ? (s.sharded ? 0 : x) + 2 * s.g * s.norm_vectors * s.d : 0) +
         (pass == Pass::kBackwardInput ? x : 0);
}

i64 norm_product_reference(const Sizes& s, Pass) {
  return aligned(s.e * s.N * s.d);
}

i64 norm_product_fused(const Sizes& s, Pass pass) {
  return aligned(4 * s.N * s.d) + norm_partials(s, pass);
}

i64 norm_product_aten(const Sizes& s, i64 out, Pass pass) {
  const AtenScratch aten{s};
  const i64 rows = aten.narrow(s.N * s.d);
  if (pass == Pass::kForward) return rows + aten.norm_output();
  const i64 input = pass == Pass::kBackwardWeights ? 0 : aten.norm_backward(),
            weights =
                pass == Pass::kBackwardInput ? 0 : std::max(aten.norm_output_again(), aten.linear_gradient(s.d, out));
  return rows + std::max(input, weights);
}

// The scratch of the assembled weights and gradients of q|k|v. One half of a backward has only those that it uses.
i64 qkv_shared(const Sizes& s, Pass pass) {
  if (!s.kv_copied) return 0;
  return (pass == Pass::kBackwardWeights ? 0 : aligned(s.e * s.Q * s.d) + s.biases * aligned(s.e * s.Q)) +
         (is_backward(pass) && pass != Pass::kBackwardInput ? aligned(s.g * s.Q * s.d) + s.biases * aligned(s.g * s.Q)
                                                            : 0);
}

// The bytes that are moved to assemble the weights and gradients of q|k|v. Weights are read and written. Gradients are
// read, and written or added to. Gradients of keys and values are always added to zeros; gradients of queries are added
// if the op adds to its gradient. The zeros of other ranks' heads are not counted.
i64 qkv_assembled(const Sizes& s, Pass pass, bool adds) {
  if (!s.kv_copied) return 0;
  const auto elements = [&](i64 rows) { return rows * (s.d + s.biases); };
  const bool weights = pass != Pass::kBackwardWeights, gradients = is_backward(pass) && pass != Pass::kBackwardInput;
  return (weights ? 2 * s.e * elements(s.Q) : 0) +
         (gradients ? s.g * ((adds ? 4 : 2) * elements(s.q) + 4 * elements(s.Q - s.q)) : 0);
}

// The gradient of the norm's input is a sum over the ranks that share the product's outputs. The residual gradient that
// is added to it is whole; each rank adds its own rows.
std::vector<OperandRule> norm_product_types(AxisType outputs) {
  return {takes(Arg::kDY, {outputs}), takes(Arg::kX, {kReplicated}), takes(Arg::kStats, {kReplicated}),
          takes(Arg::kDResidual, {kInvariant}), retypes(Arg::kDX, kInvariant, kPartial)};
}

PartDeclaration norm_qkv() {
  using arch::Role;
  const PartOperand x = reads_rows(Arg::kX, Value::kResidual), stats = reads(Arg::kStats, Value::kStats1),
                    d_x = sums_onto(Arg::kDX, Value::kDResidual, {Value::kDMid}),
                    turned = only(When::kTurnsQkv, reads(Arg::kDY, Value::kDProjected)),
                    as_is = only(When::kHandsQkv, reads(Arg::kDY, Value::kDQkv));
  return {
      .part = arch::Part::kNormQkv,
      .standing = Standing::kAttentionBlock,
      .halves = true,
      .roles = {Role::kAttentionNorm, Role::kAttentionNormBias, Role::kQuery, Role::kKey, Role::kValue,
                Role::kQueryBias, Role::kKeyBias, Role::kValueBias},
      .forward = {x, parameters(), only(When::kTurnsQkv, writes(Arg::kY, Value::kProjected)),
                  only(When::kHandsQkv, writes(Arg::kY, Value::kQkv)), writes(Arg::kStats, Value::kStats1)},
      .backward = {turned, as_is, x, stats, parameters(), d_x, gradient()},
      .input = {turned, as_is, x, stats, parameters(), d_x, only(When::kNormWeights, gradient())},
      .weights = {turned, as_is, x, stats, parameters(), gradient()},
      .forward_types = {takes(Arg::kX, {kReplicated}), leaves(Arg::kY, kOfHeads), leaves(Arg::kStats, kReplicated)},
      .backward_types = norm_product_types(kOfHeads),
      .product =
          [](const Sizes& s) {
            return MatrixProduct{s.N, s.Q, s.d};
          },
      .moved = [](const Sizes& s, Pass pass) { return norm_product_moved(s, s.Q, pass); },
      .kernels = {fused(norm_product_fused),
                  aten([](const Sizes& s, Pass pass) { return norm_product_aten(s, s.Q, pass); }),
                  reference(norm_product_reference)},
      .shared_scratch = qkv_shared,
      .assembled = qkv_assembled,
  };
}

PartDeclaration norm_up() {
  using arch::Role;
  const PartOperand x = reads_rows(Arg::kX, Value::kMid), stats = reads(Arg::kStats, Value::kStats2),
                    d_y = reads(Arg::kDY, Value::kDUp), d_x = sums_onto(Arg::kDX, Value::kDMid, {Value::kDResidual, 1});
  return {
      .part = arch::Part::kNormUp,
      .standing = Standing::kMlpBlock,
      .halves = true,
      .roles = {Role::kMlpNorm, Role::kMlpNormBias, Role::kGate, Role::kUp, Role::kUpBias},
      .forward = {x, parameters(), writes(Arg::kY, Value::kUp), writes(Arg::kStats, Value::kStats2)},
      .backward = {d_y, x, stats, parameters(), d_x, gradient()},
      .input = {d_y, x, stats, parameters(), d_x, only(When::kNormWeights, gradient())},
      .weights = {d_y, x, stats, parameters(), gradient()},
      .forward_types = {takes(Arg::kX, {kReplicated}), leaves(Arg::kY, kOfFfn), leaves(Arg::kStats, kReplicated)},
      .backward_types = norm_product_types(kOfFfn),
      .product =
          [](const Sizes& s) {
            return MatrixProduct{s.N, s.U, s.d};
          },
      .moved = [](const Sizes& s, Pass pass) { return norm_product_moved(s, s.U, pass); },
      .kernels = {fused(norm_product_fused),
                  aten([](const Sizes& s, Pass pass) { return norm_product_aten(s, s.U, pass); }),
                  reference(norm_product_reference)},
  };
}

}  // namespace

std::vector<PartDeclaration> norm_products() {
  return {norm_qkv(), norm_up()};
}

}  // namespace molen::program::parts
