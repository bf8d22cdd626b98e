// The split of whole-sequence attention into pieces for threads, for any type of rows. No result depends on which
// thread takes which piece.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "math/attention.h"
#include "math/attention_kernels.h"

namespace molen::math::attention_detail {

void check(const AttentionShape& shape);  // throws Error

inline i64 ceil_div(i64 a, i64 b) {
  return (a + b - 1) / b;
}
inline i64 padded_width(i64 D) {
  return (D + 15) / 16 * 16 + 16;
}

// When a piece is a whole key/value head, the five matrix products of a tile are done once, but there are only B*k
// pieces. Splitting by key tiles and by query tiles gives many pieces and seven products. Both give the same bits.
inline bool split_finely(const AttentionShape& s) {
  const i64 pieces = s.B * s.k, rounds = ceil_div(pieces, s.threads);
  return 7 * pieces < 5 * rounds * s.threads && s.S > kTileColumns;
}

// Runs piece(index, scratch of the thread) for all pieces; a thread takes the next piece when it is free.
template <class Piece>
void for_each_piece(const AttentionShape& s, i64 pieces, void* scratch, i64 floats_each, Piece piece) {
#pragma omp parallel num_threads(s.threads)
  {
    float* mine = static_cast<float*>(scratch) + omp_get_thread_num() * floats_each;
#pragma omp for schedule(dynamic, 1)
    for (i64 index = 0; index < pieces; ++index) piece(index, mine);
  }
}

// Calls rows(b, head, heads, i0, n, scratch of the thread) for all query rows.
template <class Rows>
void for_each_forward(const AttentionShape& s, void* scratch, i64 floats_each, Rows rows_of) {
  const i64 group = s.h / s.k, head_parts = ceil_div(group, kMaxHeadsPerPiece), heads = ceil_div(group, head_parts);
  const i64 rows = kForwardRows / heads / 12 * 12;
  const i64 blocks = ceil_div(s.S, rows), columns = s.B * s.k * head_parts;
  for_each_piece(s, blocks * columns, scratch, floats_each, [&](i64 index, float* mine) {
    // The last rows see the most keys, so their pieces, which take longest, come first. Threads then finish together.
    const i64 i0 = (blocks - 1 - index / columns) * rows;
    const i64 part = index % head_parts, kv = index % columns / head_parts % s.k,
              b = index % columns / head_parts / s.k;
    const i64 first = part * heads, last = std::min(group, first + heads);
    if (first < last) rows_of(b, kv * group + first, last - first, i0, std::min(rows, s.S - i0), mine);
  });
}

// Runs the backward in fine pieces: columns(b, kv, j0, scratch) for all tiles of keys, then rows(b, head, i0, n,
// scratch) for all tiles of queries.
template <class Columns, class Rows>
void for_each_fine_backward(const AttentionShape& s, void* scratch, i64 floats_each, Columns columns, Rows rows) {
  const i64 tiles = ceil_div(s.S, kTileColumns), blocks = ceil_div(s.S, kBackwardRows);
  for_each_piece(s, tiles * s.B * s.k, scratch, floats_each, [&](i64 index, float* mine) {
    const i64 tile = index / (s.B * s.k), pair = index % (s.B * s.k);
    columns(pair / s.k, pair % s.k, tile * kTileColumns, mine);
  });
  for_each_piece(s, blocks * s.B * s.h, scratch, floats_each, [&](i64 index, float* mine) {
    const i64 i0 = (blocks - 1 - index / (s.B * s.h)) * kBackwardRows, pair = index % (s.B * s.h);
    rows(pair / s.h, pair % s.h, i0, std::min<i64>(kBackwardRows, s.S - i0), mine);
  });
}

}  // namespace molen::math::attention_detail
