// Causal attention of some queries over some keys of the same sequences, on CPU in fp32, on raw pointers and allocating
// no tensors: what a rank that has part of each sequence computes (arch/context_parallel.h), over all keys at once or
// over one rank's after another's, and what whole sequences of several documents need. The formulas of
// math/attention.h, with sums over the keys j that query i sees:
//
//   start_i <= position_j <= position_i      start_i: the position where the document of query i begins
//
// Rows stand at the positions of runs, rising; ALiBi goes by distance of positions. Forward continues from the output
// of earlier keys, as the online softmax does, so that a ring of calls makes the same softmax as one call; a query that
// sees none of the keys is left alone. Backward of some keys wants o and lse of all. Tiles that the masks rule out cost
// nothing. Threads do not change bits; how keys are divided over calls does, as rounding.
//
// Letters: B sequences; R query rows and C key rows of each, in order of position; h query heads, k key/value heads of
// D elements. Head j of the operands of a row is at its pointer + j * D.
//
// Scratch in bytes, W = D rounded up to a multiple of 16, plus 16: as math/attention.h has it.
#pragma once

#include <cstdint>
#include <span>

#include "base/position_run.h"
#include "math/attention.h"

namespace molen::math {

struct ContextShape {
  std::int64_t B = 0, h = 0, k = 0, D = 0;  // as AttentionShape
  std::span<const PositionRun> queries, keys;
  const std::int32_t* starts = nullptr;  // [B, R], never falling within a sequence; null: one document
  int threads = 1;
  const float* alibi = nullptr;  // h slopes, or none
  AttentionIsa isa = AttentionIsa::kBest;
};

// Rows are `stride` elements apart; k and v of a row may be one packed row's.
struct ContextOperands {
  const float* q;  // [B * R rows]
  std::int64_t q_stride;
  const float *k, *v;  // [B * C rows]
  std::int64_t kv_stride;
};

struct ContextGradients {
  float* d_q;
  std::int64_t d_q_stride;
  bool add_q;  // to what is in d_q; else it is overwritten, as d_k and d_v
  float *d_k, *d_v;
  std::int64_t d_kv_stride;
  bool add_kv;
};

std::int64_t context_forward_scratch(const ContextShape& shape);
std::int64_t context_backward_scratch(const ContextShape& shape);

// o [B * R, h*D], lse [B, h, R]. first: overwrites both, with 0 and -infinity where a query sees no key; else they hold
// the output of earlier keys (lse -infinity: none, o is then not read).
void context_forward(const ContextShape& shape, const ContextOperands& operands, bool first, float* o, float* lse,
                     void* scratch);

// o and lse are those of all keys of the queries.
void context_backward(const ContextShape& shape, const float* d_o, const ContextOperands& operands, const float* o,
                      const float* lse, const ContextGradients& gradients, void* scratch);

// Throws Error where a start is not a position at or before its query's, or falls. starts [B, R].
void check_starts(std::int64_t B, std::span<const PositionRun> queries, const std::int32_t* starts);

}  // namespace molen::math
