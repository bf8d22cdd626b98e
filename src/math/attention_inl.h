// The attention kernels, written once over a vector type `Simd` that the including file defines for its instruction
// set. Everything is in an anonymous namespace: each including file has its own copy, compiled with its own flags.
//
// All matrix products are one kernel: a block of up to 6 rows by kVectors vectors of C stays in registers while the
// loop runs over the depth, multiplying a broadcast element of A with a vector of B. So B needs its columns contiguous
// (K^T and V^T are packed, in strips of 64 columns that fit L1), A may be read along rows or columns (P and P^T alike).
// Row-major tiles have rows of D rounded up to 16, plus 16: rows a power of two apart would share few cache sets.
// Causality at the level of blocks: a block of 6 rows stops at the vector that holds its last visible column; within
// it, hidden elements are set to -inf or 0.
#include <math.h>
#include <string.h>

namespace molen::math::attention_detail {
namespace {

using F = Simd::F;
using I = Simd::I;
typedef float Unaligned __attribute__((vector_size(sizeof(F)), aligned(4), may_alias));

constexpr int kL = Simd::kLanes, kV = Simd::kVectors, kRowsPerBlock = 6;
constexpr i64 kStrip = 64;
constexpr float kLog2e = 1.44269504088896340736f, kLn2 = 0.693147180559945309417f;
constexpr i64 kLdP = kTileColumns + 16;

inline F load(const float* p) {
  return (F) * reinterpret_cast<const Unaligned*>(p);
}
inline void store(float* p, F x) {
  *reinterpret_cast<Unaligned*>(p) = (Unaligned)x;
}
inline i64 smaller(i64 a, i64 b) {
  return a < b ? a : b;
}
inline i64 larger(i64 a, i64 b) {
  return a > b ? a : b;
}
inline i64 round16(i64 n) {
  return (n + 15) / 16 * 16;
}
inline i64 width(i64 D) {
  return round16(D) + 16;
}

// ---- elementary functions ----

// 2^x for x <= about 0, error 1 ulp; 0 below -100 (a share of 1e-30 of a sum that is at least 1). x = n + f, n an
// integer, |f| <= 1/2; n is added to the exponent by way of a sum with 1.5*2^23. Coefficients: minimax of relative
// error.
inline F exp2_vector(F x) {
  const F magic = Simd::set1(12582912.0f + 127.0f);
  const F t = x + magic;
  const F f = x - (t - magic);
  F p = Simd::set1(0.0001534581242594868f);
  p = Simd::fma(p, f, Simd::set1(0.0013399930903688073f));
  p = Simd::fma(p, f, Simd::set1(0.009618489071726799f));
  p = Simd::fma(p, f, Simd::set1(0.05550328642129898f));
  p = Simd::fma(p, f, Simd::set1(0.24022646248340607f));
  p = Simd::fma(p, f, Simd::set1(0.6931471824645996f));
  p = Simd::fma(p, f, Simd::set1(1.0f));
  const F power = (F)((I)t << 23);
  return Simd::zero_below(p * power, x, Simd::set1(-100.0f));
}

template <int kShift>
inline F rotate(F x) {
  I index;
  for (int l = 0; l < kL; ++l) index[l] = (l + kShift) % kL;
  return __builtin_shuffle(x, index);
}
inline float sum_of(F x) {
  if constexpr (kL >= 16) x = x + rotate<8>(x);
  if constexpr (kL >= 8) x = x + rotate<4>(x);
  x = x + rotate<2>(x);
  x = x + rotate<1>(x);
  return x[0];
}
inline float max_of(F x) {
  if constexpr (kL >= 16) x = Simd::max(x, rotate<8>(x));
  if constexpr (kL >= 8) x = Simd::max(x, rotate<4>(x));
  x = Simd::max(x, rotate<2>(x));
  x = Simd::max(x, rotate<1>(x));
  return x[0];
}

// ---- matrix products ----

// C = A B, or where `scale` is given C = diag(scale) C + A B. Blocks of 6 rows and 4 vectors do nearly all the work.
template <int R, int NV, bool kTransposed>
[[gnu::noinline]] void block(const float* a, i64 lda, const float* b, i64 ldb, i64 depth, float* c, i64 ldc,
                             const float* scale) {
  F acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = F{};
  for (i64 p = 0; p < depth; ++p) {
    F column[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) column[v] = load(b + v * kL);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const F x = Simd::set1(kTransposed ? a[r] : a[r * lda]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = Simd::fma(x, column[v], acc[r][v]);
    }
    a += kTransposed ? lda : 1;
    b += ldb;
  }
  if (scale) {
    const float* from = c;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r, from += ldc) {
      const F factor = Simd::set1(scale[r]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = Simd::fma(factor, load(from + v * kL), acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r, c += ldc)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(c + v * kL, acc[r][v]);
}
constexpr float kOnes[kRowsPerBlock] = {1, 1, 1, 1, 1, 1};  // scale of C += A B

typedef void (*Block)(const float*, i64, const float*, i64, i64, float*, i64, const float*);

template <int NV, bool kTransposed>
constexpr Block kBlocks[kRowsPerBlock + 1] = {nullptr,
                                              block<1, NV, kTransposed>,
                                              block<2, NV, kTransposed>,
                                              block<3, NV, kTransposed>,
                                              block<4, NV, kTransposed>,
                                              block<5, NV, kTransposed>,
                                              block<6, NV, kTransposed>};

// C [rows <= 6, columns, a multiple of kL] from A [rows, depth] (or its transpose in memory) and B [depth, columns].
template <bool kTransposed>
inline void product(i64 rows, i64 columns, const float* a, i64 lda, const float* b, i64 ldb, i64 depth, float* c,
                    i64 ldc, const float* scale = nullptr) {
  i64 at = 0;
  for (; at + kV * kL <= columns; at += kV * kL)
    kBlocks<kV, kTransposed>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
  if constexpr (kV > 2) {
    if (columns - at == 3 * kL) return kBlocks<3, kTransposed>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
    if (columns - at == 2 * kL) return kBlocks<2, kTransposed>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
  }
  if (columns - at == kL) kBlocks<1, kTransposed>[rows](a, lda, b + at, ldb, depth, c + at, ldc, scale);
}

// ---- packing ----

// to [n, ld] = from [n, D], padded with zeros to a multiple of 16.
void pack_rows(float* to, i64 ld, const float* from, i64 ld_from, i64 n, i64 D) {
  for (i64 r = 0; r < n; ++r, to += ld, from += ld_from) {
    i64 d = 0;
    for (; d + kL <= D; d += kL) store(to + d, load(from + d));
    for (; d < D; ++d) to[d] = from[d];
    for (; d < round16(D); ++d) to[d] = 0;
  }
}

// Rows of D elements that the next tile will read: they lie far apart in qkv, where the processor does not foresee
// them. Fetched a few at a time while products run.
struct Prefetch {
  const float* row = nullptr;
  i64 ld = 0, rows = 0, D = 0;
  void step(i64 n) {
    for (; n > 0 && rows > 0; --n, --rows, row += ld)
      for (i64 d = 0; d < D; d += 16) __builtin_prefetch(row + d, 0, 2);
  }
};

// A square of vectors transposed by a perfect-shuffle network: log2(kL) rounds of interleaving row i with row i + kL/2.
inline void transpose_square(F (&x)[kL]) {
  I low, high;
  for (int l = 0; l < kL; ++l) {
    low[l] = l / 2 + (l % 2) * kL;
    high[l] = kL / 2 + l / 2 + (l % 2) * kL;
  }
#pragma GCC unroll 4
  for (int round = 1; round < kL; round *= 2) {
    F y[kL];
#pragma GCC unroll 16
    for (int i = 0; i < kL / 2; ++i) {
      y[2 * i] = __builtin_shuffle(x[i], x[i + kL / 2], low);
      y[2 * i + 1] = __builtin_shuffle(x[i], x[i + kL / 2], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kL; ++i) x[i] = y[i];
  }
}

// to [strip][D][64] = scale * from [n, D] transposed, n <= kTileColumns; columns up to a multiple of 16 are zero.
void pack_transposed(float* to, const float* from, i64 ld_from, i64 n, i64 D, float scale) {
  for (i64 j = 0; j < round16(n); j += kL) {
    float* strip = to + j / kStrip * kStrip * D + j % kStrip;
    const i64 full = smaller(n - j, kL);
    i64 d = 0;
    if (full == kL) {
      for (; d + kL <= D; d += kL) {
        F x[kL];
#pragma GCC unroll 16
        for (int l = 0; l < kL; ++l) x[l] = load(from + (j + l) * ld_from + d) * Simd::set1(scale);
        transpose_square(x);
#pragma GCC unroll 16
        for (int l = 0; l < kL; ++l) store(strip + (d + l) * kStrip, x[l]);
      }
    }
    for (; d < D; ++d)
      for (i64 l = 0; l < kL; ++l) strip[d * kStrip + l] = l < full ? from[(j + l) * ld_from + d] * scale : 0.0f;
  }
}

// scores [rows, kLdP], columns [strip begin, columns) += A [rows, D] times one strip of packed_transposed.
inline void product_strip(i64 rows, i64 columns, i64 strip, const float* a, i64 lda, const float* packed, i64 D,
                          float* scores) {
  const i64 begin = strip * kStrip, n = smaller(columns - begin, kStrip);
  if (n > 0) product<false>(rows, n, a, lda, packed + begin * D, kStrip, D, scores + begin, kLdP);
}

// x[c] += slope * (j0 + c - i), in units of log2.
inline void add_alibi(float* x, i64 columns, i64 i, i64 j0, float slope) {
  const float distance = (float)(j0 - i);
  for (i64 c = 0; c < columns; c += kL) {
    F bias;
    for (int l = 0; l < kL; ++l) bias[l] = slope * (distance + (float)(c + l));
    store(x + c, load(x + c) + bias);
  }
}

// ---- forward ----

struct Statistics {  // of one block's rows, in units of log2
  float* largest;    // [rows]
  float* scale;      // [rows] what the output so far is multiplied by
  float* sums;       // [rows, 16] the denominator, lane by lane
};

// Scores to unnormalised probabilities, in place; updates the statistics of `rows` rows of which the first is i.
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

// o rows = accumulated / denominator; lse.
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

// One tile of keys into the output so far of all rows that see it.
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
  if (D <= 64) {  // all keys of the tile stay in L1: scores are used while they are there too
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

// What the products on a tile of queries fetch meanwhile: its dq, then the rows that the next tile packs.
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

// p and ds of a tile, ds times 1/sqrt(D). Columns that a row does not see are 0, up to the tile's last.
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

// dv += p^T d_o or dk += ds^T q, blocks of keys; rows above the diagonal are left out.
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

// dq (+)= ds k, straight into d_qkv where its rows are whole vectors.
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
