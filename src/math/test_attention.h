// For the tests of the attention kernels: inputs of attention, and its results in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "math/attention.h"

namespace molen::math::testing {

using i64 = std::int64_t;
using Floats = std::vector<float>;
using Doubles = std::vector<double>;
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Inputs {
  AttentionShape shape;
  Floats qkv, d_o, slopes;
  i64 row() const { return (shape.h + 2 * shape.k) * shape.D; }
};

inline Inputs make_inputs(i64 B, i64 S, i64 h, i64 k, i64 D, bool alibi = false, unsigned seed = 1) {
  Inputs in;
  in.shape = {B, S, h, k, D};
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  in.qkv.resize(static_cast<std::size_t>(B * S * in.row()));
  in.d_o.resize(static_cast<std::size_t>(B * S * h * D));
  for (float& x : in.qkv) x = normal(engine);
  for (float& x : in.d_o) x = normal(engine);
  for (i64 j = 0; alibi && j < h; ++j)
    in.slopes.push_back(std::exp2(-8.0f * static_cast<float>(j + 1) / static_cast<float>(h)));
  return in;
}

// Values, each with the sum of the absolute values of its terms. Rounding errors are relative to that sum.
struct Sums {
  Doubles value, magnitude;
  explicit Sums(std::size_t n) : value(n), magnitude(n) {}
  void add(i64 at, double term, double size) {
    value[static_cast<std::size_t>(at)] += term, magnitude[static_cast<std::size_t>(at)] += size;
  }
};

struct Truth {
  Sums o, lse, d_qkv;
  double largest_score = 0;  // largest sum of |terms| of a score
};

inline Truth truth(const Inputs& in) {
  const auto [B, S, h, k, D, threads, alibi, isa] = in.shape;
  const i64 ld = in.row();
  Truth t{Sums(in.d_o.size()), Sums(static_cast<std::size_t>(B * h * S)), Sums(in.qkv.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  Doubles p(static_cast<std::size_t>(S)), dp(p), dp_size(p);
  for (i64 b = 0; b < B; ++b)
    for (i64 head = 0; head < h; ++head)
      for (i64 i = 0; i < S; ++i) {
        const i64 q = (b * S + i) * ld + head * D, o = ((b * S + i) * h + head) * D;
        const auto key = [&](i64 j) { return (b * S + j) * ld + (h + head / (h / k)) * D; };
        double most = -INFINITY, total = 0;
        for (i64 j = 0; j <= i; ++j) {
          double s = 0, size = 0;
          for (i64 d = 0; d < D; ++d)
            s += scale * in.qkv[q + d] * in.qkv[key(j) + d],
                size += scale * std::abs(in.qkv[q + d] * in.qkv[key(j) + d]);
          if (!in.slopes.empty())
            s += in.slopes[head] * static_cast<double>(j - i), size += in.slopes[head] * static_cast<double>(i - j);
          p[j] = s, most = std::max(most, s), t.largest_score = std::max(t.largest_score, size);
        }
        for (i64 j = 0; j <= i; ++j) total += std::exp(p[j] - most);
        const double lse = most + std::log(total);
        t.lse.add((b * h + head) * S + i, lse, 1 + std::abs(lse));
        double delta = 0, delta_size = 0;
        for (i64 j = 0; j <= i; ++j) {
          p[j] = std::exp(p[j] - lse), dp[j] = dp_size[j] = 0;
          const i64 v = key(j) + k * D;
          for (i64 d = 0; d < D; ++d) {
            const double x = in.qkv[v + d], g = in.d_o[o + d];
            t.o.add(o + d, p[j] * x, p[j] * std::abs(x));
            dp[j] += x * g, dp_size[j] += std::abs(x * g);
            t.d_qkv.add(v + d, p[j] * g, p[j] * std::abs(g));
          }
          delta += p[j] * dp[j], delta_size += p[j] * dp_size[j];
        }
        for (i64 j = 0; j <= i; ++j) {
          const double ds = scale * p[j] * (dp[j] - delta), size = scale * p[j] * (dp_size[j] + delta_size);
          for (i64 d = 0; d < D; ++d) {
            t.d_qkv.add(q + d, ds * in.qkv[key(j) + d], size * std::abs(in.qkv[key(j) + d]));
            t.d_qkv.add(key(j) + d, ds * in.qkv[q + d], size * std::abs(in.qkv[q + d]));
          }
        }
      }
  return t;
}

}  // namespace molen::math::testing
