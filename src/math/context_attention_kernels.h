// The interface between context_attention.cpp, which splits the work over threads, and the kernels, which each compute
// a piece of it. Plain declarations only, as in attention_kernels.h, whose tile sizes also apply here.
#pragma once

#include <cstdint>

#include "math/attention_kernels.h"

namespace molen::math::attention_detail {

struct ContextRun {  // rows from `row` on, of each sequence, have positions [first, last)
  i64 first, last, row;
};
struct ContextRows {  // n rows from `row` on of each sequence, at positions from `first` on
  i64 row, first, n;
};

// Row r of sequence b is row b * rows + r of q, o and d_o, and row b * key_rows + r of k and v. Strides are in
// elements.
struct ContextForward {
  i64 B, h, k, D, rows, key_rows;
  const ContextRun* keys;
  int key_runs;
  const float* alibi;
  const std::int32_t* starts;  // [B, rows] or null
  const float* q;
  i64 q_stride;
  const float *k_rows, *v_rows;
  i64 kv_stride;
  bool first;  // whether there is no output of earlier keys
  float *o, *lse;
};

struct ContextBackward {
  i64 B, h, k, D, rows, key_rows;
  const ContextRun *queries, *keys;
  int query_runs, key_runs;
  const float* alibi;
  const std::int32_t* starts;
  const float* q;
  i64 q_stride;
  const float *k_rows, *v_rows;
  i64 kv_stride;
  const float *d_o, *o, *lse;
  float* d_q;  // is added to
  i64 d_q_stride;
  float *d_k, *d_v;
  i64 d_kv_stride;
  bool add_kv;
};

// Each function writes outputs that no other piece writes. The rows of a piece belong to one run.
struct ContextKernels {
  // Computes `heads` query heads from `head` on. All of them read one key/value head, and heads * rows <= kForwardRows.
  void (*forward_rows)(const ContextForward&, i64 b, i64 head, i64 heads, const ContextRows& rows, float* scratch);
  // Computes dk and dv of a tile of at most kTileColumns keys. With with_dq, also adds the tile's part of dq; the tiles
  // then come in rising order.
  void (*backward_keys)(const ContextBackward&, i64 b, i64 kv, const ContextRows& tile, bool with_dq, float* scratch);
  // Computes only dq, for at most kBackwardRows rows of one query head. The rows begin a multiple of kBackwardRows
  // after the first row of their run.
  void (*backward_rows)(const ContextBackward&, i64 b, i64 head, const ContextRows& rows, float* scratch);
};

extern const ContextKernels kGenericContextKernels;
extern const ContextKernels kAvx2ContextKernels;    // x86-64 only
extern const ContextKernels kAvx512ContextKernels;  // x86-64 only

}  // namespace molen::math::attention_detail
