// Tests the references' backward against the complex step. With inputs x + ih, imag(f)/h is df/dx without subtraction,
// so h can be 1e-50 and the only error is rounding. The bound is 1e-12 of each tensor's largest gradient. Sizes are
// distinct primes.
#include "math/reference.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "math/test_close.h"

namespace molen::math::reference {
namespace {

using Complex = std::complex<double>;
using Real = std::vector<double>;
using Wide = std::vector<Complex>;
using testing::expect_gradient;
constexpr double kStep = 1e-50;
constexpr int kThreads = 2;

Real random(std::size_t count, unsigned seed, double scale = 1.0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Real v(count);
  for (double& x : v) x = normal(engine);
  return v;
}
Wide widen(const Real& v) {
  return {v.begin(), v.end()};
}

// Computes d/dx of sum_i weights_i forward(x)_i, one element of x at a time.
Real complex_step(const Real& x, const Real& weights, const std::function<Wide(const Wide&)>& forward) {
  Real gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    Wide moved = widen(x);
    moved[i] += Complex(0.0, kStep);
    const Wide y = forward(moved);
    Complex sum = 0.0;
    for (std::size_t j = 0; j < y.size(); ++j) sum += weights[j] * y[j];
    gradient[i] = sum.imag() / kStep;
  }
  return gradient;
}

struct Workspace {
  explicit Workspace(std::int64_t bytes)
      : memory(static_cast<std::size_t>(bytes) + 64), scratch(memory.data(), bytes) {}
  std::vector<char> memory;
  Scratch scratch;
};

TEST(Reference, Products) {
  const std::int64_t m = 5, n = 67, k = 11;  // n is larger than one block of columns
  const Real a = random(m * k, 1), b = random(n * k, 2), start = random(m * n, 3);
  Real bt(b.size()), at(a.size());
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t l = 0; l < k; ++l) bt[l * n + j] = b[j * k + l];
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t l = 0; l < k; ++l) at[l * m + i] = a[i * k + l];
  for (const bool accumulate : {false, true}) {
    Real want(m * n), nt = start, nn = start, tn = start;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        long double sum = accumulate ? start[i * n + j] : 0.0;
        for (std::int64_t l = 0; l < k; ++l) sum += static_cast<long double>(a[i * k + l]) * b[j * k + l];
        want[i * n + j] = static_cast<double>(sum);
      }
    matmul_nt(kThreads, m, n, k, a.data(), b.data(), accumulate, nt.data());
    matmul_nn(kThreads, m, n, k, a.data(), bt.data(), accumulate, nn.data());
    matmul_tn(kThreads, m, n, k, at.data(), bt.data(), accumulate, tn.data());
    for (const Real& got : {nt, nn, tn}) expect_gradient(got, want, "product");
  }
}

TEST(Reference, FloatSumsAreKeptInDouble) {
  // 2^24 + 1 - 2^24 is 0 in float.
  const std::vector<float> a{16777216.0f, 1.0f, -16777216.0f}, ones{1.0f, 1.0f, 1.0f};
  float c = 7.0f;
  matmul_nt(1, 1, 1, 3, a.data(), ones.data(), false, &c);
  EXPECT_EQ(c, 1.0f);
}

// Checks all three kinds of norm, with d_x added to earlier values, and with parameter gradients accumulated.
void check_norm(bool layer, bool parameters) {
  const std::int64_t rows = 5, d = 13;
  const double eps = 1e-3;
  const Real x = random(rows * d, 4), w = random(d, 5), b = random(d, 6), weights = random(rows * d, 7);
  const auto forward = [&](const Wide& x_, const Wide& w_, const Wide& b_) {
    Wide y(x.size()), rstd(rows), mean(rows);
    const Complex *wp = parameters ? w_.data() : nullptr, *bp = parameters ? b_.data() : nullptr;
    if (layer)
      layer_norm_forward(kThreads, rows, d, eps, x_.data(), wp, bp, rstd.data(), mean.data(), y.data());
    else
      rms_norm_forward(kThreads, rows, d, eps, x_.data(), wp, rstd.data(), y.data());
    return y;
  };
  Real y(x.size()), rstd(rows), mean(rows), again(x.size());
  const double *wp = parameters ? w.data() : nullptr, *bp = parameters && layer ? b.data() : nullptr,
               *mp = layer ? mean.data() : nullptr;
  if (layer)
    layer_norm_forward(kThreads, rows, d, eps, x.data(), wp, bp, rstd.data(), mean.data(), y.data());
  else
    rms_norm_forward(kThreads, rows, d, eps, x.data(), wp, rstd.data(), y.data());
  norm_apply(kThreads, rows, d, x.data(), rstd.data(), mp, wp, bp, again.data());
  EXPECT_EQ(again, y);
  const Real start_x = random(rows * d, 8), start_w = random(d, 9), start_b = random(d, 10);
  for (const bool add : {false, true}) {
    Real d_x = start_x, d_w = start_w, d_b = start_b;
    norm_backward(kThreads, rows, d, weights.data(), x.data(), rstd.data(), mp, wp, add, d_x.data(), add,
                  parameters ? d_w.data() : nullptr, parameters && layer ? d_b.data() : nullptr);
    if (add) {
      for (std::size_t i = 0; i < d_x.size(); ++i) d_x[i] -= start_x[i];
      for (std::size_t i = 0; i < d_w.size(); ++i) d_w[i] -= start_w[i], d_b[i] -= start_b[i];
    }
    expect_gradient(d_x, complex_step(x, weights, [&](const Wide& v) { return forward(v, widen(w), widen(b)); }),
                    "d_x");
    if (parameters)
      expect_gradient(d_w, complex_step(w, weights, [&](const Wide& v) { return forward(widen(x), v, widen(b)); }),
                      "d_w");
    if (parameters && layer)
      expect_gradient(d_b, complex_step(b, weights, [&](const Wide& v) { return forward(widen(x), widen(w), v); }),
                      "d_b");
  }
}
TEST(Reference, RmsNorm) {
  check_norm(false, true);
}
TEST(Reference, LayerNorm) {
  check_norm(true, true);
}
TEST(Reference, LayerNormWithoutParameters) {
  check_norm(true, false);
}

TEST(Reference, Linear) {
  const std::int64_t rows = 7, in = 5, out = 11;
  const Real x = random(rows * in, 11), w = random(out * in, 12), b = random(out, 13), weights = random(rows * out, 14);
  const auto forward = [&](const Wide& x_, const Wide& w_, const Wide& b_) {
    Wide y(rows * out);
    fill_rows<Complex>(kThreads, rows, out, nullptr, b_.data(), y.data());
    matmul_nt(kThreads, rows, out, in, x_.data(), w_.data(), true, y.data());
    return y;
  };
  Real d_x(x.size()), d_w(w.size()), d_b(b.size());
  matmul_nn(kThreads, rows, in, out, weights.data(), w.data(), false, d_x.data());
  matmul_tn(kThreads, out, in, rows, weights.data(), x.data(), false, d_w.data());
  column_sums(kThreads, rows, out, weights.data(), false, d_b.data());
  expect_gradient(d_x, complex_step(x, weights, [&](const Wide& v) { return forward(v, widen(w), widen(b)); }), "d_x");
  expect_gradient(d_w, complex_step(w, weights, [&](const Wide& v) { return forward(widen(x), v, widen(b)); }), "d_w");
  expect_gradient(d_b, complex_step(b, weights, [&](const Wide& v) { return forward(widen(x), widen(w), v); }), "d_b");
}

// The groups of queries and of keys differ in number and length, and values follow them.
TEST(Reference, NormsOfQueriesAndKeys) {
  for (const QkNormSizes& n : {QkNormSizes{31, {4, 5}, {2, 3}}, QkNormSizes{23, {1, 12}, {1, 6}}}) {
    const std::int64_t rows = 7;
    const double eps = 1e-3;
    const Real x = random(rows * n.width, 21), w_q = random(n.query.length, 22), w_k = random(n.key.length, 23),
               weights = random(rows * n.width, 24), start_q = random(n.query.length, 25),
               start_k = random(n.key.length, 26);
    const auto forward = [&](const Wide& x_, const Wide& q, const Wide& k) {
      Wide y(x.size());
      qk_norm_forward(kThreads, rows, n, eps, x_.data(), q.data(), k.data(), y.data());
      return y;
    };
    Real y(x.size(), NAN);
    qk_norm_forward(kThreads, rows, n, eps, x.data(), w_q.data(), w_k.data(), y.data());
    const std::int64_t keys = n.query.groups * n.query.length, values = keys + n.key.groups * n.key.length;
    // The last element of the first row's first group of keys is computed by hand. The values must be unchanged.
    double squares = 0.0;
    for (std::int64_t c = 0; c < n.key.length; ++c) squares += x[keys + c] * x[keys + c];
    const std::int64_t last = n.key.length - 1;
    EXPECT_NEAR(y[keys + last],
                x[keys + last] * w_k[last] / std::sqrt(squares / static_cast<double>(n.key.length) + eps), 1e-14);
    for (std::int64_t c = values; c < n.width; ++c) EXPECT_EQ(y[n.width + c], x[n.width + c]);
    for (const bool add : {false, true}) {
      Real d = weights, d_q = start_q, d_k = start_k;
      Workspace work(8 * rows * std::max(n.query.groups, n.key.groups) + 64);
      qk_norm_backward(kThreads, rows, n, eps, x.data(), w_q.data(), w_k.data(), d.data(), add, d_q.data(), d_k.data(),
                       work.scratch);
      if (add) {
        for (std::size_t i = 0; i < d_q.size(); ++i) d_q[i] -= start_q[i];
        for (std::size_t i = 0; i < d_k.size(); ++i) d_k[i] -= start_k[i];
      }
      expect_gradient(d, complex_step(x, weights, [&](const Wide& v) { return forward(v, widen(w_q), widen(w_k)); }),
                      "d_x");
      expect_gradient(d_q, complex_step(w_q, weights, [&](const Wide& v) { return forward(widen(x), v, widen(w_k)); }),
                      "d_w of queries");
      expect_gradient(d_k, complex_step(w_k, weights, [&](const Wide& v) { return forward(widen(x), widen(w_q), v); }),
                      "d_w of keys");
    }
  }
}

TEST(Reference, Rope) {
  const std::int64_t batch = 2, sequence = 5, heads = 3, head_dim = 6, width = 23, rows = batch * sequence;
  const Real x = random(rows * width, 15), weights = random(rows * width, 16);
  Real cosine(sequence * head_dim / 2), sine(cosine.size());
  for (std::size_t i = 0; i < cosine.size(); ++i)
    cosine[i] = std::cos(0.1 * static_cast<double>(i)), sine[i] = std::sin(0.1 * static_cast<double>(i));
  Real gradient = weights;
  rope(kThreads, rows, sequence, heads, head_dim, width, cosine.data(), sine.data(), true, gradient.data());
  expect_gradient(gradient,
                  complex_step(x, weights,
                               [&](const Wide& v) {
                                 Wide y = v;
                                 rope(kThreads, rows, sequence, heads, head_dim, width, cosine.data(), sine.data(),
                                      false, y.data());
                                 return y;
                               }),
                  "rope");
  // Element 0 of the second position is computed by hand.
  Real y = x;
  rope(1, rows, sequence, heads, head_dim, width, cosine.data(), sine.data(), false, y.data());
  EXPECT_NEAR(y[width], x[width] * cosine[3] - x[width + 3] * sine[3], 1e-15);
  EXPECT_EQ(y[heads * head_dim], x[heads * head_dim]);  // values are not rotated
}

void check_attention(bool alibi, std::int64_t heads, std::int64_t kv_heads) {
  const AttentionSizes a{2, 7, heads, kv_heads, 5};
  const std::int64_t rows = a.batch * a.sequence;
  Real slopes;
  for (std::int64_t h = 0; h < heads; ++h) slopes.push_back(0.5 / static_cast<double>(h + 1));
  const double* sp = alibi ? slopes.data() : nullptr;
  const Real qkv = random(rows * a.width(), 17), weights = random(rows * heads * a.head_dim, 18);
  const std::int64_t bytes = kThreads * 16 * (a.sequence + 2 * a.head_dim) + 64;
  Real o(weights.size()), lse(a.batch * heads * a.sequence), d_qkv(qkv.size(), NAN);
  Workspace f(bytes), g(bytes);
  attention_forward(kThreads, a, sp, qkv.data(), o.data(), lse.data(), f.scratch);
  attention_backward(kThreads, a, sp, weights.data(), qkv.data(), o.data(), lse.data(), d_qkv.data(), g.scratch);
  expect_gradient(d_qkv,
                  complex_step(qkv, weights,
                               [&](const Wide& v) {
                                 Wide y(weights.size()), l(lse.size());
                                 Workspace w(bytes);
                                 attention_forward(kThreads, a, sp, v.data(), y.data(), l.data(), w.scratch);
                                 return y;
                               }),
                  "attention");
}
TEST(Reference, Attention) {
  check_attention(false, 3, 3);
}
TEST(Reference, AttentionGroupedQueries) {
  check_attention(false, 6, 2);
}
TEST(Reference, AttentionAlibi) {
  check_attention(true, 3, 1);
}

TEST(Reference, AttentionOfTheFirstTokenIsItsValue) {
  const AttentionSizes a{1, 3, 2, 1, 5};
  const Real qkv = random(3 * a.width(), 19);
  Real o(3 * 10), lse(6);
  Workspace w(4096);
  attention_forward(1, a, nullptr, qkv.data(), o.data(), lse.data(), w.scratch);
  for (std::int64_t c = 0; c < 5; ++c) {
    EXPECT_NEAR(o[c], qkv[15 + c], 1e-14);
    EXPECT_NEAR(o[5 + c], qkv[15 + c], 1e-14);
  }
}

TEST(Reference, Activations) {
  const std::int64_t rows = 5, f = 7;
  const Real up = random(rows * 2 * f, 20, 2.0), weights = random(rows * 2 * f, 21);
  Real d_up(up.size());
  swiglu_backward(kThreads, rows, f, weights.data(), up.data(), d_up.data());
  expect_gradient(d_up,
                  complex_step(up, weights,
                               [&](const Wide& v) {
                                 Wide a(rows * f);
                                 swiglu_forward(kThreads, rows, f, v.data(), a.data());
                                 return a;
                               }),
                  "swiglu");
  gelu_tanh_backward(kThreads, static_cast<std::int64_t>(up.size()), weights.data(), up.data(), d_up.data());
  expect_gradient(d_up,
                  complex_step(up, weights,
                               [&](const Wide& v) {
                                 Wide a(v.size());
                                 gelu_tanh_forward(kThreads, static_cast<std::int64_t>(v.size()), v.data(), a.data());
                                 return a;
                               }),
                  "gelu");
}

TEST(Reference, Embedding) {
  const std::int64_t batch = 3, sequence = 5, d = 7, vocabulary = 11, rows = batch * sequence;
  const Real table = random(vocabulary * d, 22), positions = random(sequence * d, 23), weights = random(rows * d, 24);
  std::vector<std::int32_t> ids;
  for (std::int64_t n = 0; n < rows; ++n) ids.push_back(static_cast<std::int32_t>(n * n % vocabulary));
  const auto forward = [&](const Wide& t, const Wide& p) {
    Wide x(rows * d);
    embedding_forward(kThreads, rows, sequence, d, ids.data(), t.data(), p.data(), x.data());
    return x;
  };
  Real d_table(table.size()), d_positions(positions.size());
  embedding_backward(kThreads, rows, sequence, d, ids.data(), weights.data(), d_table.data(), d_positions.data());
  expect_gradient(d_table, complex_step(table, weights, [&](const Wide& v) { return forward(v, widen(positions)); }),
                  "d_table");
  expect_gradient(d_positions,
                  complex_step(positions, weights, [&](const Wide& v) { return forward(widen(table), v); }),
                  "d_positions");
}

TEST(Reference, CrossEntropy) {
  const std::int64_t rows = 7, vocabulary = 13;
  const Real logits = random(rows * vocabulary, 25, 3.0);
  const std::vector<std::int32_t> labels{3, -1, 0, 12, 3, -1, 7};
  const double scale = 0.37;
  Real gradient = logits, losses(rows);
  cross_entropy(kThreads, rows, vocabulary, labels.data(), true, scale, gradient.data(), losses.data());
  EXPECT_EQ(losses[1], 0.0);
  EXPECT_EQ(gradient[vocabulary], 0.0);
  expect_gradient(gradient,
                  complex_step(logits, Real(rows, scale),
                               [&](const Wide& v) {
                                 Wide work = v, l(rows);
                                 cross_entropy(kThreads, rows, vocabulary, labels.data(), false, 1.0, work.data(),
                                               l.data());
                                 return l;
                               }),
                  "cross entropy");
}

}  // namespace
}  // namespace molen::math::reference
