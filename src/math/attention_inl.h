// Attention of whole sequences, built on attention_blocks_inl.h. Causality works on blocks: a block of 6 rows stops at
// the vector that holds its last visible column; inside the block, hidden elements are set to -inf or 0.
#include "math/attention_blocks_inl.h"

namespace molen::math::attention_detail {
namespace {

// The rows of D elements that the next tile will read. They are far apart in qkv, so the processor's prefetcher does
// not find them. They are fetched a few at a time while products run.
struct Prefetch {
  const float* row = nullptr;
  i64 ld = 0, rows = 0, D = 0;
  void step(i64 n) {
    for (; n > 0 && rows > 0; --n, --rows, row += ld)
      for (i64 d = 0; d < D; d += 16) __builtin_prefetch(row + d, 0, 2);
  }
};

// ---- forward ----

struct Statistics {  // of one block's rows, in units of log2
  float* largest;    // [rows]
  float* scale;      // [rows] factor of the output so far
  float* sums;       // [rows, 16] the denominator, lane by lane
};

// Turns scores into unnormalised probabilities, in place, and updates the statistics of `rows` rows, the first of which
// is i.
void softmax_block(float* x, i64 rows, i64 columns, i64 i, i64 j0, float slope, const Statistics& s) {
  float change[16] __attribute__((aligned(64)));
  for (i64 r = 0; r < 16; ++r) change[r] = 0;
  for (i64 r = 0; r < rows; ++r) {
    float* row = x + r * kLdP;
    if (slope != 0) add_alibi(row, columns, i + r, j0, slope);
    for (i64 c = larger(0, i + r + 1 - j0); c < columns; ++c) row[c] = -INFINITY;
    F most = load(row);
    for (i64 c = kL; c < columns; c += kL) most = Simd::max(most, load(row + c));
    const float before = s.largest[r], here = max_of(most);
    s.largest[r] = here > before ? here : before;
    change[r] = before - s.largest[r];
  }
  for (i64 r = 0; r < rows; r += kL) store(change + r, exp2_vector(load(change + r)));
  for (i64 r = 0; r < rows; ++r) {
    float* row = x + r * kLdP;
    const F largest = Simd::set1(s.largest[r]);
    F sum = F{};
    for (i64 c = 0; c < columns; c += kL) {
      const F p = exp2_vector(load(row + c) - largest);
      store(row + c, p);
      sum = sum + p;
    }
    s.scale[r] = change[r];
    store(s.sums + 16 * r, Simd::fma(load(s.sums + 16 * r), Simd::set1(change[r]), sum));
  }
}

// Writes the rows o = accumulated / denominator, and lse.
void finish_rows(const Forward& f, i64 b, i64 head, i64 i0, i64 n, const float* acc, i64 W, const Statistics& s) {
  for (i64 r = 0; r < n; ++r) {
    const float total = sum_of(load(s.sums + 16 * r)), inverse = 1.0f / total;
    float* o = f.o + ((b * f.S + i0 + r) * f.h + head) * f.D;
    const float* from = acc + r * W;
    i64 d = 0;
    for (; d + kL <= f.D; d += kL) store(o + d, load(from + d) * Simd::set1(inverse));
    for (; d < f.D; ++d) o[d] = from[d] * inverse;
    f.lse[(b * f.h + head) * f.S + i0 + r] =
        (float)((double)s.largest[r] * 0.69314718055994530942 + (double)logf(total));
  }
}

// Calls f(row in the tile, rows, query index of the first) for blocks of rows of all heads that see column j0.
template <class Function>
inline void for_each_block(i64 heads, i64 n, i64 i0, i64 j0, Function f) {
  for (i64 head = 0; head < heads; ++head)
    for (i64 r = larger(0, j0 - i0) / kRowsPerBlock * kRowsPerBlock; r < n; r += kRowsPerBlock) {
      const i64 rows = smaller(kRowsPerBlock, n - r);
      if (i0 + r + rows > j0) f(head, head * n + r, rows, i0 + r);
    }
}

// Adds one tile of keys to the output so far of all rows that see it.
void forward_tile(const Forward& f, i64 head0, i64 heads, i64 i0, i64 n, i64 j0, const float* q,
                  const float* k_transposed, const float* v, float* p, float* acc, const Statistics& s, Prefetch next_k,
                  Prefetch next_v) {
  const i64 D = f.D, W = width(D), keys = smaller(kTileColumns, f.S - j0);
  const auto seen = [&](i64 i, i64 rows) {
    return smaller(keys, i + rows - j0);
  };  // columns that a block's last row sees
  const auto softmax = [&](i64 head, i64 r, i64 rows, i64 i) {
    const Statistics at{s.largest + r, s.scale + r, s.sums + 16 * r};
    softmax_block(p + r * kLdP, rows, round16(seen(i, rows)), i, j0, f.alibi ? f.alibi[head0 + head] * kLog2e : 0.0f,
                  at);
  };
  if (D <= 64) {  // all keys of the tile fit L1, so scores are used while they are in L1 too
    for_each_block(heads, n, i0, j0, [&](i64 head, i64 r, i64 rows, i64 i) {
      for (i64 strip = 0; strip < kTileColumns / kStrip; ++strip)
        product_strip(rows, round16(seen(i, rows)), strip, q + r * W, W, k_transposed, D, p + r * kLdP);
      softmax(head, r, rows, i);
      next_k.step(3);
    });
  } else {
    for (i64 strip = 0; strip < kTileColumns / kStrip; ++strip)
      for_each_block(heads, n, i0, j0, [&](i64, i64 r, i64 rows, i64 i) {
        product_strip(rows, round16(seen(i, rows)), strip, q + r * W, W, k_transposed, D, p + r * kLdP);
        next_k.step(2);
      });
    for_each_block(heads, n, i0, j0, softmax);
  }
  for (i64 d = 0; d < round16(D); d += kStrip)
    for_each_block(heads, n, i0, j0, [&](i64, i64 r, i64 rows, i64 i) {
      product<false>(rows, smaller(kStrip, round16(D) - d), p + r * kLdP, kLdP, v + d, W, seen(i, rows),
                     acc + r * W + d, W, j0 == 0 ? nullptr : s.scale + r);
      next_v.step(3);
    });
}

void forward_rows(const Forward& f, i64 b, i64 head0, i64 heads, i64 i0, i64 n, float* scratch) {
  const i64 D = f.D, W = width(D), ld = (f.h + 2 * f.k) * D, kv = head0 / (f.h / f.k);
  const float* base = f.qkv + b * f.S * ld;
  float* q = scratch;
  float* acc = q + kForwardRows * W;
  float* p = acc + kForwardRows * W;
  float* sums = p + kForwardRows * kLdP;
  float* k_transposed = sums + kForwardRows * 16;
  float* v = k_transposed + kTileColumns * W;
  float* largest = v + kTileColumns * W;
  const Statistics s{largest, largest + kForwardRows, sums};
  const float scale = kLog2e / sqrtf((float)D);

  for (i64 head = 0; head < heads; ++head)
    pack_rows(q + head * n * W, W, base + i0 * ld + (head0 + head) * D, ld, n, D);
  for (i64 r = 0; r < heads * n; ++r) largest[r] = -INFINITY;
  for (i64 r = 0; r < heads * n * 16; ++r) sums[r] = 0;
  for (i64 j0 = 0; j0 < i0 + n; j0 += kTileColumns) {
    const i64 keys = smaller(kTileColumns, i0 + n - j0);
    pack_transposed(k_transposed, base + j0 * ld + (f.h + kv) * D, ld, keys, D, scale);
    pack_rows(v, W, base + j0 * ld + (f.h + f.k + kv) * D, ld, keys, D);
    const i64 next = j0 + keys, n_next = smaller(kTileColumns, i0 + n - next);
    const float* k = base + next * ld + (f.h + kv) * D;
    forward_tile(f, head0, heads, i0, n, j0, q, k_transposed, v, p, acc, s, {k, ld, n_next, D},
                 {k + f.k * D, ld, n_next, D});
  }
  for (i64 head = 0; head < heads; ++head) {
    const i64 r = head * n;
    finish_rows(f, b, head0 + head, i0, n, acc + r * W, W, {s.largest + r, s.scale + r, s.sums + 16 * r});
  }
}

// ---- backward ----

struct KeyTile {  // keys j0 .. j0+keys of one key/value head
  i64 b, kv, j0, keys;
  float *k_transposed = nullptr, *v_transposed = nullptr, *k = nullptr, *dk = nullptr, *dv = nullptr;
};
struct QueryTile {  // rows i0 .. i0+n of one query head
  i64 head = 0, i0 = 0, n = 0;
  float *q = nullptr, *d_o = nullptr, *p = nullptr, *ds = nullptr, *delta = nullptr, *lse = nullptr, *bounce = nullptr;
};

void cut_scratch(float* scratch, i64 D, KeyTile& t, QueryTile& u) {
  const i64 W = width(D);
  const auto cut = [&](i64 floats) {
    float* at = scratch;
    scratch += floats;
    return at;
  };
  t.k_transposed = cut(kTileColumns * W);
  t.v_transposed = cut(kTileColumns * W);
  t.k = cut(kTileColumns * W);
  t.dk = cut(kTileColumns * W);
  t.dv = cut(kTileColumns * W);
  u.q = cut(kBackwardRows * W);
  u.d_o = cut(kBackwardRows * W);
  u.p = cut(kBackwardRows * kLdP);
  u.ds = cut(kBackwardRows * kLdP);
  u.delta = cut(kBackwardRows);
  u.lse = cut(kBackwardRows);
  u.bounce = cut(kRowsPerBlock * W);
}

void load_keys(const Backward& g, const KeyTile& t) {
  const i64 D = g.D, ld = (g.h + 2 * g.k) * D;
  const float* k = g.qkv + (t.b * g.S + t.j0) * ld + (g.h + t.kv) * D;
  pack_transposed(t.k_transposed, k, ld, t.keys, D, kLog2e / sqrtf((float)D));
  pack_transposed(t.v_transposed, k + g.k * D, ld, t.keys, D, 1.0f);
  pack_rows(t.k, width(D), k, ld, t.keys, D);
}

// The queue of prefetches that run during the products on a tile of queries: first the tile's dq, then the rows that
// the next tile packs.
struct PrefetchQueue {
  Prefetch part[4];
  int at = 0;
  void step() {
    while (at < 4 && part[at].rows <= 0) ++at;
    if (at < 4) part[at].step(3);
  }
};
void queue_queries(const Backward& g, i64 b, i64 head, i64 i0, PrefetchQueue& queue) {
  const i64 first = b * g.S + i0, n = smaller(kBackwardRows, g.S - i0), ld = (g.h + 2 * g.k) * g.D,
            at = (first * g.h + head) * g.D;
  queue.part[1] = {g.qkv + first * ld + head * g.D, ld, n, g.D};
  queue.part[2] = {g.d_o + at, g.h * g.D, n, g.D};
  queue.part[3] = {g.o + at, g.h * g.D, n, g.D};
}

void load_queries(const Backward& g, i64 b, const QueryTile& u) {
  const i64 D = g.D, W = width(D), ld = (g.h + 2 * g.k) * D, first = b * g.S + u.i0;
  pack_rows(u.q, W, g.qkv + first * ld + u.head * D, ld, u.n, D);
  pack_rows(u.d_o, W, g.d_o + (first * g.h + u.head) * D, g.h * D, u.n, D);
  for (i64 r = 0; r < u.n; ++r) {
    const float* o = g.o + ((first + r) * g.h + u.head) * D;
    const float* d_o = u.d_o + r * W;
    F sum = F{};
    i64 d = 0;
    for (; d + kL <= D; d += kL) sum = Simd::fma(load(o + d), load(d_o + d), sum);
    float total = sum_of(sum);
    for (; d < D; ++d) total += o[d] * d_o[d];
    u.delta[r] = total;
    u.lse[r] = g.lse[(b * g.h + u.head) * g.S + u.i0 + r] * kLog2e;
  }
}

// Computes p and ds of a tile; ds is multiplied by 1/sqrt(D). Columns that a row does not see are 0, up to the tile's
// last column.
void scores_tile(const Backward& g, const KeyTile& t, const QueryTile& u, PrefetchQueue& next) {
  const i64 D = g.D, W = width(D), all = round16(t.keys);
  const auto seen = [&](i64 i, i64 rows) { return round16(smaller(t.keys, i + rows - t.j0)); };
  for (i64 strip = 0; strip < kTileColumns / kStrip; ++strip) {
    for_each_block(1, u.n, u.i0, t.j0, [&](i64, i64 r, i64 rows, i64 i) {
      product_strip(rows, seen(i, rows), strip, u.q + r * W, W, t.k_transposed, D, u.p + r * kLdP);
      next.step();
    });
    for_each_block(1, u.n, u.i0, t.j0, [&](i64, i64 r, i64 rows, i64 i) {
      product_strip(rows, seen(i, rows), strip, u.d_o + r * W, W, t.v_transposed, D, u.ds + r * kLdP);
      next.step();
    });
  }
  const F scale = Simd::set1(1.0f / sqrtf((float)D));
  const float slope = g.alibi ? g.alibi[u.head] * kLog2e : 0.0f;
  for (i64 r = 0; r < u.n; ++r) {
    float *p = u.p + r * kLdP, *ds = u.ds + r * kLdP;
    const i64 visible = larger(0, smaller(t.keys, u.i0 + r + 1 - t.j0)), columns = round16(visible);
    if (slope != 0) add_alibi(p, columns, u.i0 + r, t.j0, slope);
    const F lse = Simd::set1(u.lse[r]), delta = Simd::set1(u.delta[r]);
    for (i64 c = 0; c < columns; c += kL) {
      const F share = exp2_vector(load(p + c) - lse);
      store(p + c, share);
      store(ds + c, share * (load(ds + c) - delta) * scale);
    }
    for (i64 c = visible; c < all; ++c) p[c] = ds[c] = 0;
  }
}

// dv += p^T d_o or dk += ds^T q, in blocks of keys; rows above the diagonal are left out.
void add_to_keys(const KeyTile& t, const QueryTile& u, i64 D, const float* weights, const float* rows, float* sums,
                 PrefetchQueue& next) {
  const i64 W = width(D);
  for (i64 d = 0; d < round16(D); d += kStrip)
    for (i64 j = 0; j < t.keys; j += kRowsPerBlock) {
      const i64 begin = larger(0, t.j0 + j - u.i0);
      if (begin >= u.n) break;
      product<true>(smaller(kRowsPerBlock, t.keys - j), smaller(kStrip, round16(D) - d), weights + begin * kLdP + j,
                    kLdP, rows + begin * W + d, W, u.n - begin, sums + j * W + d, W, kOnes);
      next.step();
    }
}

// dq (+)= ds k, directly into d_qkv when its rows are whole vectors.
void add_to_queries(const Backward& g, const KeyTile& t, const QueryTile& u) {
  const i64 D = g.D, W = width(D), ld = (g.h + 2 * g.k) * D;
  float* dq = g.d_qkv + (t.b * g.S + u.i0) * ld + u.head * D;
  for (i64 d = 0; d < round16(D); d += kStrip)
    for_each_block(1, u.n, u.i0, t.j0, [&](i64, i64 r, i64 rows, i64 i) {
      const i64 columns = smaller(kStrip, round16(D) - d), depth = smaller(t.keys, i + rows - t.j0);
      if (D % 16 == 0)
        return product<false>(rows, columns, u.ds + r * kLdP, kLdP, t.k + d, W, depth, dq + r * ld + d, ld,
                              t.j0 == 0 ? nullptr : kOnes);
      product<false>(rows, columns, u.ds + r * kLdP, kLdP, t.k + d, W, depth, u.bounce, W);
      for (i64 row = 0; row < rows; ++row)
        for (i64 c = 0; c < smaller(columns, D - d); ++c) {
          float& at = dq[(r + row) * ld + d + c];
          at = t.j0 == 0 ? u.bounce[row * W + c] : at + u.bounce[row * W + c];
        }
    });
}

void backward_columns(const Backward& g, i64 b, i64 kv, i64 j0, bool with_dq, float* scratch) {
  const i64 D = g.D, W = width(D), ld = (g.h + 2 * g.k) * D, group = g.h / g.k;
  KeyTile t{b, kv, j0, smaller(kTileColumns, g.S - j0)};
  QueryTile u{};
  cut_scratch(scratch, D, t, u);
  load_keys(g, t);
  for (i64 x = 0; x < t.keys * W; ++x) t.dk[x] = t.dv[x] = 0;
  for (u.head = kv * group; u.head < (kv + 1) * group; ++u.head)
    for (u.i0 = j0; u.i0 < g.S; u.i0 += kBackwardRows) {
      u.n = smaller(kBackwardRows, g.S - u.i0);
      load_queries(g, b, u);
      PrefetchQueue next;
      if (u.i0 + u.n < g.S) {
        queue_queries(g, b, u.head, u.i0 + u.n, next);
      } else if (u.head + 1 < (kv + 1) * group) {
        queue_queries(g, b, u.head + 1, j0, next);
      }
      if (with_dq) next.part[0] = {g.d_qkv + (b * g.S + u.i0) * ld + u.head * D, ld, u.n, D};
      scores_tile(g, t, u, next);
      add_to_keys(t, u, D, u.p, u.d_o, t.dv, next);
      add_to_keys(t, u, D, u.ds, u.q, t.dk, next);
      if (with_dq) add_to_queries(g, t, u);
    }
  float* dk = g.d_qkv + (b * g.S + j0) * ld + (g.h + kv) * D;
  for (i64 j = 0; j < t.keys; ++j) {
    memcpy(dk + j * ld, t.dk + j * W, (size_t)D * sizeof(float));
    memcpy(dk + j * ld + g.k * D, t.dv + j * W, (size_t)D * sizeof(float));
  }
}

void backward_rows(const Backward& g, i64 b, i64 head, i64 i0, i64 n, float* scratch) {
  KeyTile t{b, head / (g.h / g.k), 0, 0};
  QueryTile u{head, i0, n};
  cut_scratch(scratch, g.D, t, u);
  load_queries(g, b, u);
  for (t.j0 = 0; t.j0 < i0 + n; t.j0 += kTileColumns) {
    t.keys = smaller(kTileColumns, g.S - t.j0);
    load_keys(g, t);
    PrefetchQueue none;
    scores_tile(g, t, u, none);
    add_to_queries(g, t, u);
  }
}

}  // namespace
}  // namespace molen::math::attention_detail
