// The router of a sparse layer, and the copies of rows between token order and expert order. `route` chooses the
// experts of each token, `balance` adds the balance loss of each sequence to the step's sums, `dispatch` copies rows to
// the experts, and `combine` adds the results of the experts to the residual stream. There are M = N t slots, of which
// some have a row in expert order (math/expert_order.h): `route` drops choices beyond the capacity of an expert. If
// context ranks share each sequence, it counts the choices instead, and `limit` drops choices when the ranks have
// exchanged their counts.
#include <algorithm>

#include "program/parts/part.h"

namespace molen::program::parts {
namespace {

// Returns the bytes of the counts of a context rank: for each sequence, two runs of positions, and two kinds of tokens.
i64 bytes_of_counts(const Sizes& s) {
  return s.drops && s.c > 1 ? 4 * s.B * 2 * 2 * s.E : 0;
}

// Labels, the choice, places and offsets are integers of 4 bytes.
i64 route_moved(const Sizes& s, Pass pass) {
  const i64 weights = (s.E + s.norm_vectors) * s.d + s.router_bias,
            kept = s.a * (s.N * (s.stats + s.E + 1 + s.t) + 2 * s.B * s.E) + 4 * (s.N + s.M);
  if (!is_backward(pass)) return s.e * (2 * s.N * s.d + weights) + kept + bytes_of_counts(s);
  // The reduction of the rows that tensor ranks keep adds the residual gradient. The choice is made, so its bias is not
  // read.
  return s.e * ((s.sharded ? 3 : 4) * s.N * s.d + weights - s.router_bias) + kept + 2 * s.g * weights;
}

// Scratch holds the number of tokens that each expert has taken.
i64 limit_scratch(const Sizes& s, Pass) {
  return aligned(4 * s.E);
}

// Scratch holds the logits, and for each thread the sums of scores and the choice of a token. It also holds what
// applying the capacity takes, unless that is left to `limit`.
i64 route_forward_scratch(const Sizes& s) {
  return aligned(s.a * s.N * s.E) + aligned(8 * s.threads * s.E) + aligned(4 * s.threads * s.t) +
         (s.drops && s.c == 1 ? limit_scratch(s, Pass::kForward) : 0);
}

// Scratch holds one loss for each sequence.
i64 balance_scratch(const Sizes& s, Pass) {
  return aligned(s.a * s.B);
}

// In backward, scratch holds the gradients of the logits and the recomputed rows of the norm.
i64 route_reference(const Sizes& s, Pass pass) {
  if (!is_backward(pass)) return route_forward_scratch(s);
  return aligned(s.a * s.N * s.E) + aligned(s.e * s.N * s.d);
}

i64 route_fused(const Sizes& s, Pass pass) {
  return route_reference(s, pass) + norm_partials(s, pass);
}

// In bf16, the logits and their gradients are rounded into buffers beside those of the products.
i64 route_aten(const Sizes& s, Pass pass) {
  const AtenScratch aten{s};
  const i64 rounded = aten.narrow(s.N * s.E);
  if (!is_backward(pass)) return rounded + aten.widened(s.router_bias) + route_forward_scratch(s);
  return aten.wide(s.N * s.E) + rounded + aten.narrow(s.N * s.d) +
         std::max(aten.weight_gradient(s.d, s.E, s.N), aten.norm_backward());
}

i64 dispatch_moved(const Sizes& s, Pass pass) {
  return s.e * (s.N + s.R) * s.d + 4 * (is_backward(pass) ? s.M : 2 * s.M + s.E + 1);
}

// Scratch holds the number of tokens of each expert.
i64 dispatch_scratch(const Sizes& s, Pass pass) {
  return is_backward(pass) ? 0 : aligned(4 * s.E);
}

// Forward reads the residual only in the rows in which the rank adds it. After shared experts, all rows hold a term of
// the sum.
i64 combine_moved(const Sizes& s, Pass pass) {
  const i64 residual = s.x > 0 ? s.N : s.own;
  if (!is_backward(pass)) return s.e * (s.R + s.N + residual) * s.d + (s.a + 4) * s.M;
  return s.e * (2 * s.R + s.N) * s.d + (2 * s.a + 4) * s.M;
}

// Each context rank makes a term of the load, and reads the sum of these terms.
OperandRule whole_load() {
  return over_context(takes(Arg::kLoad, {kReplicated}), kReplicated, kReplicated);
}

PartDeclaration route() {
  using arch::Role;
  const PartOperand x = reads_rows(Arg::kX, Value::kMid), labels = reads(Arg::kLabels, Value::kLabels);
  const std::vector<OperandRule> kept{takes(Arg::kStats, {kReplicated}),
                                      takes(Arg::kScores, {kReplicated}),
                                      takes(Arg::kLse, {kReplicated}),
                                      takes(Arg::kChoice, {kReplicated}),
                                      whole_load(),
                                      takes(Arg::kLabels, {kInvariant})};
  // The gradients that the experts return are terms of a sum over tensor ranks, and the router's backward is linear in
  // them. Only the first rank adds the gradients of the losses, so that they are counted once.
  std::vector<OperandRule> backward{takes(Arg::kX, {kReplicated}), takes(Arg::kDY, {kPartial}),
                                    takes(Arg::kDWeights, {kPartial}), takes(Arg::kDResidual, {kInvariant}),
                                    retypes(Arg::kDX, kInvariant, kPartial)};
  backward.insert(backward.end(), kept.begin(), kept.end());
  return {
      .part = arch::Part::kRoute,
      .standing = Standing::kMlpBlock,
      .roles = {Role::kMlpNorm, Role::kMlpNormBias, Role::kRouter, Role::kRouterBias},
      .sums = {kZLoss, kDropped},
      .again = false,
      .forward = {x, labels, parameters(), writes(Arg::kY, Value::kRouted), writes(Arg::kStats, Value::kStats2),
                  writes(Arg::kScores, Value::kRouterScores), writes(Arg::kLse, Value::kRouterLse),
                  only(When::kLimitsNow, writes(Arg::kChoice, Value::kChoice)),
                  only(When::kLimitsLater, writes(Arg::kChoice, Value::kChosen)),
                  only(When::kLimitsLater, writes(Arg::kCounts, Value::kCounts)),
                  writes(Arg::kWeights, Value::kRouterWeights), writes(Arg::kLoad, Value::kLoad), step_sums()},
      .backward = {consumes(Arg::kDY, Value::kDRouted), reads(Arg::kDWeights, Value::kDRouterWeights), x, labels,
                   reads(Arg::kStats, Value::kStats2), reads(Arg::kScores, Value::kRouterScores),
                   reads(Arg::kLse, Value::kRouterLse), reads(Arg::kChoice, Value::kChoice),
                   reads(Arg::kLoad, Value::kLoad), parameters(),
                   sums_onto(Arg::kDX, Value::kDMid, {Value::kDResidual, 1}), gradient()},
      .forward_types = {takes(Arg::kX, {kReplicated}), takes(Arg::kLabels, {kInvariant}), leaves(Arg::kY, kReplicated),
                        leaves(Arg::kStats, kReplicated), leaves(Arg::kScores, kReplicated),
                        leaves(Arg::kLse, kReplicated), leaves(Arg::kChoice, kReplicated),
                        leaves(Arg::kCounts, kReplicated), leaves(Arg::kWeights, kReplicated),
                        over_context(leaves(Arg::kLoad, kReplicated), kReplicated, kPartial)},
      .backward_types = std::move(backward),
      .product =
          [](const Sizes& s) {
            return MatrixProduct{s.N, s.E, s.d};
          },
      .moved = route_moved,
      .kernels = kernels_of_experts(route_fused, route_aten, route_reference),
  };
}

// Turns the choices of the router in place into those that remain.
PartDeclaration limit() {
  return {
      .part = arch::Part::kLimit,
      .standing = Standing::kMlpBlock,
      .sums = {kDropped},
      .again = false,
      .forward = {reads(Arg::kLabels, Value::kLabels), reads(Arg::kCounts, Value::kCountsAll),
                  turns(Arg::kChoice, Value::kChosen, Value::kChoice), step_sums()},
      .forward_types = {takes(Arg::kLabels, {kInvariant}),
                        over_context(takes(Arg::kCounts, {kReplicated}), kReplicated, kReplicated),
                        retypes(Arg::kChoice, kReplicated, kReplicated)},
      .moved = [](const Sizes& s, Pass) { return 4 * (s.N + 2 * s.M) + s.c * bytes_of_counts(s); },
      .kernels = kernels_of_experts(limit_scratch, limit_scratch, limit_scratch),
  };
}

PartDeclaration balance() {
  return {
      .part = arch::Part::kBalance,
      .standing = Standing::kMlpBlock,
      .sums = {kBalanceLoss},
      .again = false,
      .forward = {reads(Arg::kLoad, Value::kLoad), step_sums()},
      .forward_types = {whole_load()},
      .moved = [](const Sizes& s, Pass) { return 2 * s.a * s.B * s.E; },
      .kernels = kernels_of_experts(balance_scratch, balance_scratch, balance_scratch),
  };
}

PartDeclaration dispatch() {
  return {
      .part = arch::Part::kDispatch,
      .standing = Standing::kMlpBlock,
      .forward = {reads(Arg::kX, Value::kRouted), reads(Arg::kChoice, Value::kChoice),
                  writes(Arg::kY, Value::kExpertRows), writes(Arg::kPlaces, Value::kPlaces),
                  writes(Arg::kOffsets, Value::kOffsets)},
      .backward = {reads(Arg::kDY, Value::kDExpertRows), reads(Arg::kPlaces, Value::kPlaces),
                   only(When::kOnlyRouted, writes(Arg::kDX, Value::kDRouted)),
                   only(When::kShares, writes(Arg::kDX, Value::kDDispatched))},
      .forward_types = {takes(Arg::kX, {kReplicated}), takes(Arg::kChoice, {kReplicated}), leaves(Arg::kY, kReplicated),
                        leaves(Arg::kPlaces, kReplicated), leaves(Arg::kOffsets, kReplicated)},
      .backward_types = {takes(Arg::kDY, {kPartial}), takes(Arg::kPlaces, {kReplicated}), leaves(Arg::kDX, kPartial)},
      .moved = dispatch_moved,
      .kernels = kernels_of_experts(dispatch_scratch, dispatch_scratch, dispatch_scratch),
  };
}

PartDeclaration combine() {
  const PartOperand x = reads(Arg::kX, Value::kExpertOut), places = reads(Arg::kPlaces, Value::kPlaces),
                    weights = reads(Arg::kWeights, Value::kRouterWeights);
  const OperandRule rows = takes(Arg::kX, {kPartial}), of_places = takes(Arg::kPlaces, {kReplicated}),
                    of_weights = takes(Arg::kWeights, {kReplicated});
  return {
      .part = arch::Part::kCombine,
      .standing = Standing::kMlpBlock,
      .again = false,
      .forward = {x, places, weights, only(When::kOnlyRouted, reads(Arg::kResidual, Value::kMid)),
                  only(When::kShares, reads(Arg::kResidual, Value::kSharedOut)), sums(Arg::kY, Value::kResidual, 1)},
      .backward = {reads_rows(Arg::kDY, Value::kDResidual, 1), x, places, weights, writes(Arg::kDX, Value::kDExpertOut),
                   writes(Arg::kDWeights, Value::kDRouterWeights)},
      .forward_types = {rows, of_places, of_weights, takes(Arg::kResidual, {kReplicated, kOfRows, kPartial}),
                        leaves(Arg::kY, kPartial)},
      .backward_types = {takes(Arg::kDY, {kInvariant}), rows, of_places, of_weights, leaves(Arg::kDX, kReplicated),
                         leaves(Arg::kDWeights, kPartial)},
      .moved = combine_moved,
      .kernels = kernels_of_experts(),
  };
}

}  // namespace

std::vector<Implementation> kernels_of_experts(BytesOf fused_scratch, BytesOf aten_scratch, BytesOf reference_scratch) {
  const Refusal refuses = [](const KernelRequest& r) -> std::optional<std::string> {
    if (r.cuda) return "experts are computed on the host's cores alone yet, not on cuda";
    if (r.compute == DType::kBF16) return std::nullopt;
    return "ATen's kernels of experts compute in bf16, not in " + std::string(name_of(r.compute));
  };
  return {fused(fused_scratch), aten(aten_scratch, refuses), reference(reference_scratch)};
}

std::vector<PartDeclaration> routing() {
  return {route(), limit(), balance(), dispatch(), combine()};
}

}  // namespace molen::program::parts
