// The interface between attention_narrow.cpp, which splits the work over threads, and the kernels over rows in bf16,
// which each compute a piece of it. Plain declarations only, as in attention_kernels.h.
#pragma once

#include <cstdint>

#include "math/attention_kernels.h"

namespace molen::math::attention_detail {

struct NarrowForward {
  i64 B, S, h, k, D;
  const float* alibi;
  const std::uint16_t* qkv;
  std::uint16_t* o;
  float* lse;
};

struct NarrowBackward {
  i64 B, S, h, k, D;
  const float* alibi;
  const std::uint16_t *d_o, *qkv, *o;
  const float* lse;
  std::uint16_t* d_qkv;
};

// Each function writes outputs that no other piece writes.
struct NarrowAttention {
  // Computes rows i0..i0+n of `heads` query heads from `head` on. All of them read one key/value head, and heads * n <=
  // kForwardRows.
  void (*forward_rows)(const NarrowForward&, i64 b, i64 head, i64 heads, i64 i0, i64 n, float* scratch);
  // Computes dk and dv of the tile of keys that starts at j0. When dq [h / k, S, width of D] is given, also adds the
  // tile's part to it. The tiles then come in rising order from 0, and tile 0 overwrites.
  void (*backward_columns)(const NarrowBackward&, i64 b, i64 kv, i64 j0, float* dq, float* scratch);
  // Rounds dq of all heads on one key/value head to d_qkv, once the last tile of keys is added.
  void (*finish_queries)(const NarrowBackward&, i64 b, i64 kv, const float* dq);
  // Computes only dq, for rows i0..i0+n of one query head; n <= kBackwardRows.
  void (*backward_rows)(const NarrowBackward&, i64 b, i64 head, i64 i0, i64 n, float* scratch);
};

extern const NarrowAttention kNarrowGeneric;
extern const NarrowAttention kNarrowAvx2;  // x86-64 only, like the next three
extern const NarrowAttention kNarrowAvx512;
extern const NarrowAttention kNarrowAvx512Bf16;  // uses the processor's dot products of bf16 (VDPBF16PS)
extern const NarrowAttention kNarrowAmx;         // its tiles (TDPBF16PS), and VDPBF16PS

}  // namespace molen::math::attention_detail
