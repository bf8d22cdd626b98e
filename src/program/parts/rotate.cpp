// RoPE: rotates the queries and keys of q|k|v in place by the angles of their positions. The backward rotates their
// gradients back.
#include "program/parts/part.h"

namespace molen::program::parts {
std::vector<PartDeclaration> rotations() {
  const PartOperand table = reads(Arg::kRope, Value::kRope);
  return {{
      .part = arch::Part::kRotate,
      .standing = Standing::kAttentionBlock,
      .forward = {table, only(When::kNormsQk, turns(Arg::kQkv, Value::kNormedQkv, Value::kQkv)),
                  only(When::kLeavesQk, turns(Arg::kQkv, Value::kProjected, Value::kQkv))},
      .backward = {table, only(When::kNormsQk, turns(Arg::kDQkv, Value::kDQkv, Value::kDNormedQkv)),
                   only(When::kLeavesQk, turns(Arg::kDQkv, Value::kDQkv, Value::kDProjected))},
      .forward_types = {retypes(Arg::kQkv, kOfHeads, kOfHeads)},
      .backward_types = {retypes(Arg::kDQkv, kOfHeads, kOfHeads)},
      .moved = [](const Sizes& s, Pass) { return 2 * s.e * s.N * qk_columns(s) + s.a * s.S * s.D; },
      // Scratch holds both halves of the heads and one rotated half.
      .kernels = {fused(),
                  aten([](const Sizes& s, Pass) { return s.bf16 ? 0 : 3 * aligned(s.a * (s.N * qk_columns(s) / 2)); }),
                  reference()},
  }};
}

}  // namespace molen::program::parts
