// Tests the vector kernels over rows in bf16, for every instruction set of this processor. They must equal, bit for
// bit, the fp32 kernels on the widened values, rounded once. The rounding itself is compared with c10::BFloat16.
#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "math/test_vector.h"

namespace molen::math {
namespace {

using Floats = std::vector<float>;
using Halves = std::vector<std::uint16_t>;

constexpr std::uint16_t kUnwritten = 0x7fc1;  // a NaN that no kernel writes

Halves rounded(const Floats& v) {
  Halves h;
  for (const float x : v) h.push_back(c10::BFloat16(x).x);
  return h;
}
Floats widened(const Halves& h) {
  Floats v;
  for (const std::uint16_t x : h) v.push_back(static_cast<float>(c10::BFloat16(x, c10::BFloat16::from_bits())));
  return v;
}
Halves random(std::int64_t count, unsigned seed, double scale = 1.0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Floats v(static_cast<std::size_t>(count));
  for (float& x : v) x = static_cast<float>(normal(engine));
  return rounded(v);
}
Floats floats(std::int64_t count, unsigned seed) {
  return widened(random(count, seed));
}

class Narrow : public ::testing::TestWithParam<const VectorKernels*> {
 protected:
  const VectorKernels& v = *GetParam();
  const NarrowKernels& n = GetParam()->narrow;
};

INSTANTIATE_TEST_SUITE_P(Isa, Narrow, ::testing::ValuesIn(testing::tables()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(Narrow, EveryPatternIsWidenedExactlyAndNarrowedBack) {
  Halves all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const int threads : {1, 3}) {
    Floats wide(all.size(), -1.0f);
    n.widen(threads, std::ssize(all), all.data(), false, wide.data());
    const Floats want = widened(all);
    EXPECT_EQ(std::memcmp(wide.data(), want.data(), wide.size() * sizeof(float)), 0);
    Halves back(all.size(), kUnwritten);
    n.narrow(threads, std::ssize(all), wide.data(), back.data());
    for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(back[i], std::isnan(wide[i]) ? 0x7fc0 : all[i]) << i;
  }
}

TEST_P(Narrow, RoundsToTheNearestTiesToEven) {
  Floats values;
  for (const std::uint32_t upper :
       {0x0000u, 0x0001u, 0x007fu, 0x3f80u, 0x3f81u, 0x7f7eu, 0x7f7fu, 0x8000u, 0xbf80u, 0xff7fu})
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const std::uint32_t bits = upper << 16 | lower;
      float x;
      std::memcpy(&x, &bits, sizeof x);
      values.push_back(x);
    }
  for (const float x : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min()})
    values.push_back(x);
  Halves got(values.size(), kUnwritten);
  n.narrow(2, std::ssize(values), values.data(), got.data());
  EXPECT_EQ(got, rounded(values));
  // Adds to earlier values, with various lengths.
  for (const std::int64_t count : {1, 15, 16, 17, 100}) {
    const Halves more = random(count, 3);
    Floats sum = floats(count, 4), want = sum;
    n.widen(2, count, more.data(), true, sum.data());
    const Floats wide = widened(more);
    for (std::int64_t i = 0; i < count; ++i) want[static_cast<std::size_t>(i)] += wide[static_cast<std::size_t>(i)];
    EXPECT_EQ(sum, want);
  }
}

TEST_P(Narrow, Norms) {
  for (const std::int64_t d : {3, 16, 61, 257})
    for (const bool layer : {false, true})
      for (const bool parameters : {false, true})
        for (const bool add : {false, true}) {
          const std::int64_t rows = 13;
          const int threads = 3;
          const Halves x = random(rows * d, 1), w = random(d, 2), b = random(d, 3), d_y = random(rows * d, 4);
          const Floats wx = widened(x), ww = widened(w), wb = widened(b), wd_y = widened(d_y);
          const bool bias = parameters && layer;
          Floats rstd(rows), mean(rows), y(rows * d), got_rstd(rows), got_mean(rows);
          Halves got(rows * d, kUnwritten), again(rows * d, kUnwritten);
          v.norm_forward(threads, rows, d, 1e-5, wx.data(), parameters ? ww.data() : nullptr,
                         bias ? wb.data() : nullptr, rstd.data(), layer ? mean.data() : nullptr, y.data());
          n.norm_forward(threads, rows, d, 1e-5, x.data(), parameters ? w.data() : nullptr, bias ? b.data() : nullptr,
                         got_rstd.data(), layer ? got_mean.data() : nullptr, got.data());
          EXPECT_EQ(got, rounded(y));
          EXPECT_EQ(got_rstd, rstd);
          EXPECT_EQ(got_mean, mean);
          n.norm_apply(threads, rows, d, x.data(), rstd.data(), layer ? mean.data() : nullptr,
                       parameters ? w.data() : nullptr, bias ? b.data() : nullptr, again.data());
          EXPECT_EQ(again, got);
          Halves d_x = random(rows * d, 5);
          Floats wd_x = widened(d_x), d_w = floats(d, 6), d_b = floats(d, 7), want_w = d_w, want_b = d_b,
                 partial(2 * threads * d);
          v.norm_backward(threads, rows, d, wd_y.data(), wx.data(), rstd.data(), layer ? mean.data() : nullptr,
                          parameters ? ww.data() : nullptr, add, wd_x.data(), add, parameters ? want_w.data() : nullptr,
                          bias ? want_b.data() : nullptr, partial.data());
          n.norm_backward(threads, rows, d, d_y.data(), x.data(), rstd.data(), layer ? mean.data() : nullptr,
                          parameters ? w.data() : nullptr, add, d_x.data(), add, parameters ? d_w.data() : nullptr,
                          bias ? d_b.data() : nullptr, partial.data());
          EXPECT_EQ(d_x, rounded(wd_x)) << d << layer << parameters << add;
          EXPECT_EQ(d_w, want_w);
          EXPECT_EQ(d_b, want_b);
        }
}

TEST_P(Narrow, NormsOfQueriesAndKeys) {
  for (const QkNormSizes& s : {QkNormSizes{131, {3, 17}, {2, 31}}, QkNormSizes{400, {2, 128}, {1, 128}}}) {
    const std::int64_t rows = 13;
    const int threads = 3;
    const Halves x = random(rows * s.width, 1), w_q = random(s.query.length, 2), w_k = random(s.key.length, 3);
    const Floats wx = widened(x), ww_q = widened(w_q), ww_k = widened(w_k);
    Floats y(rows * s.width), partial(threads * (s.query.length + s.key.length));
    Halves got(rows * s.width, kUnwritten), d = random(rows * s.width, 4);
    v.qk_norm_forward(threads, rows, s, 1e-5, wx.data(), ww_q.data(), ww_k.data(), y.data());
    n.qk_norm_forward(threads, rows, s, 1e-5, x.data(), w_q.data(), w_k.data(), got.data());
    EXPECT_EQ(got, rounded(y));
    Floats wd = widened(d), d_q = floats(s.query.length, 5), d_k = floats(s.key.length, 6), want_q = d_q, want_k = d_k;
    v.qk_norm_backward(threads, rows, s, 1e-5, wx.data(), ww_q.data(), ww_k.data(), wd.data(), true, want_q.data(),
                       want_k.data(), partial.data());
    n.qk_norm_backward(threads, rows, s, 1e-5, x.data(), w_q.data(), w_k.data(), d.data(), true, d_q.data(), d_k.data(),
                       partial.data());
    EXPECT_EQ(d, rounded(wd));
    EXPECT_EQ(d_q, want_q);
    EXPECT_EQ(d_k, want_k);
  }
}

TEST_P(Narrow, RopeAndActivations) {
  const std::int64_t sequence = 5, heads = 3, head_dim = 38, width = 131, rows = 3 * sequence, f = 131;
  const Floats cosine = floats(sequence * head_dim / 2, 9), sine = floats(sequence * head_dim / 2, 10);
  for (const bool inverse : {false, true}) {
    Halves got = random(rows * width, 8);
    Floats want = widened(got);
    v.rope(2, rows, sequence, heads, head_dim, width, cosine.data(), sine.data(), inverse, want.data());
    n.rope(2, rows, sequence, heads, head_dim, width, cosine.data(), sine.data(), inverse, got.data());
    EXPECT_EQ(got, rounded(want));
  }
  for (const double scale : {0.01, 1.0, 8.0, 60.0}) {
    const Halves up = random(rows * 2 * f, 11, scale), d_a = random(rows * 2 * f, 12);
    const Floats wup = widened(up), wd_a = widened(d_a);
    Floats want(rows * 2 * f);
    Halves got(rows * 2 * f, kUnwritten);
    const auto same = [&](std::int64_t count, const char* what) {
      want.resize(static_cast<std::size_t>(count)), got.resize(static_cast<std::size_t>(count));
      EXPECT_EQ(got, rounded(want)) << what << " " << scale;
      want.assign(static_cast<std::size_t>(rows * 2 * f), 0.0f);
      got.assign(static_cast<std::size_t>(rows * 2 * f), kUnwritten);
    };
    v.swiglu_forward(2, rows, f, wup.data(), want.data());
    n.swiglu_forward(2, rows, f, up.data(), got.data());
    same(rows * f, "swiglu_forward");
    v.swiglu_backward(2, rows, f, wd_a.data(), wup.data(), want.data());
    n.swiglu_backward(2, rows, f, d_a.data(), up.data(), got.data());
    same(rows * 2 * f, "swiglu_backward");
    v.gelu_tanh_forward(2, rows * 2 * f, wup.data(), want.data());
    n.gelu_tanh_forward(2, rows * 2 * f, up.data(), got.data());
    same(rows * 2 * f, "gelu_tanh_forward");
    v.gelu_tanh_backward(2, rows * 2 * f, wd_a.data(), wup.data(), want.data());
    n.gelu_tanh_backward(2, rows * 2 * f, d_a.data(), up.data(), got.data());
    same(rows * 2 * f, "gelu_tanh_backward");
  }
}

TEST_P(Narrow, ColumnsAndEmbedding) {
  const std::int64_t batch = 7, sequence = 19, d = 53, vocabulary = 31, rows = batch * sequence;
  const Halves d_x = random(rows * d, 15);
  const Floats wide = widened(d_x);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < rows; ++i) ids.push_back(static_cast<std::int32_t>(i * i % vocabulary) - (i % 11 == 0));
  for (const bool accumulate : {false, true}) {
    Floats want = floats(d, 16), got = want;
    v.column_sums(2, rows, d, wide.data(), accumulate, want.data());
    n.column_sums(2, rows, d, d_x.data(), accumulate, got.data());
    EXPECT_EQ(got, want);
  }
  Floats table = floats(vocabulary * d, 13), positions = floats(sequence * d, 14), want_table = table,
         want_positions = positions;
  v.embedding_backward(2, rows, sequence, d, ids.data(), wide.data(), want_table.data(), want_positions.data());
  n.embedding_backward(2, rows, sequence, d, ids.data(), d_x.data(), table.data(), positions.data());
  EXPECT_EQ(table, want_table);
  EXPECT_EQ(positions, want_positions);
}

TEST_P(Narrow, CrossEntropy) {
  for (const std::int64_t vocabulary : {2, 61, 1031, 32003})
    for (const int threads : {1, 2, 5}) {
      const std::int64_t rows = 6;
      const Halves logits = random(rows * vocabulary, 17, 5.0);
      const std::vector<std::int32_t> labels{
          1, 0, -1, static_cast<std::int32_t>(vocabulary - 1), static_cast<std::int32_t>(vocabulary / 2), -1};
      Floats want = widened(logits), want_losses(rows), losses(rows, -1.0f), only(rows, -1.0f),
             space(static_cast<std::size_t>(threads * vocabulary));
      v.cross_entropy(threads, rows, vocabulary, labels.data(), true, 0.125, want.data(), want_losses.data());
      Halves got = logits, untouched = logits;
      n.cross_entropy(threads, rows, vocabulary, labels.data(), true, 0.125, got.data(), losses.data(), space.data());
      n.cross_entropy(threads, rows, vocabulary, labels.data(), false, 0.125, untouched.data(), only.data(),
                      space.data());
      EXPECT_EQ(got, rounded(want)) << vocabulary;
      EXPECT_EQ(losses, want_losses);
      EXPECT_EQ(only, want_losses);
      EXPECT_EQ(untouched, logits);
    }
}

}  // namespace
}  // namespace molen::math
