// The interface between attention.cpp, which splits the work over threads, and the kernels, which each compute a piece
// of it. Plain declarations only: the kernel files are compiled with flags of their own, and an inline function from a
// shared header could then run on a processor that lacks the instructions.
#pragma once

#include <cstdint>

namespace molen::math::attention_detail {

using i64 = std::int64_t;

enum Tile : i64 {
  kTileColumns = 128,  // keys of a tile
  kForwardRows = 288,  // query rows of one forward piece, over the heads that share the keys
  kBackwardRows = 96,  // query rows of one head that are combined with a tile of keys at a time
  kMaxHeadsPerPiece = 8,
  kMaxD = 256,
};

struct Forward {
  i64 B, S, h, k, D;
  const float* alibi;
  const float* qkv;
  float* o;
  float* lse;
};

struct Backward {
  i64 B, S, h, k, D;
  const float* alibi;
  const float *d_o, *qkv, *o, *lse;
  float* d_qkv;
};

// Each function writes outputs that no other piece writes.
struct Kernels {
  // Computes rows i0..i0+n of `heads` query heads from `head` on. All of them read one key/value head, and heads * n <=
  // kForwardRows.
  void (*forward_rows)(const Forward&, i64 b, i64 head, i64 heads, i64 i0, i64 n, float* scratch);
  // Computes dk and dv of the tile of keys that starts at j0. With with_dq, also adds the tile's part of dq; the tiles
  // then come in rising order from 0.
  void (*backward_columns)(const Backward&, i64 b, i64 kv, i64 j0, bool with_dq, float* scratch);
  // Computes only dq, for rows i0..i0+n of one query head; n <= kBackwardRows.
  void (*backward_rows)(const Backward&, i64 b, i64 head, i64 i0, i64 n, float* scratch);
};

extern const Kernels kGenericKernels;
extern const Kernels kAvx2Kernels;    // x86-64 only
extern const Kernels kAvx512Kernels;  // x86-64 only

}  // namespace molen::math::attention_detail
