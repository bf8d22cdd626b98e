// The embedding: x_Nd = table[ids_N], plus learned positions.
#include "program/parts/part.h"

namespace molen::program::parts {
namespace {

// A token uses one row of the table. Learned positions are rows of another table, which all sequences share.
i64 embedding_moved(const Sizes& s, Pass pass) {
  const i64 x = residual_bytes(s), rows = (s.N + (s.position == arch::Position::kLearned ? s.S : 0)) * s.d;
  return 4 * s.N + x + (is_backward(pass) ? 2 * s.g : s.e) * rows;
}

i64 embedding_aten(const Sizes& s, Pass pass) {
  if (!is_backward(pass)) return 0;
  const AtenScratch aten{s};
  const bool learned = s.a == 8 && s.position == arch::Position::kLearned;
  return (s.bf16 ? 0 : aten.widened(s.N * s.d)) + (learned ? aten.wide(s.S * s.d) : 0);
}

// The ids, counted as rows of the rank's own table.
i64 embedding_shared(const Sizes& s, Pass) {
  return aligned(4 * s.N);
}

}  // namespace

std::vector<PartDeclaration> embedding() {
  return {{
      .part = arch::Part::kEmbed,
      .standing = Standing::kBefore,
      .roles = {arch::Role::kEmbedding, arch::Role::kPositions},
      .forward = {reads(Arg::kIds, Value::kIds), parameters(), sums(Arg::kY, Value::kResidual, 1)},
      .backward = {reads(Arg::kIds, Value::kIds), reads_rows(Arg::kDY, Value::kDResidual, 1), gradient()},
      .forward_types = {takes(Arg::kIds, {kInvariant}), leaves(Arg::kY, kPartial)},
      .backward_types = {takes(Arg::kIds, {kInvariant}), takes(Arg::kDY, {kInvariant})},
      .moved = embedding_moved,
      .kernels = {fused(), aten(embedding_aten), reference()},
      .shared_scratch = embedding_shared,
  }};
}

}  // namespace molen::program::parts
