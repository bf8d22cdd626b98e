// Attention of some queries over some keys, built on attention_blocks_inl.h. A query sees a range of a tile's columns,
// from the beginning of its document to its own position. Positions rise with the rows, and so do both ends of the
// range. A block of 6 rows therefore sees the range from its first row's begin to its last row's end. Tiles and blocks
// that see nothing are left out; inside a block, hidden elements are set to -inf or 0.
#include "math/attention_blocks_inl.h"
#include "math/context_attention_kernels.h"

namespace molen::math::attention_detail {
namespace {

// The columns of a tile of keys (positions from j0) that rows at positions from i0 see: [begin, end) for each row.
struct Sight {
  i64 i0, j0, keys;
  const std::int32_t* starts;  // of the rows; may be null
  i64 begin(i64 r) const { return starts ? larger(0, smaller(keys, starts[r] - j0)) : 0; }
  i64 end(i64 r) const { return larger(0, smaller(keys, i0 + r + 1 - j0)); }
};

// Calls f(row, rows, begin, end) for blocks of rows that see columns [begin, end).
template <class Function>
inline void for_each_seeing(i64 n, const Sight& sight, Function f) {
  for (i64 r = 0; r < n; r += kRowsPerBlock) {
    const i64 rows = smaller(kRowsPerBlock, n - r), begin = sight.begin(r), end = sight.end(r + rows - 1);
    if (begin < end) f(r, rows, begin, end);
  }
}

inline i64 down16(i64 n) {
  return n / 16 * 16;
}

// Computes the scores of those columns of [begin, end), widened to whole vectors, that are in the strip.
inline void strip_scores(i64 strip, i64 rows, i64 begin, i64 end, const float* a, i64 lda, const float* packed, i64 D,
                         float* scores) {
  const i64 first = larger(down16(begin), strip * kStrip), last = smaller(round16(end), (strip + 1) * kStrip);
  if (first < last)
    product<false>(rows, last - first, a, lda, packed + strip * kStrip * D + (first - strip * kStrip), kStrip, D,
                   scores + first, kLdP);
}

// ---- forward ----

struct Statistics {  // of one head's rows, in units of log2
  float* largest;    // [rows]
  float* scale;      // [rows] factor of the output so far
  float* sums;       // [rows, 16] the denominator, lane by lane
  Statistics from(i64 row) const { return {largest + row, scale + row, sums + 16 * row}; }
};

// Turns scores into unnormalised probabilities, in place, and updates the statistics of the block's rows.
void softmax_rows(float* x, i64 row, i64 rows, i64 begin, i64 end, const Sight& sight, float slope,
                  const Statistics& s) {
  const i64 from = down16(begin), to = round16(end);
  float change[16] __attribute__((aligned(64)));
  for (i64 r = 0; r < 16; ++r) change[r] = 0;
  const auto sees = [&](i64 r) { return sight.begin(row + r) < sight.end(row + r); };
  for (i64 r = 0; r < rows; ++r) {
    if (!sees(r)) continue;
    float* score = x + r * kLdP;
    if (slope != 0) add_alibi(score + from, to - from, sight.i0 + row + r, sight.j0 + from, slope);
    for (i64 c = from; c < sight.begin(row + r); ++c) score[c] = -INFINITY;
    for (i64 c = larger(from, sight.end(row + r)); c < to; ++c) score[c] = -INFINITY;
    F most = load(score + from);
    for (i64 c = from + kL; c < to; c += kL) most = Simd::max(most, load(score + c));
    const float before = s.largest[r], here = max_of(most);
    s.largest[r] = here > before ? here : before;
    change[r] = before - s.largest[r];
  }
  for (i64 r = 0; r < rows; r += kL) store(change + r, exp2_vector(load(change + r)));
  for (i64 r = 0; r < rows; ++r) {
    float* p = x + r * kLdP;
    s.scale[r] = change[r];
    if (!sees(r)) {
      for (i64 c = from; c < to; ++c) p[c] = 0;
      continue;
    }
    const F largest = Simd::set1(s.largest[r]);
    F sum = F{};
    for (i64 c = from; c < to; c += kL) {
      const F share = exp2_vector(load(p + c) - largest);
      store(p + c, share);
      sum = sum + share;
    }
    store(s.sums + 16 * r, Simd::fma(load(s.sums + 16 * r), Simd::set1(change[r]), sum));
  }
}

struct ForwardPiece {
  i64 b, head, heads;
  ContextRows rows;
  const std::int32_t* starts;
  float *q = nullptr, *acc = nullptr, *p = nullptr, *k_transposed = nullptr, *v = nullptr;
  Statistics s = {nullptr, nullptr, nullptr};
};

// Starts the statistics and output from those of earlier keys, as if these were one key with their whole weight. When
// there are no earlier keys, starts from nothing.
void begin_rows(const ContextForward& f, const ForwardPiece& piece, i64 head) {
  const i64 D = f.D, W = width(D), n = piece.rows.n, at = head * n;
  const Statistics s = piece.s.from(at);
  for (i64 x = 0; x < 16 * n; ++x) s.sums[x] = 0;
  for (i64 r = 0; r < n; ++r) {
    float* acc = piece.acc + (at + r) * W;
    const i64 row = piece.rows.row + r;
    const float lse = f.first ? -INFINITY : f.lse[(piece.b * f.h + piece.head + head) * f.rows + row];
    s.largest[r] = lse * kLog2e;
    if (lse == -INFINITY) {
      for (i64 d = 0; d < round16(D); ++d) acc[d] = 0;
      continue;
    }
    s.sums[16 * r] = 1;
    pack_rows(acc, W, f.o + ((piece.b * f.rows + row) * f.h + piece.head + head) * D, 0, 1, D);
  }
}

bool sees_a_key(const ContextForward& f, i64 begin, i64 position) {
  for (int x = 0; x < f.key_runs; ++x)
    if (larger(begin, f.keys[x].first) <= smaller(position, f.keys[x].last - 1)) return true;
  return false;
}

// Writes o = accumulated / denominator, and lse. A row that saw no key is left unchanged, or set to zero.
void finish_rows(const ContextForward& f, const ForwardPiece& piece, i64 head) {
  const i64 D = f.D, W = width(D), n = piece.rows.n, at = head * n;
  const Statistics s = piece.s.from(at);
  for (i64 r = 0; r < n; ++r) {
    const i64 row = piece.rows.row + r;
    float* o = f.o + ((piece.b * f.rows + row) * f.h + piece.head + head) * D;
    float* lse = f.lse + (piece.b * f.h + piece.head + head) * f.rows + row;
    if (!sees_a_key(f, piece.starts ? piece.starts[r] : 0, piece.rows.first + r)) {
      if (!f.first) continue;
      for (i64 d = 0; d < D; ++d) o[d] = 0;
      *lse = -INFINITY;
      continue;
    }
    const float total = sum_of(load(s.sums + 16 * r)), inverse = 1.0f / total;
    const float* from = piece.acc + (at + r) * W;
    i64 d = 0;
    for (; d + kL <= D; d += kL) store(o + d, load(from + d) * Simd::set1(inverse));
    for (; d < D; ++d) o[d] = from[d] * inverse;
    *lse = (float)((double)s.largest[r] * 0.69314718055994530942 + (double)logf(total));
  }
}

// Adds one tile of keys to the output so far of all rows that see it.
void forward_tile(const ContextForward& f, const ForwardPiece& piece, const Sight& sight) {
  const i64 D = f.D, W = width(D), n = piece.rows.n;
  for (i64 head = 0; head < piece.heads; ++head) {
    const float* q = piece.q + head * n * W;
    float *p = piece.p + head * n * kLdP, *acc = piece.acc + head * n * W;
    const Statistics s = piece.s.from(head * n);
    const float slope = f.alibi ? f.alibi[piece.head + head] * kLog2e : 0.0f;
    const auto softmax = [&](i64 r, i64 rows, i64 begin, i64 end) {
      softmax_rows(p + r * kLdP, r, rows, begin, end, sight, slope, s.from(r));
    };
    if (D <= 64) {  // all keys of the tile fit L1, so scores are used while they are in L1 too
      for_each_seeing(n, sight, [&](i64 r, i64 rows, i64 begin, i64 end) {
        for (i64 strip = 0; strip < kTileColumns / kStrip; ++strip)
          strip_scores(strip, rows, begin, end, q + r * W, W, piece.k_transposed, D, p + r * kLdP);
        softmax(r, rows, begin, end);
      });
    } else {
      for (i64 strip = 0; strip < kTileColumns / kStrip; ++strip)
        for_each_seeing(n, sight, [&](i64 r, i64 rows, i64 begin, i64 end) {
          strip_scores(strip, rows, begin, end, q + r * W, W, piece.k_transposed, D, p + r * kLdP);
        });
      for_each_seeing(n, sight, softmax);
    }
    for (i64 d = 0; d < round16(D); d += kStrip)
      for_each_seeing(n, sight, [&](i64 r, i64 rows, i64 begin, i64 end) {
        product<false>(rows, smaller(kStrip, round16(D) - d), p + r * kLdP + begin, kLdP, piece.v + begin * W + d, W,
                       end - begin, acc + r * W + d, W, s.scale + r);
      });
  }
}

void context_forward_rows(const ContextForward& f, i64 b, i64 head, i64 heads, const ContextRows& rows,
                          float* scratch) {
  const i64 D = f.D, W = width(D), n = rows.n, row = b * f.rows + rows.row, kv = head / (f.h / f.k);
  ForwardPiece piece{b, head, heads, rows, f.starts ? f.starts + row : nullptr};
  const auto cut = [&](i64 floats) {
    float* at = scratch;
    scratch += floats;
    return at;
  };
  piece.q = cut(kForwardRows * W);
  piece.acc = cut(kForwardRows * W);
  piece.p = cut(kForwardRows * kLdP);
  piece.s.sums = cut(kForwardRows * 16);
  piece.k_transposed = cut(kTileColumns * W);
  piece.v = cut(kTileColumns * W);
  piece.s.largest = cut(kForwardRows);
  piece.s.scale = cut(kForwardRows);
  for (i64 x = 0; x < heads; ++x) {
    pack_rows(piece.q + x * n * W, W, f.q + row * f.q_stride + (head + x) * D, f.q_stride, n, D);
    begin_rows(f, piece, x);
  }
  const float scale = kLog2e / sqrtf((float)D);
  for (int x = 0; x < f.key_runs; ++x) {
    const ContextRun& run = f.keys[x];
    for (i64 j0 = run.first; j0 < smaller(run.last, rows.first + n); j0 += kTileColumns) {
      const Sight sight{rows.first, j0, smaller(kTileColumns, smaller(run.last, rows.first + n) - j0), piece.starts};
      if (sight.begin(0) >= sight.keys) continue;
      const i64 at = (b * f.key_rows + run.row + j0 - run.first) * f.kv_stride + kv * D;
      pack_transposed(piece.k_transposed, f.k_rows + at, f.kv_stride, sight.keys, D, scale);
      pack_rows(piece.v, W, f.v_rows + at, f.kv_stride, sight.keys, D);
      forward_tile(f, piece, sight);
    }
  }
  for (i64 x = 0; x < heads; ++x) finish_rows(f, piece, x);
}

// ---- backward ----

struct ContextKeys {  // a tile of one key/value head
  i64 b, kv;
  ContextRows at;
  float *k_transposed = nullptr, *v_transposed = nullptr, *k = nullptr, *dk = nullptr, *dv = nullptr;
};
struct ContextQueries {  // a tile of one query head
  i64 head = 0;
  ContextRows at{};
  const std::int32_t* starts = nullptr;
  float *q = nullptr, *d_o = nullptr, *p = nullptr, *ds = nullptr, *delta = nullptr, *lse = nullptr, *bounce = nullptr;
};
inline Sight sight_of(const ContextKeys& t, const ContextQueries& u) {
  return {u.at.first, t.at.first, t.at.n, u.starts};
}

void cut_scratch(float* scratch, i64 D, ContextKeys& t, ContextQueries& u) {
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

void load_keys(const ContextBackward& g, const ContextKeys& t) {
  const i64 D = g.D, at = (t.b * g.key_rows + t.at.row) * g.kv_stride + t.kv * D;
  pack_transposed(t.k_transposed, g.k_rows + at, g.kv_stride, t.at.n, D, kLog2e / sqrtf((float)D));
  pack_transposed(t.v_transposed, g.v_rows + at, g.kv_stride, t.at.n, D, 1.0f);
  pack_rows(t.k, width(D), g.k_rows + at, g.kv_stride, t.at.n, D);
}

void load_queries(const ContextBackward& g, i64 b, const ContextQueries& u) {
  const i64 D = g.D, W = width(D), first = b * g.rows + u.at.row;
  pack_rows(u.q, W, g.q + first * g.q_stride + u.head * D, g.q_stride, u.at.n, D);
  pack_rows(u.d_o, W, g.d_o + (first * g.h + u.head) * D, g.h * D, u.at.n, D);
  for (i64 r = 0; r < u.at.n; ++r) {
    const float* o = g.o + ((first + r) * g.h + u.head) * D;
    const float* d_o = u.d_o + r * W;
    F sum = F{};
    i64 d = 0;
    for (; d + kL <= D; d += kL) sum = Simd::fma(load(o + d), load(d_o + d), sum);
    float total = sum_of(sum);
    for (; d < D; ++d) total += o[d] * d_o[d];
    u.delta[r] = total;
    u.lse[r] = g.lse[(b * g.h + u.head) * g.rows + u.at.row + r] * kLog2e;
  }
}

// Computes p and ds of a tile; ds is multiplied by 1/sqrt(D). Columns that a row does not see are 0.
void scores_tile(const ContextBackward& g, const ContextKeys& t, const ContextQueries& u) {
  const i64 D = g.D, W = width(D), all = round16(t.at.n);
  const Sight sight = sight_of(t, u);
  for (i64 strip = 0; strip < kTileColumns / kStrip; ++strip) {
    for_each_seeing(u.at.n, sight, [&](i64 r, i64 rows, i64 begin, i64 end) {
      strip_scores(strip, rows, begin, end, u.q + r * W, W, t.k_transposed, D, u.p + r * kLdP);
    });
    for_each_seeing(u.at.n, sight, [&](i64 r, i64 rows, i64 begin, i64 end) {
      strip_scores(strip, rows, begin, end, u.d_o + r * W, W, t.v_transposed, D, u.ds + r * kLdP);
    });
  }
  const F scale = Simd::set1(1.0f / sqrtf((float)D));
  const float slope = g.alibi ? g.alibi[u.head] * kLog2e : 0.0f;
  for (i64 r = 0; r < u.at.n; ++r) {
    float *p = u.p + r * kLdP, *ds = u.ds + r * kLdP;
    i64 begin = sight.begin(r), end = sight.end(r);
    if (begin >= end) begin = end = 0;
    const i64 from = down16(begin), to = round16(end);
    if (slope != 0) add_alibi(p + from, to - from, u.at.first + r, t.at.first + from, slope);
    const F lse = Simd::set1(u.lse[r]), delta = Simd::set1(u.delta[r]);
    for (i64 c = from; c < to; c += kL) {
      const F share = exp2_vector(load(p + c) - lse);
      store(p + c, share);
      store(ds + c, share * (load(ds + c) - delta) * scale);
    }
    for (i64 c = 0; c < begin; ++c) p[c] = ds[c] = 0;
    for (i64 c = end; c < all; ++c) p[c] = ds[c] = 0;
  }
}

// dv += p^T d_o or dk += ds^T q, in blocks of keys; rows that do not see the keys are left out.
void add_to_keys(const ContextKeys& t, const ContextQueries& u, i64 D, const float* weights, const float* rows,
                 float* sums) {
  const i64 W = width(D), n = u.at.n;
  for (i64 d = 0; d < round16(D); d += kStrip) {
    i64 end = u.starts ? 0 : n;
    for (i64 j = 0; j < t.at.n; j += kRowsPerBlock) {
      const i64 keys = smaller(kRowsPerBlock, t.at.n - j), begin = larger(0, t.at.first + j - u.at.first);
      if (begin >= n) break;
      while (end < n && u.starts[end] < t.at.first + j + keys) ++end;
      if (begin < end)
        product<true>(keys, smaller(kStrip, round16(D) - d), weights + begin * kLdP + j, kLdP, rows + begin * W + d, W,
                      end - begin, sums + j * W + d, W, kOnes);
    }
  }
}

// dq += ds k, directly into d_q when its rows are whole vectors.
void add_to_queries(const ContextBackward& g, const ContextKeys& t, const ContextQueries& u) {
  const i64 D = g.D, W = width(D), ld = g.d_q_stride;
  float* dq = g.d_q + (t.b * g.rows + u.at.row) * ld + u.head * D;
  for (i64 d = 0; d < round16(D); d += kStrip)
    for_each_seeing(u.at.n, sight_of(t, u), [&](i64 r, i64 rows, i64 begin, i64 end) {
      const i64 columns = smaller(kStrip, round16(D) - d);
      const float *ds = u.ds + r * kLdP + begin, *k = t.k + begin * W + d;
      if (D % 16 == 0) return product<false>(rows, columns, ds, kLdP, k, W, end - begin, dq + r * ld + d, ld, kOnes);
      product<false>(rows, columns, ds, kLdP, k, W, end - begin, u.bounce, W);
      for (i64 row = 0; row < rows; ++row)
        for (i64 c = 0; c < smaller(columns, D - d); ++c) dq[(r + row) * ld + d + c] += u.bounce[row * W + c];
    });
}

void set_rows(const ContextBackward& g, ContextQueries& u, i64 b, const ContextRows& rows) {
  u.at = rows;
  u.starts = g.starts ? g.starts + b * g.rows + rows.row : nullptr;
}

void context_backward_keys(const ContextBackward& g, i64 b, i64 kv, const ContextRows& tile, bool with_dq,
                           float* scratch) {
  const i64 D = g.D, W = width(D), group = g.h / g.k;
  ContextKeys t{b, kv, tile};
  ContextQueries u{};
  cut_scratch(scratch, D, t, u);
  load_keys(g, t);
  for (i64 x = 0; x < tile.n * W; ++x) t.dk[x] = t.dv[x] = 0;
  for (u.head = kv * group; u.head < (kv + 1) * group; ++u.head)
    for (int x = 0; x < g.query_runs; ++x) {
      const ContextRun& run = g.queries[x];
      // Tiles begin at the same rows as for backward_rows.
      const i64 skip = larger(0, tile.first - run.first) / kBackwardRows * kBackwardRows;
      for (i64 i = run.first + skip; i < run.last; i += kBackwardRows) {
        set_rows(g, u, b, {run.row + i - run.first, i, smaller(kBackwardRows, run.last - i)});
        // the documents of all later rows begin after the tile too
        if (u.starts && u.starts[0] >= tile.first + tile.n) break;
        load_queries(g, b, u);
        scores_tile(g, t, u);
        add_to_keys(t, u, D, u.p, u.d_o, t.dv);
        add_to_keys(t, u, D, u.ds, u.q, t.dk);
        if (with_dq) add_to_queries(g, t, u);
      }
    }
  const i64 at = (b * g.key_rows + tile.row) * g.d_kv_stride + kv * D;
  for (i64 j = 0; j < tile.n; ++j) {
    float *dk = g.d_k + at + j * g.d_kv_stride, *dv = g.d_v + at + j * g.d_kv_stride;
    for (i64 d = 0; d < D; ++d) {
      dk[d] = g.add_kv ? dk[d] + t.dk[j * W + d] : t.dk[j * W + d];
      dv[d] = g.add_kv ? dv[d] + t.dv[j * W + d] : t.dv[j * W + d];
    }
  }
}

void context_backward_rows(const ContextBackward& g, i64 b, i64 head, const ContextRows& rows, float* scratch) {
  ContextKeys t{b, head / (g.h / g.k), {}};
  ContextQueries u{head};
  cut_scratch(scratch, g.D, t, u);
  set_rows(g, u, b, rows);
  load_queries(g, b, u);
  for (int x = 0; x < g.key_runs; ++x) {
    const ContextRun& run = g.keys[x];
    for (i64 j = run.first; j < smaller(run.last, rows.first + rows.n); j += kTileColumns) {
      t.at = {run.row + j - run.first, j, smaller(kTileColumns, run.last - j)};
      if (sight_of(t, u).begin(0) >= t.at.n) continue;
      load_keys(g, t);
      scores_tile(g, t, u);
      add_to_queries(g, t, u);
    }
  }
}

}  // namespace
}  // namespace molen::math::attention_detail
