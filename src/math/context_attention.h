// Causal attention of some queries over some keys of the same sequences, on CPU in fp32, on raw pointers, without
// allocating tensors. A rank that has part of each sequence computes this (arch/context_parallel.h), either over all
// keys at once or over the keys of one rank after another. Whole sequences of several documents use it too. The
// formulas are those of math/attention.h, with sums over the keys j that query i sees:
//
//   start_i <= position_j <= position_i      start_i: the position where the document of query i begins
//
// Rows are at the rising positions of the runs; ALiBi uses distances of positions. The forward continues from the
// output of earlier keys, as the online softmax does, so a ring of calls computes the same softmax as one call. A query
// that sees none of the keys keeps its output. The backward over some keys needs o and lse of all keys. Tiles that the
// masks rule out cost nothing. Bits do not depend on the number of threads. They depend, by rounding, on how keys are
// divided over calls.
//
// Letters: B sequences; R query rows and C key rows of each sequence, in order of position; h query heads, and k
// key/value heads of D elements. Head j of a row's operand is at the row's pointer + j * D.
//
// The scratch in bytes is that of math/attention.h, with W = D rounded up to a multiple of 16, plus 16.
#pragma once

#include <cstdint>
#include <span>

#include "base/position_run.h"
#include "math/attention.h"

namespace molen::math {

struct ContextShape {
  std::int64_t B = 0, h = 0, k = 0, D = 0;  // as in AttentionShape
  std::span<const PositionRun> queries, keys;
  const std::int32_t* starts = nullptr;  // [B, R], never decreasing within a sequence; null: one document
  int threads = 1;
  const float* alibi = nullptr;  // h slopes, or null for none
  AttentionIsa isa = AttentionIsa::kBest;
};

// Rows are `stride` elements apart; k and v of a row may belong to one packed row.
struct ContextOperands {
  const float* q;  // [B * R rows]
  std::int64_t q_stride;
  const float *k, *v;  // [B * C rows]
  std::int64_t kv_stride;
};

struct ContextGradients {
  float* d_q;
  std::int64_t d_q_stride;
  bool add_q;  // adds to d_q; otherwise d_q is overwritten, like d_k and d_v
  float *d_k, *d_v;
  std::int64_t d_kv_stride;
  bool add_kv;
};

std::int64_t context_forward_scratch(const ContextShape& shape);
std::int64_t context_backward_scratch(const ContextShape& shape);

// o is [B * R, h*D] and lse [B, h, R]. With `first`, overwrites both, with 0 and -infinity for a query that sees no
// key. Otherwise they hold the output of earlier keys; where lse is -infinity there were none, and o is not read.
void context_forward(const ContextShape& shape, const ContextOperands& operands, bool first, float* o, float* lse,
                     void* scratch);

// o and lse are the results over all keys of the queries.
void context_backward(const ContextShape& shape, const float* d_o, const ContextOperands& operands, const float* o,
                      const float* lse, const ContextGradients& gradients, void* scratch);

// Throws Error when a start is not a position at or before its query's position, or when starts decrease. starts is [B,
// R].
void check_starts(std::int64_t B, std::span<const PositionRun> queries, const std::int32_t* starts);

}  // namespace molen::math
