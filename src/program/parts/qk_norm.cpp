// RMSNorm of the queries and keys of q|k|v, over each head or over all heads together. Values of q|k|v are not changed.
// The backward computes the statistics again from the saved q|k|v before the norms: the statistics are cheaper to
// compute than to keep.
#include <algorithm>

#include "program/parts/part.h"

namespace molen::program::parts {
namespace {

i64 weights_of(const Sizes& s) {
  return s.query_norm + s.key_norm;
}

// Forward reads and writes all columns. Backward reads queries and keys, and changes their gradients in place.
i64 qk_norm_moved(const Sizes& s, Pass pass) {
  const i64 weights = weights_of(s);
  if (!is_backward(pass)) return s.e * (2 * s.N * s.Q + weights);
  return s.e * (3 * s.N * qk_columns(s) + weights) + 2 * s.g * weights;
}

// The sums of the weights' gradients, one for each thread (math/vector_kernels.h).
i64 qk_norm_partials(const Sizes& s, Pass pass) {
  return is_backward(pass) ? aligned(4 * s.threads * weights_of(s)) : 0;
}

// The root mean square of each group of queries. Groups of keys need no more, since there are at most as many.
i64 qk_norm_reference(const Sizes& s, Pass pass) {
  return is_backward(pass) ? aligned(8 * s.N * s.q / s.query_norm) : 0;
}

// The temporaries of the queries. The keys need no more, since they are at most as many.
i64 qk_norm_aten(const Sizes& s, Pass pass) {
  if (s.bf16) return qk_norm_partials(s, pass);
  const AtenScratch aten{s};
  const i64 values = aten.wide(s.N * s.q), norms = aten.wide(s.N * s.q / s.query_norm);
  if (!is_backward(pass)) return 2 * values + norms + aten.widened(s.query_norm);
  return 3 * values + norms + std::max(aten.wide(s.query_norm), norms);
}

}  // namespace

std::vector<PartDeclaration> qk_norms() {
  const PartOperand x = reads(Arg::kX, Value::kProjected);
  return {{
      .part = arch::Part::kQkNorm,
      .standing = Standing::kAttentionBlock,
      .roles = {arch::Role::kQueryNorm, arch::Role::kKeyNorm},
      .forward = {x, parameters(), only(When::kRotates, writes(Arg::kY, Value::kNormedQkv)),
                  only(When::kStands, writes(Arg::kY, Value::kQkv))},
      .backward = {x, parameters(), only(When::kRotates, turns(Arg::kDQkv, Value::kDNormedQkv, Value::kDProjected)),
                   only(When::kStands, turns(Arg::kDQkv, Value::kDQkv, Value::kDProjected)), gradient()},
      .forward_types = {takes(Arg::kX, {kOfHeads}), leaves(Arg::kY, kOfHeads)},
      .backward_types = {takes(Arg::kX, {kOfHeads}), retypes(Arg::kDQkv, kOfHeads, kOfHeads)},
      .moved = qk_norm_moved,
      .kernels = {fused(qk_norm_partials), aten(qk_norm_aten), reference(qk_norm_reference)},
  }};
}

}  // namespace molen::program::parts
