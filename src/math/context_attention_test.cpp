// Tests attention of ranks that share a sequence. The reference is compared with the complex step, the ranks' union
// with whole sequences, a ring of calls with one call, and the fused kernels with the reference in double.
#include "math/context_attention.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "math/reference_context.h"

namespace molen::math {
namespace {

using i64 = std::int64_t;
using Complex = std::complex<double>;
using Runs = std::vector<PositionRun>;
using Starts = std::vector<std::int32_t>;
template <class T>
using Values = std::vector<T>;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Returns a zig-zag of uneven chunks, as in arch/context_parallel.h.
Runs zig_zag(i64 S, int rank, int ranks) {
  const auto chunk = [&](i64 c) {
    const i64 n = 2 * ranks, base = S / n, extra = S % n;
    return c * base + std::min(c, extra);
  };
  Runs runs{{chunk(rank), chunk(rank + 1)}, {chunk(2 * ranks - 1 - rank), chunk(2 * ranks - rank)}};
  if (runs[0].last == runs[1].first) return {{runs[0].first, runs[1].last}};
  return runs;
}

struct Problem {
  i64 B, S, h, k, D;
  bool alibi = false, documents = false;
  i64 second = 0;  // position at which the second of two documents begins; 0: many documents
  i64 q_row() const { return h * D; }
  i64 kv_row() const { return 2 * k * D; }
  Values<double> slopes() const {
    Values<double> s;
    for (i64 j = 0; alibi && j < h; ++j)
      s.push_back(std::exp2(-8.0 * static_cast<double>(j + 1) / static_cast<double>(h)));
    return s;
  }
  // Returns the position where the document of each position begins; documents have 1 token to about a third of the
  // sequence.
  Starts starts() const {
    if (!documents) return {};
    Starts all;
    std::mt19937_64 engine(static_cast<std::uint64_t>(S));
    for (i64 b = 0; b < B; ++b) {
      i64 start = 0, left = 0;
      for (i64 i = 0; i < S; ++i, --left) {
        if (second > 0) {
          start = i < second ? 0 : second;
        } else if (left == 0)
          start = i, left = 1 + static_cast<i64>(engine() % static_cast<std::uint64_t>(S / 3 + 2));
        all.push_back(static_cast<std::int32_t>(start));
      }
    }
    return all;
  }
};

Values<double> random(i64 count, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  Values<double> v(static_cast<std::size_t>(count));
  for (double& x : v) x = static_cast<float>(normal(engine));  // the fused kernels get the same values
  return v;
}

// Returns the rows of `width` at the runs' positions of all B sequences. The function after it is its inverse.
template <class T>
Values<T> take(const Problem& p, const Runs& runs, i64 width, const Values<T>& all) {
  Values<T> part;
  for (i64 b = 0; b < p.B; ++b)
    for (const PositionRun& run : runs)
      part.insert(part.end(), all.begin() + (b * p.S + run.first) * width, all.begin() + (b * p.S + run.last) * width);
  return part;
}
template <class T>
void put(const Problem& p, const Runs& runs, i64 width, const Values<T>& part, Values<T>& all, bool add = false) {
  std::size_t at = 0;
  for (i64 b = 0; b < p.B; ++b)
    for (const PositionRun& run : runs)
      for (i64 x = (b * p.S + run.first) * width; x < (b * p.S + run.last) * width; ++x, ++at)
        all[static_cast<std::size_t>(x)] = part[at] + (add ? all[static_cast<std::size_t>(x)] : T(0));
}
// Returns lse [B, h, rows] as rows [B, rows, h].
template <class T>
Values<T> by_rows(const Problem& p, i64 rows, const Values<T>& lse) {
  Values<T> out(lse.size());
  for (i64 b = 0; b < p.B; ++b)
    for (i64 h = 0; h < p.h; ++h)
      for (i64 r = 0; r < rows; ++r)
        out[static_cast<std::size_t>((b * rows + r) * p.h + h)] =
            lse[static_cast<std::size_t>((b * p.h + h) * rows + r)];
  return out;
}

struct Workspace {
  explicit Workspace(i64 bytes) : memory(static_cast<std::size_t>(bytes) + 64), scratch(memory.data(), bytes) {}
  std::vector<char> memory;
  Scratch scratch;
};

// The two kinds of kernels with a common interface. q is [rows, h*D]; kv is [keys, 2*k*D], packed k|v.
template <class T>
struct ReferenceKernels {
  using Real = T;
  const Problem& p;
  int threads = 2;
  void forward(const Runs& queries, const Runs& keys, const Starts& starts, const Values<T>& q, const Values<T>& kv,
               bool first, Values<T>& o, Values<T>& lse) const {
    const Values<double> slopes = p.slopes();
    Workspace w(16 * threads * (count_positions(keys) + p.D) + 64);
    reference::context_forward<T>(threads, sizes(queries, keys, starts), slopes.empty() ? nullptr : slopes.data(),
                                  {q.data(), p.q_row(), kv.data(), kv.data() + p.k * p.D, p.kv_row()}, first, o.data(),
                                  lse.data(), w.scratch);
  }
  void backward(const Runs& queries, const Runs& keys, const Starts& starts, const Values<T>& d_o, const Values<T>& q,
                const Values<T>& kv, const Values<T>& o, const Values<T>& lse, bool add_q, bool add_kv, Values<T>& d_q,
                Values<T>& d_kv) const {
    const Values<double> slopes = p.slopes();
    Workspace w(16 * threads * 2 * p.D + 64);
    reference::context_backward<T>(
        threads, sizes(queries, keys, starts), slopes.empty() ? nullptr : slopes.data(), d_o.data(),
        {q.data(), p.q_row(), kv.data(), kv.data() + p.k * p.D, p.kv_row()}, o.data(), lse.data(), add_q, add_kv,
        {d_q.data(), p.q_row(), d_kv.data(), d_kv.data() + p.k * p.D, p.kv_row()}, w.scratch);
  }
  reference::ContextSizes sizes(const Runs& queries, const Runs& keys, const Starts& starts) const {
    return {p.B, p.h, p.k, p.D, queries, keys, starts.empty() ? nullptr : starts.data()};
  }
};

struct FusedKernels {
  using Real = float;
  const Problem& p;
  int threads = 2;
  AttentionIsa isa = AttentionIsa::kBest;

  // Calls f with scratch full of NaN and with guards after it.
  template <class F>
  void with_scratch(i64 bytes, const F& f) const {
    Values<float> scratch(static_cast<std::size_t>(bytes / 4 + 16), kNaN);
    std::fill(scratch.end() - 16, scratch.end(), 12345.0f);
    f(scratch.data());
    for (std::size_t x = scratch.size() - 16; x < scratch.size(); ++x) EXPECT_EQ(scratch[x], 12345.0f);
  }
  ContextShape shape(const Runs& queries, const Runs& keys, const Starts& starts, const Values<float>& slopes) const {
    ContextShape s;
    s.B = p.B, s.h = p.h, s.k = p.k, s.D = p.D, s.queries = queries, s.keys = keys, s.threads = threads, s.isa = isa;
    s.starts = starts.empty() ? nullptr : starts.data(), s.alibi = slopes.empty() ? nullptr : slopes.data();
    return s;
  }
  ContextOperands operands(const Values<float>& q, const Values<float>& kv) const {
    return {q.data(), p.q_row(), kv.data(), kv.data() + p.k * p.D, p.kv_row()};
  }
  Values<float> float_slopes() const {
    const Values<double> s = p.slopes();
    return {s.begin(), s.end()};
  }
  void forward(const Runs& queries, const Runs& keys, const Starts& starts, const Values<float>& q,
               const Values<float>& kv, bool first, Values<float>& o, Values<float>& lse) const {
    const Values<float> slopes = float_slopes();
    const ContextShape s = shape(queries, keys, starts, slopes);
    with_scratch(context_forward_scratch(s),
                 [&](void* scratch) { context_forward(s, operands(q, kv), first, o.data(), lse.data(), scratch); });
  }
  void backward(const Runs& queries, const Runs& keys, const Starts& starts, const Values<float>& d_o,
                const Values<float>& q, const Values<float>& kv, const Values<float>& o, const Values<float>& lse,
                bool add_q, bool add_kv, Values<float>& d_q, Values<float>& d_kv) const {
    const Values<float> slopes = float_slopes();
    const ContextShape s = shape(queries, keys, starts, slopes);
    with_scratch(context_backward_scratch(s), [&](void* scratch) {
      context_backward(s, d_o.data(), operands(q, kv), o.data(), lse.data(),
                       {d_q.data(), p.q_row(), add_q, d_kv.data(), d_kv.data() + p.k * p.D, p.kv_row(), add_kv},
                       scratch);
    });
  }
};

template <class T>
struct Outcome {  // for whole sequences, by position: [B, S, ...]
  Values<T> o, lse, d_q, d_kv;
};

template <class T>
struct Inputs {
  explicit Inputs(const Problem& p)
      : q(to(random(p.B * p.S * p.q_row(), 1))),
        kv(to(random(p.B * p.S * p.kv_row(), 2))),
        d_o(to(random(p.B * p.S * p.q_row(), 3))) {}
  static Values<T> to(const Values<double>& v) { return {v.begin(), v.end()}; }
  Values<T> q, kv, d_o;
};

// Splits the sequences over `ranks`. Each rank sees all keys at once or, in a ring, each rank's keys in turn, beginning
// with its own.
template <class K>
Outcome<typename K::Real> run(const Problem& p, const K& kernels, int ranks, bool ring) {
  using T = typename K::Real;
  const Inputs<T> in(p);
  const Starts starts = p.starts();
  const auto none = static_cast<T>(kNaN);
  const auto n = static_cast<std::size_t>(p.B * p.S);
  Outcome<T> out{Values<T>(in.q.size(), none), Values<T>(n * static_cast<std::size_t>(p.h), none),
                 Values<T>(in.q.size(), none), Values<T>(in.kv.size(), T(0))};
  for (int r = 0; r < ranks; ++r) {
    const Runs mine = zig_zag(p.S, r, ranks);
    const Starts own = starts.empty() ? starts : take(p, mine, 1, starts);
    const Values<T> q = take(p, mine, p.q_row(), in.q), d_o = take(p, mine, p.q_row(), in.d_o);
    std::vector<Runs> blocks;
    for (int step = 0; ring && step < ranks; ++step) blocks.push_back(zig_zag(p.S, (r + step) % ranks, ranks));
    if (!ring) blocks.push_back({{0, p.S}});
    const i64 rows = count_positions(mine);
    Values<T> o(q.size(), none), lse(static_cast<std::size_t>(p.B * rows * p.h), none), d_q(q.size(), none);
    for (std::size_t x = 0; x < blocks.size(); ++x)
      kernels.forward(mine, blocks[x], own, q, take(p, blocks[x], p.kv_row(), in.kv), x == 0, o, lse);
    for (std::size_t x = 0; x < blocks.size(); ++x) {
      // The gradients of a block are added to existing values, or overwrite them.
      Values<T> d_kv = take(p, blocks[x], p.kv_row(), out.d_kv);
      const bool add = r % 2 == 1;
      if (!add) std::fill(d_kv.begin(), d_kv.end(), none);
      kernels.backward(mine, blocks[x], own, d_o, q, take(p, blocks[x], p.kv_row(), in.kv), o, lse, x > 0, add, d_q,
                       d_kv);
      put(p, blocks[x], p.kv_row(), d_kv, out.d_kv, !add);
    }
    put(p, mine, p.q_row(), o, out.o);
    put(p, mine, p.h, by_rows(p, rows, lse), out.lse);
    put(p, mine, p.q_row(), d_q, out.d_q);
  }
  return out;
}

// Runs the double loop of math/reference.h for whole sequences: an independent oracle when there are no documents.
Outcome<double> whole(const Problem& p) {
  const Inputs<double> in(p);
  const i64 N = p.B * p.S, q = p.q_row(), kv = p.kv_row(), width = q + kv;
  Values<double> qkv(static_cast<std::size_t>(N * width)), d_qkv(qkv.size()), slopes = p.slopes(),
                                                                              lse(static_cast<std::size_t>(N * p.h));
  for (i64 r = 0; r < N; ++r) {
    std::copy_n(in.q.begin() + r * q, q, qkv.begin() + r * width);
    std::copy_n(in.kv.begin() + r * kv, kv, qkv.begin() + r * width + q);
  }
  Outcome<double> out{Values<double>(in.q.size()), {}, Values<double>(in.q.size()), Values<double>(in.kv.size())};
  Workspace w(16 * (p.S + p.D) + 64);
  const reference::AttentionSizes sizes{p.B, p.S, p.h, p.k, p.D};
  const double* s = slopes.empty() ? nullptr : slopes.data();
  reference::attention_forward(1, sizes, s, qkv.data(), out.o.data(), lse.data(), w.scratch);
  w.scratch.reset();
  reference::attention_backward(1, sizes, s, in.d_o.data(), qkv.data(), out.o.data(), lse.data(), d_qkv.data(),
                                w.scratch);
  for (i64 r = 0; r < N; ++r) {
    std::copy_n(d_qkv.begin() + r * width, q, out.d_q.begin() + r * q);
    std::copy_n(d_qkv.begin() + r * width + q, kv, out.d_kv.begin() + r * kv);
  }
  out.lse = by_rows(p, p.S, lse);
  return out;
}

// Runs documents one by one, as if each were a sequence; the mask must give the same results. ALiBi depends on distance
// alone, so it does not change.
Outcome<double> document_by_document(const Problem& p) {
  const Inputs<double> in(p);
  const Starts starts = p.starts();
  Outcome<double> out{Values<double>(in.q.size()), Values<double>(static_cast<std::size_t>(p.B * p.S * p.h)),
                      Values<double>(in.q.size()), Values<double>(in.kv.size())};
  for (i64 b = 0; b < p.B; ++b)
    for (i64 first = 0, last = 0; first < p.S; first = last) {
      while (last < p.S && starts[static_cast<std::size_t>(b * p.S + last)] == first) ++last;
      const Problem one{1, last - first, p.h, p.k, p.D, p.alibi, false};
      const ReferenceKernels<double> kernels{one, 1};
      const Runs all{{0, one.S}};
      const auto part = [&](const Values<double>& v, i64 width) {
        return Values<double>(v.begin() + (b * p.S + first) * width, v.begin() + (b * p.S + last) * width);
      };
      Values<double> q = part(in.q, p.q_row()), kv = part(in.kv, p.kv_row()), o(q.size()),
                     lse(static_cast<std::size_t>(one.S * p.h)), d_q(q.size()), d_kv(kv.size());
      kernels.forward(all, all, {}, q, kv, true, o, lse);
      kernels.backward(all, all, {}, part(in.d_o, p.q_row()), q, kv, o, lse, false, false, d_q, d_kv);
      const auto back = [&](const Values<double>& v, i64 width, Values<double>& to) {
        std::copy(v.begin(), v.end(), to.begin() + (b * p.S + first) * width);
      };
      back(o, p.q_row(), out.o), back(by_rows(one, one.S, lse), p.h, out.lse), back(d_q, p.q_row(), out.d_q),
          back(d_kv, p.kv_row(), out.d_kv);
    }
  return out;
}

template <class T>
double relative_error(const Values<T>& got, const Values<double>& want, double terms = 0) {
  EXPECT_EQ(got.size(), want.size());
  double largest = terms, worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(error <= worst)) worst = error;
    if (std::isnan(worst)) return INFINITY;
  }
  EXPECT_GT(largest, 0);
  return worst / largest;
}

// `terms` is the size of the terms that cancel in the gradients, when everything may cancel. Returns the largest error
// relative to the bound.
template <class T>
double expect_same(const Outcome<T>& got, const Outcome<double>& want, double bound, double terms = 0) {
  double worst = 0;
  const auto expect = [&](const Values<T>& a, const Values<double>& b, const char* name) {
    const double error = relative_error(a, b, terms);
    EXPECT_LE(error, bound) << name;
    worst = std::max(worst, error / bound);
  };
  expect(got.o, want.o, "o");
  expect(got.lse, want.lse, "lse");
  expect(got.d_q, want.d_q, "d_q");
  expect(got.d_kv, want.d_kv, "d_kv");
  return worst;
}

testing::Message what(const Problem& p, int ranks, bool ring) {
  return testing::Message() << "B=" << p.B << " S=" << p.S << " h=" << p.h << " k=" << p.k << " D=" << p.D
                            << (p.alibi ? " alibi" : "") << (p.documents ? " documents" : "") << " ranks=" << ranks
                            << (ring ? " ring" : " gathered");
}

const Problem kSmall[] = {
    {2, 23, 6, 3, 5}, {3, 17, 2, 2, 7, true}, {2, 29, 4, 1, 3, false, true}, {3, 31, 6, 2, 5, true, true}};

TEST(ContextReference, RanksTogetherAreTheWhole) {
  for (const Problem& p : kSmall)
    for (const int ranks : {1, 2, 3, 4})
      for (const bool ring : {false, true}) {
        SCOPED_TRACE(what(p, ranks, ring));
        expect_same(run(p, ReferenceKernels<double>{p}, ranks, ring), p.documents ? document_by_document(p) : whole(p),
                    1e-12);
      }
}

// Computes d/dx of the weighted sum of o over the ranks that see x, one element at a time (reference_test.cpp explains
// the method).
TEST(ContextReference, BackwardIsTheComplexStep) {
  constexpr double kStep = 1e-50;
  for (const Problem& p : {Problem{2, 11, 4, 2, 3, true, true}, Problem{1, 13, 3, 1, 5}}) {
    const int ranks = 2;
    for (const bool ring : {false, true}) {
      SCOPED_TRACE(what(p, ranks, ring));
      const Inputs<double> in(p);
      const Starts starts = p.starts();
      const auto value = [&](const Values<Complex>& q, const Values<Complex>& kv) {
        Complex sum = 0;
        for (int r = 0; r < ranks; ++r) {
          const Runs mine = zig_zag(p.S, r, ranks);
          const Starts own = starts.empty() ? starts : take(p, mine, 1, starts);
          Values<Complex> o(static_cast<std::size_t>(p.B * count_positions(mine) * p.q_row())),
              lse(static_cast<std::size_t>(p.B * count_positions(mine) * p.h));
          for (int step = 0; step < (ring ? ranks : 1); ++step) {
            const Runs keys = ring ? zig_zag(p.S, (r + step) % ranks, ranks) : Runs{{0, p.S}};
            ReferenceKernels<Complex>{p}.forward(mine, keys, own, take(p, mine, p.q_row(), q),
                                                 take(p, keys, p.kv_row(), kv), step == 0, o, lse);
          }
          const Values<double> g = take(p, mine, p.q_row(), in.d_o);
          for (std::size_t i = 0; i < o.size(); ++i) sum += g[i] * o[i];
        }
        return sum.imag() / kStep;
      };
      const Values<Complex> q(in.q.begin(), in.q.end()), kv(in.kv.begin(), in.kv.end());
      Values<double> d_q(q.size()), d_kv(kv.size());
      for (std::size_t i = 0; i < q.size(); ++i) {
        Values<Complex> moved = q;
        moved[i] += Complex(0, kStep);
        d_q[i] = value(moved, kv);
      }
      for (std::size_t i = 0; i < kv.size(); ++i) {
        Values<Complex> moved = kv;
        moved[i] += Complex(0, kStep);
        d_kv[i] = value(q, moved);
      }
      const auto got = run(p, ReferenceKernels<double>{p}, ranks, ring);
      EXPECT_LE(relative_error(got.d_q, d_q), 1e-12);
      EXPECT_LE(relative_error(got.d_kv, d_kv), 1e-12);
    }
  }
}

// A score is a sum of D products of standard normal numbers over sqrt(D). Over many rows its terms sum to at most M ~ 2
// sqrt(D) in absolute value, and its rounding gives p a relative error of M eps. Each ring step rounds o, and also lse
// (of size up to log S + M), whose error is a relative error of p too. Gradients are sums of as many terms with that
// error. Errors are relative to the largest value of a tensor, or to 1, which is the size of a gradient's terms.
double fused_bound(const Problem& p, int ranks) {
  const double M = 2 * std::sqrt(static_cast<double>(p.D)), lse = std::log(static_cast<double>(p.S)) + M;
  return 4 * FLT_EPSILON * (M + lse * ranks + 4);
}

std::vector<AttentionIsa> available() {
  std::vector<AttentionIsa> all;
  for (auto isa : {AttentionIsa::kGeneric, AttentionIsa::kAvx2, AttentionIsa::kAvx512})
    if (attention_isa_available(isa)) all.push_back(isa);
  return all;
}

double expect_fused(const Problem& p, int ranks, bool ring, int threads, AttentionIsa isa) {
  SCOPED_TRACE(what(p, ranks, ring) << " " << name_of(isa));
  return expect_same(run(p, FusedKernels{p, threads, isa}, ranks, ring), run(p, ReferenceKernels<double>{p}, 1, false),
                     fused_bound(p, ranks), 1.0);
}

TEST(ContextFused, RanksTogetherAreTheWhole) {
  for (const AttentionIsa isa : available())
    for (const Problem& p : kSmall)
      for (const int ranks : {1, 2, 3, 4})
        for (const bool ring : {false, true}) expect_fused(p, ranks, ring, 2, isa);
}

// The problems have several tiles of keys and of queries, heads wider than a strip, and more heads on a key head than
// fit into a piece.
TEST(ContextFused, LongerThanSeveralTiles) {
  double worst = 0;
  for (const AttentionIsa isa : available()) {
    worst = std::max(worst, expect_fused({1, 523, 2, 1, 64, false, true}, 2, true, 2, isa));
    worst = std::max(worst, expect_fused({1, 401, 2, 2, 80, true, true}, 3, false, 1, isa));
  }
  EXPECT_GT(worst, 0.01) << "a bound that rounding never comes near proves nothing";
  RecordProperty("worst_of_bound", std::to_string(worst));
  expect_fused({2, 307, 4, 2, 20, true, true}, 1, false, 5, AttentionIsa::kBest);  // backward by tiles
  expect_fused({1, 409, 1, 1, 128}, 4, true, 2, AttentionIsa::kBest);
  expect_fused({1, 211, 11, 1, 8, true}, 2, true, 2, AttentionIsa::kBest);
  expect_fused({2, 61, 18, 2, 8}, 2, true, 2, AttentionIsa::kBest);  // two pieces for each of two key heads
}

// Documents begin at the last key of a tile, at its first key, and around these. The backward runs by tiles of keys,
// and by both kinds of tiles.
TEST(ContextFused, DocumentsBeginAnywhereInATile) {
  for (const i64 second : {1, 126, 127, 128, 129, 255, 256})
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(second);
      expect_fused({1, 301, 2, 1, 12, false, true, second}, 1, false, threads, AttentionIsa::kBest);
    }
}

RC_GTEST_PROP(ContextFused, AnyShape, ()) {
  const i64 k = *rc::gen::inRange(1, 3), h = k * *rc::gen::inRange(1, 4);
  const int ranks = *rc::gen::inRange(1, 5);
  const Problem p{*rc::gen::inRange<i64>(1, 3),
                  *rc::gen::inRange<i64>(2 * ranks, 190),
                  h,
                  k,
                  *rc::gen::inRange<i64>(1, 70),
                  *rc::gen::arbitrary<bool>(),
                  *rc::gen::arbitrary<bool>()};
  expect_fused(p, ranks, *rc::gen::arbitrary<bool>(), *rc::gen::inRange(1, 4), *rc::gen::elementOf(available()));
  RC_ASSERT(!testing::Test::HasFailure());
}

bool same_bits(const Values<float>& a, const Values<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

TEST(ContextFused, SameBitsForAnyNumberOfThreadsAndOnRepeat) {
  const Problem p{1, 310, 4, 2, 20, true, true};
  for (const AttentionIsa isa : available()) {
    const auto one = run(p, FusedKernels{p, 1, isa}, 2, true);
    for (const int threads : {1, 2, 3, 5}) {
      const auto other = run(p, FusedKernels{p, threads, isa}, 2, true);
      EXPECT_TRUE(same_bits(one.o, other.o) && same_bits(one.lse, other.lse) && same_bits(one.d_q, other.d_q) &&
                  same_bits(one.d_kv, other.d_kv))
          << threads;
    }
  }
}

// Queries that see no key of a block keep their bits; the first block sets them to zero.
TEST(ContextFused, QueriesWithoutKeysAreLeftAlone) {
  const Problem p{2, 24, 2, 1, 9};
  const Runs queries{{0, 4}, {20, 24}}, keys{{10, 14}};
  const Inputs<float> in(p);
  const auto q = take(p, queries, p.q_row(), in.q), kv = take(p, keys, p.kv_row(), in.kv);
  // In the second sequence, the documents of the late queries begin after the keys.
  const Starts starts{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 15, 15, 15};
  for (const AttentionIsa isa : available())
    for (const bool first : {true, false}) {
      Values<float> o(q.size(), 7.0f), lse(static_cast<std::size_t>(p.B * 8 * p.h), 0.25f), d_q(q.size(), 3.0f),
          d_kv(kv.size(), 2.0f);
      const Values<float> before = o;
      const FusedKernels kernels{p, 2, isa};
      kernels.forward(queries, keys, starts, q, kv, first, o, lse);
      const Values<float> lse_rows = by_rows(p, 8, lse);
      kernels.backward(queries, keys, starts, take(p, queries, p.q_row(), in.d_o), q, kv, o, lse, !first, true, d_q,
                       d_kv);
      for (i64 row = 0; row < 16; ++row) {
        const bool sees = row >= 4 && row < 8;
        for (i64 c = 0; c < p.q_row(); ++c) {
          const auto at = static_cast<std::size_t>(row * p.q_row() + c);
          EXPECT_TRUE(std::isfinite(o[at]) && std::isfinite(d_q[at]));
          if (sees) {
            EXPECT_NE(o[at], 7.0f);
            EXPECT_NE(d_q[at], first ? 0.0f : 3.0f);
          } else {
            EXPECT_EQ(o[at], first ? 0.0f : 7.0f);
            EXPECT_EQ(d_q[at], first ? 0.0f : 3.0f);
          }
        }
        for (i64 h = 0; h < p.h; ++h) {
          const float l = lse_rows[static_cast<std::size_t>(row * p.h + h)];
          if (sees) {
            EXPECT_TRUE(std::isfinite(l) && l != 0.25f);
          } else {
            EXPECT_EQ(l, first ? -INFINITY : 0.25f);
          }
        }
      }
      const auto half = static_cast<std::ptrdiff_t>(d_kv.size() / 2);
      EXPECT_TRUE(std::all_of(d_kv.begin() + half, d_kv.end(), [](float x) { return x == 2.0f; }));
      EXPECT_TRUE(std::none_of(d_kv.begin(), d_kv.begin() + half, [](float x) { return x == 2.0f; }));
    }
}

// Attention over one run of all positions, without documents, equals the attention of math/attention.h.
TEST(ContextFused, AgreesWithWholeSequences) {
  const Problem p{2, 150, 4, 2, 32, true};
  const Inputs<float> in(p);
  const i64 width = p.q_row() + p.kv_row(), N = p.B * p.S;
  Values<float> qkv(static_cast<std::size_t>(N * width));
  for (i64 r = 0; r < N; ++r) {
    std::copy_n(in.q.begin() + r * p.q_row(), p.q_row(), qkv.begin() + r * width);
    std::copy_n(in.kv.begin() + r * p.kv_row(), p.kv_row(), qkv.begin() + r * width + p.q_row());
  }
  const Values<double> wide = p.slopes();
  const Values<float> slopes(wide.begin(), wide.end());
  AttentionShape shape{p.B, p.S, p.h, p.k, p.D, 2, slopes.data()};
  Values<float> o(in.q.size()), lse(static_cast<std::size_t>(N * p.h)),
      scratch(static_cast<std::size_t>(attention_forward_scratch(shape) / 4));
  attention_forward(shape, qkv.data(), o.data(), lse.data(), scratch.data());
  const auto got = run(p, FusedKernels{p}, 1, false);
  EXPECT_LE(relative_error(got.o, {o.begin(), o.end()}), 2 * fused_bound(p, 1));
  EXPECT_EQ(context_forward_scratch(FusedKernels{p}.shape({}, {}, {}, {})), attention_forward_scratch(shape));
  EXPECT_EQ(context_backward_scratch(FusedKernels{p}.shape({}, {}, {}, {})), attention_backward_scratch(shape));
}

TEST(ContextFused, NanShowsAndOtherDocumentsDoNotSeeIt) {
  const Problem p{1, 140, 1, 1, 16};
  Inputs<float> in(p);
  for (i64 c = 0; c < p.kv_row(); ++c) in.kv[static_cast<std::size_t>(60 * p.kv_row() + c)] = kNaN;
  Starts starts(140, 0);
  std::fill(starts.begin() + 90, starts.end(), 90);
  for (const AttentionIsa isa : available()) {
    Values<float> o(in.q.size()), lse(140);
    const Runs all{{0, 140}};
    FusedKernels{p, 1, isa}.forward(all, all, starts, in.q, in.kv, true, o, lse);
    for (i64 i = 0; i < 140; ++i) {
      const float x = o[static_cast<std::size_t>(i * 16 + 3)];
      if (i >= 60 && i < 90) {
        EXPECT_TRUE(std::isnan(x)) << i;
      }
      if (i < 55 || i >= 95) {
        EXPECT_TRUE(std::isfinite(x)) << i;  // rows share a block of 6, where 0 * NaN is NaN
      }
    }
  }
}

TEST(ContextFused, ImpossibleOperandsAreRefused) {
  const Problem p{1, 8, 1, 1, 4};
  const Inputs<float> in(p);
  Values<float> o(in.q.size()), lse(8);
  const auto refused = [&](const Runs& queries, const Runs& keys, const Starts& starts) {
    EXPECT_THROW(FusedKernels{p}.forward(queries, keys, starts, in.q, in.kv, true, o, lse), Error);
  };
  const Runs all{{0, 8}};
  refused({{4, 8}, {0, 4}}, all, {});
  refused(all, {{0, 5}, {4, 8}}, {});
  refused(all, {{3, 3}}, {});
  refused(all, {{-1, 3}}, {});
  refused(all, all, {0, 0, 0, 4, 4, 4, 4, 4});
  refused(all, all, {0, 0, 2, 2, 1, 1, 1, 1});
  refused(all, all, {-1, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_NO_THROW(FusedKernels{p}.forward(all, all, {0, 0, 2, 2, 4, 4, 4, 4}, in.q, in.kv, true, o, lse));
}

}  // namespace
}  // namespace molen::math
