// Tests the vector kernels of every instruction set of this processor against the double reference, including tails,
// threads and determinism.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "math/reference.h"
#include "math/test_close.h"
#include "math/test_vector.h"

namespace molen::math {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using testing::Bound;
using testing::close;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Floats random(std::int64_t count, unsigned seed, double scale = 1.0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Floats v(static_cast<std::size_t>(count));
  for (float& x : v) x = static_cast<float>(normal(engine));
  return v;
}
Doubles wide(const Floats& v) {
  return {v.begin(), v.end()};
}
Bound bound(std::int64_t length, double c) {
  return {0x1p-24, length, c, 0.0};
}

class Vector : public ::testing::TestWithParam<const VectorKernels*> {
 protected:
  const VectorKernels& v = *GetParam();
};

INSTANTIATE_TEST_SUITE_P(Isa, Vector, ::testing::ValuesIn(testing::tables()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(Vector, Norms) {
  for (const std::int64_t d : {3, 16, 61, 257})
    for (const bool layer : {false, true})
      for (const bool parameters : {false, true}) {
        const std::int64_t rows = 13;
        const Floats x = random(rows * d, 1), w = random(d, 2), b = random(d, 3), d_y = random(rows * d, 4);
        const Floats start_x = random(rows * d, 5), start_w = random(d, 6), start_b = random(d, 7);
        const bool bias = parameters && layer;
        const Doubles dx = wide(x), dw = wide(w), db = wide(b), dd_y = wide(d_y);
        Doubles rstd(rows), mean(rows), y(rows * d), want_x = wide(start_x), want_w = wide(start_w),
                                                     want_b = wide(start_b);
        if (layer)
          reference::layer_norm_forward(1, rows, d, 1e-5, dx.data(), parameters ? dw.data() : nullptr,
                                        bias ? db.data() : nullptr, rstd.data(), mean.data(), y.data());
        else
          reference::rms_norm_forward(1, rows, d, 1e-5, dx.data(), parameters ? dw.data() : nullptr, rstd.data(),
                                      y.data());
        reference::norm_backward(1, rows, d, dd_y.data(), dx.data(), rstd.data(), layer ? mean.data() : nullptr,
                                 parameters ? dw.data() : nullptr, true, want_x.data(), true,
                                 parameters ? want_w.data() : nullptr, bias ? want_b.data() : nullptr);
        for (const int threads : {1, 2, 5}) {
          Floats got_rstd(rows, kNan), got_mean(rows, kNan), got_y(rows * d, kNan), again(rows * d, kNan);
          v.norm_forward(threads, rows, d, 1e-5, x.data(), parameters ? w.data() : nullptr, bias ? b.data() : nullptr,
                         got_rstd.data(), layer ? got_mean.data() : nullptr, got_y.data());
          EXPECT_TRUE(close(wide(got_y), y, bound(d, 8))) << d << layer << parameters;
          EXPECT_TRUE(close(wide(got_rstd), rstd, bound(d, 4)));
          v.norm_apply(threads, rows, d, x.data(), got_rstd.data(), layer ? got_mean.data() : nullptr,
                       parameters ? w.data() : nullptr, bias ? b.data() : nullptr, again.data());
          EXPECT_EQ(got_y, again);
          Floats got_x = start_x, got_w = start_w, got_b = start_b, partial(2 * threads * d, kNan);
          v.norm_backward(threads, rows, d, d_y.data(), x.data(), got_rstd.data(), layer ? got_mean.data() : nullptr,
                          parameters ? w.data() : nullptr, true, got_x.data(), true,
                          parameters ? got_w.data() : nullptr, bias ? got_b.data() : nullptr, partial.data());
          EXPECT_TRUE(close(wide(got_x), want_x, bound(d, 16))) << d << layer << parameters;
          if (parameters) {
            EXPECT_TRUE(close(wide(got_w), want_w, bound(rows, 8)));
          }
          if (bias) {
            EXPECT_TRUE(close(wide(got_b), want_b, bound(rows, 8)));
          }
        }
      }
}

TEST_P(Vector, NormsOfQueriesAndKeys) {
  for (const QkNormSizes& n :
       {QkNormSizes{131, {3, 17}, {2, 31}}, QkNormSizes{400, {2, 128}, {1, 128}}, QkNormSizes{110, {1, 70}, {1, 35}}}) {
    const std::int64_t rows = 13;
    const Floats x = random(rows * n.width, 1), w_q = random(n.query.length, 2), w_k = random(n.key.length, 3),
                 d_y = random(rows * n.width, 4), start_q = random(n.query.length, 5),
                 start_k = random(n.key.length, 6);
    const Doubles dx = wide(x), dw_q = wide(w_q), dw_k = wide(w_k);
    Doubles y(x.size()), want = wide(d_y), want_q = wide(start_q), want_k = wide(start_k);
    reference::qk_norm_forward(1, rows, n, 1e-5, dx.data(), dw_q.data(), dw_k.data(), y.data());
    std::vector<char> space(8 * static_cast<std::size_t>(rows * n.query.groups) + 128);
    Scratch scratch(reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(space.data()) + 63) / 64 * 64),
                    static_cast<std::int64_t>(space.size()) - 64);
    reference::qk_norm_backward(1, rows, n, 1e-5, dx.data(), dw_q.data(), dw_k.data(), want.data(), true, want_q.data(),
                                want_k.data(), scratch);
    for (const int threads : {1, 2, 5}) {
      Floats got(x.size(), kNan);
      v.qk_norm_forward(threads, rows, n, 1e-5, x.data(), w_q.data(), w_k.data(), got.data());
      EXPECT_TRUE(close(wide(got), y, bound(n.query.length, 8))) << n.width;
      Floats d = d_y, got_q = start_q, got_k = start_k, partial(threads * (n.query.length + n.key.length), kNan);
      v.qk_norm_backward(threads, rows, n, 1e-5, x.data(), w_q.data(), w_k.data(), d.data(), true, got_q.data(),
                         got_k.data(), partial.data());
      EXPECT_TRUE(close(wide(d), want, bound(n.query.length, 16))) << n.width;
      EXPECT_TRUE(close(wide(got_q), want_q, bound(rows * n.query.groups, 8)));
      EXPECT_TRUE(close(wide(got_k), want_k, bound(rows * n.key.groups, 8)));
    }
  }
}

TEST_P(Vector, Rope) {
  const std::int64_t batch = 3, sequence = 5, heads = 3, head_dim = 38, width = 131, rows = batch * sequence;
  const Floats x = random(rows * width, 8), cosine = random(sequence * head_dim / 2, 9),
               sine = random(sequence * head_dim / 2, 10);
  for (const bool inverse : {false, true}) {
    Doubles want = wide(x);
    const Doubles dc = wide(cosine), ds = wide(sine);
    reference::rope(1, rows, sequence, heads, head_dim, width, dc.data(), ds.data(), inverse, want.data());
    Floats got = x;
    v.rope(2, rows, sequence, heads, head_dim, width, cosine.data(), sine.data(), inverse, got.data());
    EXPECT_TRUE(close(wide(got), want, bound(2, 4)));
  }
}

TEST_P(Vector, ActivationsOverTheirWholeRange) {
  const std::int64_t rows = 11, f = 131;
  for (const double scale : {0.01, 1.0, 8.0, 60.0}) {
    const Floats up = random(rows * 2 * f, 11, scale), d_a = random(rows * 2 * f, 12);
    const Doubles dup = wide(up), dda = wide(d_a);
    Doubles a(rows * f), d_up(rows * 2 * f), g(rows * 2 * f), d_g(rows * 2 * f);
    reference::swiglu_forward(1, rows, f, dup.data(), a.data());
    reference::swiglu_backward(1, rows, f, dda.data(), dup.data(), d_up.data());
    reference::gelu_tanh_forward(1, rows * 2 * f, dup.data(), g.data());
    reference::gelu_tanh_backward(1, rows * 2 * f, dda.data(), dup.data(), d_g.data());
    Floats got_a(rows * f, kNan), got_up(rows * 2 * f, kNan), got_g(rows * 2 * f, kNan), got_d(rows * 2 * f, kNan);
    v.swiglu_forward(2, rows, f, up.data(), got_a.data());
    v.swiglu_backward(2, rows, f, d_a.data(), up.data(), got_up.data());
    v.gelu_tanh_forward(2, rows * 2 * f, up.data(), got_g.data());
    v.gelu_tanh_backward(2, rows * 2 * f, d_a.data(), up.data(), got_d.data());
    EXPECT_TRUE(close(wide(got_a), a, bound(1, 12))) << scale;
    EXPECT_TRUE(close(wide(got_up), d_up, bound(1, 24))) << scale;
    EXPECT_TRUE(close(wide(got_g), g, bound(1, 24))) << scale;
    EXPECT_TRUE(close(wide(got_d), d_g, bound(1, 96)))
        << scale;  // the relative error of e^u is that of u times |u|, which is up to some tens
  }
}

TEST_P(Vector, RowsColumnsAndEmbedding) {
  const std::int64_t batch = 7, sequence = 19, d = 53, vocabulary = 31, rows = batch * sequence;
  const Floats table = random(vocabulary * d, 13), positions = random(sequence * d, 14), d_x = random(rows * d, 15),
               bias = random(d, 16);
  std::vector<std::int32_t> ids;
  for (std::int64_t n = 0; n < rows; ++n) ids.push_back(static_cast<std::int32_t>(n * n % vocabulary));
  Floats x(rows * d, kNan), sums = bias, filled(rows * d, kNan), zero(rows, kNan);
  v.embedding_forward(2, rows, sequence, d, ids.data(), table.data(), positions.data(), x.data());
  v.fill_rows(2, rows, d, d_x.data(), bias.data(), filled.data());
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t c = 0; c < d; ++c) {
      ASSERT_EQ(x[n * d + c], table[ids[n] * d + c] + positions[n % sequence * d + c]);
      ASSERT_EQ(filled[n * d + c], d_x[n * d + c] + bias[c]);
    }
  v.fill_zero(3, rows, zero.data());
  EXPECT_EQ(zero, Floats(rows, 0.0f));
  v.column_sums(2, rows, d, d_x.data(), true, sums.data());
  const Doubles dd_x = wide(d_x);
  Doubles want_sums = wide(bias), want_table = wide(table), want_positions = wide(positions);
  reference::column_sums(1, rows, d, dd_x.data(), true, want_sums.data());
  EXPECT_TRUE(close(wide(sums), want_sums, bound(rows, 2)));
  reference::embedding_backward(1, rows, sequence, d, ids.data(), dd_x.data(), want_table.data(),
                                want_positions.data());
  Floats one;
  for (const int threads : {1, 2, 5}) {
    Floats d_table = table, d_positions = positions;
    v.embedding_backward(threads, rows, sequence, d, ids.data(), d_x.data(), d_table.data(), d_positions.data());
    EXPECT_TRUE(close(wide(d_table), want_table, bound(rows, 2)));
    EXPECT_TRUE(close(wide(d_positions), want_positions, bound(batch, 2)));
    if (threads == 1) one = d_table;
    EXPECT_EQ(one, d_table);
  }
}

TEST_P(Vector, CrossEntropy) {
  for (const std::int64_t vocabulary : {2, 61, 1031, 32003})
    for (const double scale : {0.3, 5.0, 40.0}) {
      const std::int64_t rows = 5;
      const Floats logits = random(rows * vocabulary, 17, scale);
      const std::vector<std::int32_t> labels{1, 0, -1, static_cast<std::int32_t>(vocabulary - 1),
                                             static_cast<std::int32_t>(vocabulary / 2)};
      Doubles want = wide(logits), want_losses(rows);
      reference::cross_entropy(1, rows, vocabulary, labels.data(), true, 0.125, want.data(), want_losses.data());
      Floats got = logits, losses(rows, kNan), only(rows, kNan), untouched = logits;
      v.cross_entropy(2, rows, vocabulary, labels.data(), true, 0.125, got.data(), losses.data());
      v.cross_entropy(2, rows, vocabulary, labels.data(), false, 0.125, untouched.data(), only.data());
      // x - max is rounded relative to its size; exp turns this into a relative error of the result.
      const double c = 8.0 + 8.0 * scale;
      EXPECT_TRUE(close(wide(got), want, Bound{0x1p-24, 1, c, 0.125})) << vocabulary << " " << scale;  // p - 1 cancels
      EXPECT_TRUE(close(wide(losses), want_losses, bound(1, c))) << vocabulary << " " << scale;
      EXPECT_EQ(losses, only);
      EXPECT_EQ(untouched, logits);
      EXPECT_EQ(losses[2], 0.0f);
    }
}

TEST_P(Vector, NaNStaysNaN) {
  Floats logits = random(101, 18);
  logits[50] = kNan;
  const std::int32_t label = 3;
  float loss = 0.0f;
  v.cross_entropy(1, 1, 101, &label, true, 1.0, logits.data(), &loss);
  EXPECT_TRUE(std::isnan(loss));
  EXPECT_TRUE(std::isnan(logits[0]));
  Floats up = random(64, 19), a(32);
  up[5] = kNan;
  v.swiglu_forward(1, 1, 32, up.data(), a.data());
  EXPECT_TRUE(std::isnan(a[5]));
  v.gelu_tanh_forward(1, 32, up.data(), a.data());
  EXPECT_TRUE(std::isnan(a[5]));
  EXPECT_FALSE(std::isnan(a[6]));
}

}  // namespace
}  // namespace molen::math
