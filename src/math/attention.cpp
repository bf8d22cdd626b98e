// Checks shapes, picks the instruction set, and splits the work over threads.
#include "math/attention.h"

#include <omp.h>

#include <algorithm>

#include "base/error.h"
#include "math/attention_kernels.h"

namespace molen::math {
namespace {

using namespace attention_detail;

AttentionIsa resolve(AttentionIsa isa) {
  if (isa != AttentionIsa::kBest) return isa;
  if (attention_isa_available(AttentionIsa::kAvx512)) return AttentionIsa::kAvx512;
  if (attention_isa_available(AttentionIsa::kAvx2)) return AttentionIsa::kAvx2;
  return AttentionIsa::kGeneric;
}

const Kernels& kernels(AttentionIsa isa) {
#if defined(__x86_64__)
  switch (resolve(isa)) {
    case AttentionIsa::kAvx512:
      return kAvx512Kernels;
    case AttentionIsa::kAvx2:
      return kAvx2Kernels;
    default:
      break;
  }
#endif
  return kGenericKernels;
}

void check(const AttentionShape& s) {
  MOLEN_CHECK(s.B >= 0 && s.S >= 0 && s.h > 0 && s.k > 0 && s.h % s.k == 0,
              "attention of B={} S={} with {} query heads on {} key heads", s.B, s.S, s.h, s.k);
  MOLEN_CHECK(s.D > 0 && s.D <= kMaxD, "attention with a head of {} elements; 1 to {} are possible", s.D,
              static_cast<i64>(kMaxD));
  MOLEN_CHECK(s.threads > 0, "attention on {} threads", s.threads);
  MOLEN_CHECK(attention_isa_available(s.isa), "this processor lacks {}", name_of(s.isa));
}

i64 padded_width(i64 D) {
  return (D + 15) / 16 * 16 + 16;
}
i64 ceil_div(i64 a, i64 b) {
  return (a + b - 1) / b;
}
i64 forward_floats(i64 D) {
  return kForwardRows * (2 * padded_width(D) + 162) + 2 * kTileColumns * padded_width(D);
}
i64 backward_floats(i64 D) {
  return kBackwardRows * (2 * padded_width(D) + 290) + (5 * kTileColumns + 6) * padded_width(D);
}

// The five matrix products of a tile are done once if a piece is a whole key/value head, but then there are only B*k
// pieces. Splitting by key tiles and by query tiles gives many pieces and seven products. Both give the same bits.
bool split_finely(const AttentionShape& s) {
  const i64 pieces = s.B * s.k, rounds = ceil_div(pieces, s.threads);
  return static_cast<double>(pieces) / static_cast<double>(rounds * s.threads) < 5.0 / 7.0 && s.S > kTileColumns;
}

// Runs piece(index, scratch of the thread) for all pieces. Pieces are handed out as threads become free: nothing
// depends on which thread takes which.
template <class Piece>
void for_each_piece(const AttentionShape& s, i64 pieces, float* scratch, i64 floats_each, Piece piece) {
#pragma omp parallel num_threads(s.threads)
  {
    float* mine = scratch + omp_get_thread_num() * floats_each;
#pragma omp for schedule(dynamic, 1)
    for (i64 index = 0; index < pieces; ++index) piece(index, mine);
  }
}

}  // namespace

bool attention_isa_available(AttentionIsa isa) {
#if defined(__x86_64__)
  if (isa == AttentionIsa::kAvx512) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  if (isa == AttentionIsa::kAvx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == AttentionIsa::kBest || isa == AttentionIsa::kGeneric;
}

const char* name_of(AttentionIsa isa) {
  switch (resolve(isa)) {
    case AttentionIsa::kAvx512:
      return "avx512";
    case AttentionIsa::kAvx2:
      return "avx2";
    default:
      return "generic";
  }
}

i64 attention_forward_scratch(const AttentionShape& s) {
  return s.threads * 4 * forward_floats(s.D);
}
i64 attention_backward_scratch(const AttentionShape& s) {
  return s.threads * 4 * backward_floats(s.D);
}

void attention_forward(const AttentionShape& s, const float* qkv, float* o, float* lse, void* scratch) {
  check(s);
  const Kernels& f = kernels(s.isa);
  const Forward args{s.B, s.S, s.h, s.k, s.D, s.alibi, qkv, o, lse};
  const i64 group = s.h / s.k, head_parts = ceil_div(group, kMaxHeadsPerPiece), heads = ceil_div(group, head_parts);
  const i64 rows = kForwardRows / heads / 12 * 12;
  const i64 blocks = ceil_div(s.S, rows), columns = s.B * s.k * head_parts;
  for_each_piece(s, blocks * columns, static_cast<float*>(scratch), forward_floats(s.D), [&](i64 index, float* mine) {
    // The last rows see the most keys: longest pieces first, so that threads finish together.
    const i64 i0 = (blocks - 1 - index / columns) * rows;
    const i64 part = index % head_parts, kv = index % columns / head_parts % s.k,
              b = index % columns / head_parts / s.k;
    const i64 first = part * heads, last = std::min(group, first + heads);
    if (first < last) f.forward_rows(args, b, kv * group + first, last - first, i0, std::min(rows, s.S - i0), mine);
  });
}

void attention_backward(const AttentionShape& s, const float* d_o, const float* qkv, const float* o, const float* lse,
                        float* d_qkv, void* scratch) {
  check(s);
  const Kernels& f = kernels(s.isa);
  const Backward args{s.B, s.S, s.h, s.k, s.D, s.alibi, d_o, qkv, o, lse, d_qkv};
  const i64 floats = backward_floats(s.D);
  float* base = static_cast<float*>(scratch);
  if (!split_finely(s)) {
    for_each_piece(s, s.B * s.k, base, floats, [&](i64 index, float* mine) {
      for (i64 j0 = 0; j0 < s.S; j0 += kTileColumns) f.backward_columns(args, index / s.k, index % s.k, j0, true, mine);
    });
    return;
  }
  const i64 tiles = ceil_div(s.S, kTileColumns), blocks = ceil_div(s.S, kBackwardRows);
  for_each_piece(s, tiles * s.B * s.k, base, floats, [&](i64 index, float* mine) {
    const i64 tile = index / (s.B * s.k), pair = index % (s.B * s.k);
    f.backward_columns(args, pair / s.k, pair % s.k, tile * kTileColumns, false, mine);
  });
  for_each_piece(s, blocks * s.B * s.h, base, floats, [&](i64 index, float* mine) {
    const i64 i0 = (blocks - 1 - index / (s.B * s.h)) * kBackwardRows, pair = index % (s.B * s.h);
    f.backward_rows(args, pair / s.h, pair % s.h, i0, std::min<i64>(kBackwardRows, s.S - i0), mine);
  });
}

}  // namespace molen::math
