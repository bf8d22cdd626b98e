// Attention of whole sequences over rows in bf16, forward and backward: FlashAttention-2 (Dao, arXiv 2307.08691,
// algorithms 1 and 2). As in its kernels for 16 bits, all five products take bf16 and add in fp32; p and ds are rounded
// to bf16 for the products that follow, and the denominator sums p before rounding. Blocks of kBlockRows query rows
// (6, or 16 on tiles) pass through a tile of keys at once: their scores, and the softmax of these, never leave the L1
// cache. Causality works on blocks, as in attention_inl.h.
#include "math/attention_narrow_kernels.h"
#ifdef MOLEN_TILES
#include "math/attention_narrow_tiles_inl.h"
#else
#include "math/attention_narrow_products_inl.h"
#endif

namespace molen::math::attention_detail {
namespace {

// Divides the scratch of a thread; all pieces are multiples of 64 bytes.
struct Cutter {
  float* at;
  float* floats(i64 n) {
    float* begin = at;
    at += round16(n);
    return begin;
  }
  Pair* pairs(i64 n) { return (Pair*)floats(n); }
};

// Returns how many columns are seen by the last of `rows` rows from i, in a tile of keys from j0.
inline i64 seen_columns(i64 keys, i64 i, i64 rows, i64 j0) {
  return smaller(keys, i + rows - j0);
}

// scores [rows, kLdP], columns [strip begin, columns) = A [rows, D] times one strip of transpose_pairs.
inline void dot_strip(i64 rows, i64 columns, i64 strip, const Pair* a, i64 lda, const Pair* packed, i64 D,
                      float* scores) {
  const i64 begin = strip * kStrip, n = smaller(columns - begin, kStrip);
  if (n > 0)
    dot_product<false>(rows, n, a, lda, packed + begin * pairs_of(D), kStrip, pairs_of(D), scores + begin, kLdP);
}

// ---- forward ----

struct Statistics {  // of one block's rows, in units of log2
  float* largest;    // [rows]
  float* sums;       // [rows, 16] the denominator, lane by lane
};

struct ForwardTile {
  i64 j0, keys;
  Pair *k_transposed, *v;
};

// Turns scores (products, not yet scaled) into unnormalised probabilities in bf16, and updates the statistics of `rows`
// rows, the first of which is i. `change` is the factor of the output so far.
void softmax_block(float* x, Pair* p, i64 rows, i64 columns, i64 i, i64 j0, float scale, float slope,
                   const Statistics& s, float* change) {
  for (i64 r = 0; r < 16; ++r) change[r] = 0;
  for (i64 r = 0; r < rows; ++r) {
    float* row = x + r * kLdP;
    if (slope != 0) {
      for (i64 c = 0; c < columns; c += kL) store(row + c, load(row + c) * Simd::set1(scale));
      add_alibi(row, columns, i + r, j0, slope);
    }
    for (i64 c = larger(0, i + r + 1 - j0); c < columns; ++c) row[c] = -INFINITY;
    F most = load(row);
    for (i64 c = kL; c < columns; c += kL) most = Simd::max(most, load(row + c));
    const float before = s.largest[r], here = max_of(most) * (slope != 0 ? 1.0f : scale);
    s.largest[r] = here > before ? here : before;
    change[r] = before - s.largest[r];
  }
  for (i64 r = 0; r < rows; r += kL) store(change + r, exp2_vector(load(change + r)));
  const F factor = Simd::set1(slope != 0 ? 1.0f : scale);
  for (i64 r = 0; r < rows; ++r) {
    const float* row = x + r * kLdP;
    u16* to = (u16*)(p + r * kLdPairs);
    const F largest = Simd::set1(-s.largest[r]);
    F sum = F{};
    for (i64 c = 0; c < columns; c += kL) {
      const F share = exp2_vector(Simd::fma(load(row + c), factor, largest));
      store_narrow(to + c, share);
      sum = sum + share;
    }
    store(s.sums + 16 * r, Simd::fma(load(s.sums + 16 * r), Simd::set1(change[r]), sum));
  }
}

void forward_rows(const NarrowForward& f, i64 b, i64 head0, i64 heads, i64 i0, i64 n, float* scratch) {
  const i64 D = f.D, W = width(D), A = pair_width(D), ld = (f.h + 2 * f.k) * D, kv = head0 / (f.h / f.k);
  const u16* base = f.qkv + b * f.S * ld;
  Cutter cut{scratch};
  Pair* q = cut.pairs(kForwardRows * A);
  float* acc = cut.floats(kForwardRows * W);
  const Statistics all{cut.floats(kForwardRows), cut.floats(kForwardRows * 16)};
  ForwardTile t{0, 0, cut.pairs(kTileColumns * A), cut.pairs(kTileColumns / 2 * W)};
  alignas(64) float scores[kBlockRows * kLdP], change[16];
  alignas(64) Pair p[kBlockRows * kLdPairs];
  const float scale = kLog2e / sqrtf((float)D);

  for (i64 head = 0; head < heads; ++head)
    copy_rows(q + head * n * A, A, base + i0 * ld + (head0 + head) * D, ld, n, D);
  for (i64 r = 0; r < heads * n; ++r) all.largest[r] = -INFINITY;
  for (i64 r = 0; r < heads * n * 16; ++r) all.sums[r] = 0;
  for (t.j0 = 0; t.j0 < i0 + n; t.j0 += kTileColumns) {
    t.keys = smaller(kTileColumns, i0 + n - t.j0);
    const u16* k = base + t.j0 * ld + (f.h + kv) * D;
    transpose_pairs(t.k_transposed, k, ld, t.keys, D);
    interleave_rows(t.v, W, k + f.k * D, ld, t.keys, D);
    for (i64 head = 0; head < heads; ++head) {
      const float slope = f.alibi ? f.alibi[head0 + head] * kLog2e : 0.0f;
      for (i64 r = larger(0, t.j0 - i0) / kBlockRows * kBlockRows; r < n; r += kBlockRows) {
        const i64 rows = smaller(kBlockRows, n - r), i = i0 + r, row = head * n + r;
        if (i + rows <= t.j0) continue;
        const i64 seen = seen_columns(t.keys, i, rows, t.j0);
        for (i64 strip = 0; strip < kTileColumns / kStrip; ++strip)
          dot_strip(rows, round16(seen), strip, q + row * A, A, t.k_transposed, D, scores);
        softmax_block(scores, p, rows, round16(seen), i, t.j0, scale, slope, {all.largest + row, all.sums + 16 * row},
                      change);
        dot_product<false>(rows, round16(D), p, kLdPairs, t.v, W, pairs_of(seen), acc + row * W, W,
                           t.j0 == 0 ? nullptr : change);
      }
    }
  }
  for (i64 head = 0; head < heads; ++head)
    for (i64 r = 0; r < n; ++r) {
      const i64 row = head * n + r;
      const float total = sum_of(load(all.sums + 16 * row));
      narrow_row(f.o + ((b * f.S + i0 + r) * f.h + head0 + head) * D, acc + row * W, D, 1.0f / total);
      f.lse[(b * f.h + head0 + head) * f.S + i0 + r] =
          (float)((double)all.largest[row] * 0.69314718055994530942 + (double)logf(total));
    }
}

// ---- backward ----

struct KeyTile {  // keys j0 .. j0+keys of one key/value head
  i64 b, kv, j0, keys;
  Pair *k_transposed = nullptr, *v_transposed = nullptr, *k = nullptr;
  float *dk = nullptr, *dv = nullptr;
};
struct QueryTile {  // rows i0 .. i0+n of one query head
  i64 head = 0, i0 = 0, n = 0;
  Pair *q = nullptr, *d_o = nullptr, *q_rows = nullptr, *d_o_rows = nullptr;  // A, and B with rows interleaved
  Pair *p_rows = nullptr, *ds_rows = nullptr, *ds = nullptr;                  // A for keys, A for queries
  float *delta = nullptr, *lse = nullptr, *dq = nullptr;
};

void cut_scratch(float* scratch, i64 D, KeyTile& t, QueryTile& u) {
  const i64 W = width(D), A = pair_width(D);
  Cutter cut{scratch};
  t.k_transposed = cut.pairs(kTileColumns * A);
  t.v_transposed = cut.pairs(kTileColumns * A);
  t.k = cut.pairs(kTileColumns / 2 * W);
  t.dk = cut.floats(kTileColumns * W);
  t.dv = cut.floats(kTileColumns * W);
  u.q = cut.pairs(kBackwardRows * A);
  u.d_o = cut.pairs(kBackwardRows * A);
  u.q_rows = cut.pairs(kBackwardRows / 2 * W);
  u.d_o_rows = cut.pairs(kBackwardRows / 2 * W);
  u.dq = cut.floats(kBackwardRows * W);
  u.p_rows = cut.pairs(kBackwardRows / 2 * kLdP);
  u.ds_rows = cut.pairs(kBackwardRows / 2 * kLdP);
  u.ds = cut.pairs(kBackwardRows * kLdPairs);
  u.delta = cut.floats(kBackwardRows);
  u.lse = cut.floats(kBackwardRows);
}

void load_keys(const NarrowBackward& g, const KeyTile& t) {
  const i64 D = g.D, ld = (g.h + 2 * g.k) * D;
  const u16* k = g.qkv + (t.b * g.S + t.j0) * ld + (g.h + t.kv) * D;
  transpose_pairs(t.k_transposed, k, ld, t.keys, D);
  transpose_pairs(t.v_transposed, k + g.k * D, ld, t.keys, D);
  interleave_rows(t.k, width(D), k, ld, t.keys, D);
}

void load_queries(const NarrowBackward& g, i64 b, const QueryTile& u, bool for_keys) {
  const i64 D = g.D, W = width(D), A = pair_width(D), ld = (g.h + 2 * g.k) * D, ld_o = g.h * D, first = b * g.S + u.i0;
  const u16 *q = g.qkv + first * ld + u.head * D, *d_o = g.d_o + first * ld_o + u.head * D,
            *o = g.o + first * ld_o + u.head * D;
  copy_rows(u.q, A, q, ld, u.n, D);
  copy_rows(u.d_o, A, d_o, ld_o, u.n, D);
  if (for_keys) {
    interleave_rows(u.q_rows, W, q, ld, u.n, D);
    interleave_rows(u.d_o_rows, W, d_o, ld_o, u.n, D);
  }
  for (i64 r = 0; r < u.n; ++r) {
    u.delta[r] = dot_rows(o + r * ld_o, d_o + r * ld_o, D);
    u.lse[r] = g.lse[(b * g.h + u.head) * g.S + u.i0 + r] * kLog2e;
  }
}

// Turns one row into p and ds, in place over `columns`. The row sees the first `visible` columns; the others become 0.
// ds is multiplied by 1/sqrt(D).
inline void row_gradients(float* p, float* ds, i64 columns, i64 visible, float scale, float inverse_root, float lse,
                          float delta) {
  const F factor = Simd::set1(scale), shift = Simd::set1(-lse), minus = Simd::set1(delta),
          root = Simd::set1(inverse_root);
  for (i64 c = 0; c < round16(visible); c += kL) {
    const F share = exp2_vector(Simd::fma(load(p + c), factor, shift));
    store(p + c, share);
    store(ds + c, share * (load(ds + c) - minus) * root);
  }
  for (i64 c = visible; c < columns; ++c) p[c] = ds[c] = 0;
}

// Stores p and ds of a block of rows from r in the layouts that the products take. Columns that a row does not see are
// 0, up to `all`.
void store_block(const QueryTile& u, const float* scores, const float* d_p, i64 r, i64 rows, i64 all, bool for_keys) {
  for (i64 x = 0; x < rows; ++x) {
    u16* ds = (u16*)(u.ds + (r + x) * kLdPairs);
    for (i64 c = 0; c < all; c += kL) store_narrow(ds + c, load(d_p + x * kLdP + c));
  }
  if (!for_keys) return;
  for (i64 x = 0; x < rows; x += 2) {
    const float *p = scores + x * kLdP, *ds = d_p + x * kLdP;
    Pair *p_rows = u.p_rows + (r + x) / 2 * kLdP, *ds_rows = u.ds_rows + (r + x) / 2 * kLdP;
    const bool both = x + 1 < rows;
    for (i64 c = 0; c < all; c += kL) {
      store_pairs(p_rows + c, paired(load(p + c), both ? load(p + kLdP + c) : F{}));
      store_pairs(ds_rows + c, paired(load(ds + c), both ? load(ds + kLdP + c) : F{}));
    }
  }
}

// Calls f(row, rows, columns that the last row sees) for the blocks of rows that see any column.
template <class Function>
inline void for_each_seeing_block(const KeyTile& t, const QueryTile& u, Function f) {
  for (i64 r = larger(0, t.j0 - u.i0) / kBlockRows * kBlockRows; r < u.n; r += kBlockRows) {
    const i64 rows = smaller(kBlockRows, u.n - r), seen = seen_columns(t.keys, u.i0 + r, rows, t.j0);
    if (seen > 0) f(r, rows, seen);
  }
}

void scores_tile(const NarrowBackward& g, const KeyTile& t, const QueryTile& u, bool for_keys) {
  const i64 D = g.D, A = pair_width(D), all = round16(t.keys);
  const float inverse_root = 1.0f / sqrtf((float)D), scale = kLog2e / sqrtf((float)D);
  const float slope = g.alibi ? g.alibi[u.head] * kLog2e : 0.0f;
  alignas(64) float scores[kBlockRows * kLdP], d_p[kBlockRows * kLdP];
  for_each_seeing_block(t, u, [&](i64 r, i64 rows, i64 seen) {
    const i64 columns = round16(seen);
    for (i64 strip = 0; strip < kTileColumns / kStrip; ++strip) {
      dot_strip(rows, columns, strip, u.q + r * A, A, t.k_transposed, D, scores);
      dot_strip(rows, columns, strip, u.d_o + r * A, A, t.v_transposed, D, d_p);
    }
    for (i64 x = 0; x < rows; ++x) {
      float *p = scores + x * kLdP, *ds = d_p + x * kLdP;
      if (slope != 0) {
        for (i64 c = 0; c < columns; c += kL) store(p + c, load(p + c) * Simd::set1(scale));
        add_alibi(p, columns, u.i0 + r + x, t.j0, slope);
      }
      row_gradients(p, ds, all, larger(0, smaller(t.keys, u.i0 + r + x + 1 - t.j0)), slope != 0 ? 1.0f : scale,
                    inverse_root, u.lse[r + x], u.delta[r + x]);
    }
    store_block(u, scores, d_p, r, rows, all, for_keys);
  });
}

// dv += p^T d_o or dk += ds^T q, in blocks of keys; rows above the diagonal are left out.
void add_to_keys(const KeyTile& t, const QueryTile& u, i64 D, const Pair* weights, const Pair* rows, float* sums) {
  const i64 W = width(D);
  for (i64 d = 0; d < round16(D); d += kKeyColumns)
    for (i64 j = 0; j < t.keys; j += kBlockRows) {
      const i64 begin = larger(0, t.j0 + j - u.i0) / 2;
      if (2 * begin >= u.n) break;
      dot_product<true>(smaller(kBlockRows, t.keys - j), smaller(kKeyColumns, round16(D) - d),
                        weights + begin * kLdP + j, kLdP, rows + begin * W + d, W, pairs_of(u.n) - begin,
                        sums + j * W + d, W, kOnes);
    }
}

// dq (+)= ds k, where dq is [n, width of D].
void add_to_queries(const KeyTile& t, const QueryTile& u, i64 D, float* dq) {
  const i64 W = width(D);
  for_each_seeing_block(t, u, [&](i64 r, i64 rows, i64 seen) {
    dot_product<false>(rows, round16(D), u.ds + r * kLdPairs, kLdPairs, t.k, W, pairs_of(seen), dq + r * W, W,
                       t.j0 == 0 ? nullptr : kOnes);
  });
}

void backward_columns(const NarrowBackward& g, i64 b, i64 kv, i64 j0, float* dq, float* scratch) {
  const i64 D = g.D, W = width(D), ld = (g.h + 2 * g.k) * D, group = g.h / g.k;
  KeyTile t{b, kv, j0, smaller(kTileColumns, g.S - j0)};
  QueryTile u{};
  cut_scratch(scratch, D, t, u);
  load_keys(g, t);
  for (i64 x = 0; x < t.keys * W; ++x) t.dk[x] = t.dv[x] = 0;
  for (u.head = kv * group; u.head < (kv + 1) * group; ++u.head)
    for (u.i0 = j0; u.i0 < g.S; u.i0 += kBackwardRows) {
      u.n = smaller(kBackwardRows, g.S - u.i0);
      load_queries(g, b, u, true);
      scores_tile(g, t, u, true);
      add_to_keys(t, u, D, u.p_rows, u.d_o_rows, t.dv);
      add_to_keys(t, u, D, u.ds_rows, u.q_rows, t.dk);
      if (dq) add_to_queries(t, u, D, dq + ((u.head - kv * group) * g.S + u.i0) * W);
    }
  u16* dk = g.d_qkv + (b * g.S + j0) * ld + (g.h + kv) * D;
  for (i64 j = 0; j < t.keys; ++j) {
    narrow_row(dk + j * ld, t.dk + j * W, D, 1.0f);
    narrow_row(dk + j * ld + g.k * D, t.dv + j * W, D, 1.0f);
  }
}

void finish_rows(const NarrowBackward& g, i64 b, i64 head, i64 i0, i64 n, const float* dq) {
  const i64 W = width(g.D), ld = (g.h + 2 * g.k) * g.D;
  u16* to = g.d_qkv + (b * g.S + i0) * ld + head * g.D;
  for (i64 r = 0; r < n; ++r) narrow_row(to + r * ld, dq + r * W, g.D, 1.0f);
}

void finish_queries(const NarrowBackward& g, i64 b, i64 kv, const float* dq) {
  const i64 group = g.h / g.k;
  for (i64 head = 0; head < group; ++head) finish_rows(g, b, kv * group + head, 0, g.S, dq + head * g.S * width(g.D));
}

void backward_rows(const NarrowBackward& g, i64 b, i64 head, i64 i0, i64 n, float* scratch) {
  KeyTile t{b, head / (g.h / g.k), 0, 0};
  QueryTile u{head, i0, n};
  cut_scratch(scratch, g.D, t, u);
  load_queries(g, b, u, false);
  for (t.j0 = 0; t.j0 < i0 + n; t.j0 += kTileColumns) {
    t.keys = smaller(kTileColumns, g.S - t.j0);
    load_keys(g, t);
    scores_tile(g, t, u, false);
    add_to_queries(t, u, g.D, u.dq);
  }
  finish_rows(g, b, head, i0, n, u.dq);
}

}  // namespace
}  // namespace molen::math::attention_detail
