// The final norm, which is the only norm that is a part without a product.
#include "program/parts/part.h"

namespace molen::program::parts {
namespace {

i64 norm_moved(const Sizes& s, Pass pass) {
  const bool backward = is_backward(pass);
  const i64 stats = s.a * s.stats * s.N,
            weights = s.e * s.norm_vectors * s.d + (backward ? 2 * s.g * s.norm_vectors * s.d : 0);
  return (backward ? 3 : 2) * residual_bytes(s) + stats + weights;
}

i64 norm_aten(const Sizes& s, Pass pass) {
  const AtenScratch aten{s};
  return is_backward(pass) ? aten.norm_backward() : aten.norm_output();
}

}  // namespace

std::vector<PartDeclaration> norms() {
  OperandRule d_x = leaves(Arg::kDX, kPartial);
  d_x.follows = Arg::kDY;
  return {{
      .part = arch::Part::kFinalNorm,
      .standing = Standing::kAfter,
      .roles = {arch::Role::kFinalNorm, arch::Role::kFinalNormBias},
      .forward = {reads_rows(Arg::kX, Value::kResidual), only(When::kNormWeights, parameters()),
                  writes(Arg::kY, Value::kNormed), writes(Arg::kStats, Value::kStatsFinal)},
      // This backward runs immediately after the forward and uses the rows that the forward gathered.
      .backward = {reads(Arg::kDY, Value::kDNormed), reads_rows(Arg::kX, Value::kResidual, 0, Exchange::kGathered),
                   reads(Arg::kStats, Value::kStatsFinal), only(When::kNormWeights, parameters()),
                   sums(Arg::kDX, Value::kDResidual), only(When::kNormWeights, gradient())},
      .forward_types = {takes(Arg::kX, {kReplicated}), leaves(Arg::kY, kReplicated), leaves(Arg::kStats, kReplicated)},
      .backward_types = {takes(Arg::kDY, {kPartial, kInvariant}), takes(Arg::kX, {kReplicated}),
                         takes(Arg::kStats, {kReplicated}), d_x},
      .moved = norm_moved,
      .kernels = {fused(norm_partials), aten(norm_aten), reference()},
  }};
}

}  // namespace molen::program::parts
