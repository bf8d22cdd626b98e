// The reference of every layer part: plain loops over the element type, no ATen, nothing fused. T is double (the proof
// runs), float (sums kept in double) or std::complex<double> (forward only: the complex step proves the backward of the
// others). Maxima and comparisons use real parts, so each forward stays analytic in its inputs.
//
// Letters as in arch/parts.h; matrices are row-major and contiguous. "accumulate" adds to the result; otherwise the
// result is overwritten. `threads` splits independent rows only, so results do not depend on it.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>

#include "math/qk_norm.h"
#include "math/scratch.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace molen::math::reference {

template <class T>
struct AccumOf {
  using type = T;
};
template <>
struct AccumOf<float> {
  using type = double;
};
template <class T>
using Accum = typename AccumOf<T>::type;

inline double real_of(double x) {
  return x;
}
inline double real_of(const std::complex<double>& x) {
  return x.real();
}

inline int thread_index() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// --- products: the three that a linear layer y = x W^T needs, W [out, in]

namespace detail {
// C_1n (+)= A_1k B_nk^T: n independent sums, each in the order of its terms.
template <std::int64_t n, class T>
void dot_rows(std::int64_t k, const T* a, const T* b, bool accumulate, T* c) {
  Accum<T> sum[n];
  for (std::int64_t j = 0; j < n; ++j) sum[j] = accumulate ? Accum<T>(c[j]) : Accum<T>(0);
  for (std::int64_t l = 0; l < k; ++l)
    for (std::int64_t j = 0; j < n; ++j) sum[j] += Accum<T>(a[l]) * Accum<T>(b[j * k + l]);
  for (std::int64_t j = 0; j < n; ++j) c[j] = T(sum[j]);
}
}  // namespace detail

// C_mn (+)= A_mk B_nk^T
template <class T>
void matmul_nt(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, bool accumulate,
               T* c) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < m; ++i) {
    std::int64_t j = 0;
    for (; j + 4 <= n; j += 4) detail::dot_rows<4>(k, a + i * k, b + j * k, accumulate, c + i * n + j);
    for (; j < n; ++j) detail::dot_rows<1>(k, a + i * k, b + j * k, accumulate, c + i * n + j);
  }
}

namespace detail {
// Computes one row of C_mn (+)= sum_l a(l) B_kn, in blocks of columns whose sums stay in registers or L1.
template <class T, class Row>
void combine_rows(std::int64_t n, std::int64_t k, const Row& a, const T* b, bool accumulate, T* c) {
  constexpr std::int64_t kBlock = 32;
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t count = n - first < kBlock ? n - first : kBlock;
    Accum<T> sum[kBlock];
    for (std::int64_t j = 0; j < count; ++j) sum[j] = accumulate ? Accum<T>(c[first + j]) : Accum<T>(0);
    for (std::int64_t l = 0; l < k; ++l) {
      const Accum<T> factor(a(l));
      for (std::int64_t j = 0; j < count; ++j) sum[j] += factor * Accum<T>(b[l * n + first + j]);
    }
    for (std::int64_t j = 0; j < count; ++j) c[first + j] = T(sum[j]);
  }
}
}  // namespace detail

// C_mn (+)= A_mk B_kn
template <class T>
void matmul_nn(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, bool accumulate,
               T* c) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < m; ++i)
    detail::combine_rows(
        n, k, [&](std::int64_t l) { return a[i * k + l]; }, b, accumulate, c + i * n);
}

// C_mn (+)= A_km^T B_kn
template <class T>
void matmul_tn(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, bool accumulate,
               T* c) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < m; ++i)
    detail::combine_rows(
        n, k, [&](std::int64_t l) { return a[l * m + i]; }, b, accumulate, c + i * n);
}

// out_rc = rows_rc + bias_c, to which a product is then added; rows and bias may each be null.
template <class T>
void fill_rows(int threads, std::int64_t rows, std::int64_t columns, const T* source, const T* bias, T* out) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      out[r * columns + c] = (source ? source[r * columns + c] : T(0)) + (bias ? bias[c] : T(0));
}

// d_bias_c (+)= sum_r d_y_rc
template <class T>
void column_sums(int threads, std::int64_t rows, std::int64_t columns, const T* d_y, bool accumulate, T* d_bias) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t c = 0; c < columns; ++c) {
    Accum<T> sum = accumulate ? Accum<T>(d_bias[c]) : Accum<T>(0);
    for (std::int64_t r = 0; r < rows; ++r) sum += Accum<T>(d_y[r * columns + c]);
    d_bias[c] = T(sum);
  }
}

// --- norms

// RMSNorm (arXiv 1910.07467): rstd = 1/sqrt(mean(x^2) + eps), y = x rstd w.
template <class T>
void rms_norm_forward(int threads, std::int64_t rows, std::int64_t d, double eps, const T* x, const T* w, T* rstd,
                      T* y) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    Accum<T> sum(0);
    for (std::int64_t c = 0; c < d; ++c) sum += Accum<T>(x[r * d + c]) * Accum<T>(x[r * d + c]);
    const Accum<T> s = Accum<T>(1) / std::sqrt(sum / static_cast<double>(d) + eps);
    rstd[r] = T(s);
    for (std::int64_t c = 0; c < d; ++c)
      y[r * d + c] = T(Accum<T>(x[r * d + c]) * s * (w ? Accum<T>(w[c]) : Accum<T>(1)));
  }
}

// LayerNorm (arXiv 1607.06450): rstd = 1/sqrt(var(x) + eps), y = (x - mean) rstd w + b; w and b may be null.
template <class T>
void layer_norm_forward(int threads, std::int64_t rows, std::int64_t d, double eps, const T* x, const T* w, const T* b,
                        T* rstd, T* mean, T* y) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    Accum<T> sum(0), square(0);
    for (std::int64_t c = 0; c < d; ++c) sum += Accum<T>(x[r * d + c]);
    const Accum<T> m = sum / static_cast<double>(d);
    for (std::int64_t c = 0; c < d; ++c) square += (Accum<T>(x[r * d + c]) - m) * (Accum<T>(x[r * d + c]) - m);
    const Accum<T> s = Accum<T>(1) / std::sqrt(square / static_cast<double>(d) + eps);
    mean[r] = T(m);
    rstd[r] = T(s);
    for (std::int64_t c = 0; c < d; ++c)
      y[r * d + c] =
          T((Accum<T>(x[r * d + c]) - m) * s * (w ? Accum<T>(w[c]) : Accum<T>(1)) + (b ? Accum<T>(b[c]) : Accum<T>(0)));
  }
}

// Computes the norm's output again from its saved statistics. mean null: RMSNorm.
template <class T>
void norm_apply(int threads, std::int64_t rows, std::int64_t d, const T* x, const T* rstd, const T* mean, const T* w,
                const T* b, T* y) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    const Accum<T> m = mean ? Accum<T>(mean[r]) : Accum<T>(0), s(rstd[r]);
    for (std::int64_t c = 0; c < d; ++c)
      y[r * d + c] =
          T((Accum<T>(x[r * d + c]) - m) * s * (w ? Accum<T>(w[c]) : Accum<T>(1)) + (b ? Accum<T>(b[c]) : Accum<T>(0)));
  }
}

// With u = (x - mean) rstd and g = d_y w:  d_x (+)= rstd (g - [mean(g)] - u mean(g u)),  d_w (+)= sum_r d_y u,  d_b
// (+)= sum_r d_y. Only LayerNorm has the term in brackets (mean null: RMSNorm). d_w and d_b may be null.
template <class T>
void norm_backward(int threads, std::int64_t rows, std::int64_t d, const T* d_y, const T* x, const T* rstd,
                   const T* mean, const T* w, bool add_to_d_x, T* d_x, bool accumulate, T* d_w, T* d_b) {
  const auto unit = [&](std::int64_t r, std::int64_t c) {
    return (Accum<T>(x[r * d + c]) - (mean ? Accum<T>(mean[r]) : Accum<T>(0))) * Accum<T>(rstd[r]);
  };
  if (d_w) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t c = 0; c < d; ++c) {
      Accum<T> sum = accumulate ? Accum<T>(d_w[c]) : Accum<T>(0);
      for (std::int64_t r = 0; r < rows; ++r) sum += Accum<T>(d_y[r * d + c]) * unit(r, c);
      d_w[c] = T(sum);
    }
  }
  if (d_b) column_sums(threads, rows, d, d_y, accumulate, d_b);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    Accum<T> sum_g(0), sum_gu(0);
    for (std::int64_t c = 0; c < d; ++c) {
      const Accum<T> g = Accum<T>(d_y[r * d + c]) * (w ? Accum<T>(w[c]) : Accum<T>(1));
      sum_g += g;
      sum_gu += g * unit(r, c);
    }
    const Accum<T> mean_g = mean ? sum_g / static_cast<double>(d) : Accum<T>(0),
                   mean_gu = sum_gu / static_cast<double>(d);
    for (std::int64_t c = 0; c < d; ++c) {
      const Accum<T> g = Accum<T>(d_y[r * d + c]) * (w ? Accum<T>(w[c]) : Accum<T>(1));
      const Accum<T> value = Accum<T>(rstd[r]) * (g - mean_g - unit(r, c) * mean_gu);
      d_x[r * d + c] = T(add_to_d_x ? Accum<T>(d_x[r * d + c]) + value : value);
    }
  }
}

// --- norms of queries and keys

// RMSNorm of each group of q|k|v: y = x w rstd, rstd = 1/sqrt(mean(x^2) + eps).
template <class T>
Accum<T> rms_rstd(std::int64_t length, double eps, const T* x) {
  Accum<T> sum(0);
  for (std::int64_t c = 0; c < length; ++c) sum += Accum<T>(x[c]) * Accum<T>(x[c]);
  return Accum<T>(1) / std::sqrt(sum / static_cast<double>(length) + eps);
}

template <class T>
void qk_norm_forward(int threads, std::int64_t rows, const QkNormSizes& sizes, double eps, const T* x, const T* w_query,
                     const T* w_key, T* y) {
  const std::int64_t key = sizes.query.groups * sizes.query.length, value = key + sizes.key.groups * sizes.key.length;
  const auto groups = [eps](const NormGroups& n, const T* from, const T* w, T* to) {
    for (std::int64_t g = 0; g < n.groups; ++g, from += n.length, to += n.length) {
      const Accum<T> s = rms_rstd(n.length, eps, from);
      for (std::int64_t c = 0; c < n.length; ++c) to[c] = T(Accum<T>(from[c]) * s * Accum<T>(w[c]));
    }
  };
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* from = x + r * sizes.width;
    T* to = y + r * sizes.width;
    groups(sizes.query, from, w_query, to);
    groups(sizes.key, from + key, w_key, to + key);
    std::copy(from + value, from + sizes.width, to + value);
  }
}

// The backward of one kind of groups. With u = x rstd and g = d w: d becomes rstd (g - u mean(g u)), and d_w (+)= the
// sum of d u over rows and groups. rstd has rows * groups values.
template <class T>
void norm_groups_backward(int threads, std::int64_t rows, std::int64_t width, const NormGroups& n, double eps,
                          const T* x, const T* w, T* d, bool accumulate, T* d_w, Accum<T>* rstd) {
  const auto at = [&](std::int64_t i) { return i / n.groups * width + i % n.groups * n.length; };
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < rows * n.groups; ++i) rstd[i] = rms_rstd(n.length, eps, x + at(i));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t c = 0; c < n.length; ++c) {
    Accum<T> sum = accumulate ? Accum<T>(d_w[c]) : Accum<T>(0);
    for (std::int64_t i = 0; i < rows * n.groups; ++i) sum += Accum<T>(d[at(i) + c]) * Accum<T>(x[at(i) + c]) * rstd[i];
    d_w[c] = T(sum);
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < rows * n.groups; ++i) {
    const T* u = x + at(i);
    T* row = d + at(i);
    Accum<T> sum(0);
    for (std::int64_t c = 0; c < n.length; ++c) sum += Accum<T>(row[c]) * Accum<T>(w[c]) * Accum<T>(u[c]) * rstd[i];
    const Accum<T> mean = sum / static_cast<double>(n.length);
    for (std::int64_t c = 0; c < n.length; ++c)
      row[c] = T(rstd[i] * (Accum<T>(row[c]) * Accum<T>(w[c]) - Accum<T>(u[c]) * rstd[i] * mean));
  }
}

// Replaces the gradient `d` of the forward's output by the gradient of its input. Takes scratch for rows times the
// larger number of groups, in the type of sums.
template <class T>
void qk_norm_backward(int threads, std::int64_t rows, const QkNormSizes& sizes, double eps, const T* x,
                      const T* w_query, const T* w_key, T* d, bool accumulate, T* d_w_query, T* d_w_key,
                      Scratch& scratch) {
  const std::int64_t key = sizes.query.groups * sizes.query.length;
  auto* rstd = scratch.take<Accum<T>>(rows * std::max(sizes.query.groups, sizes.key.groups));
  norm_groups_backward(threads, rows, sizes.width, sizes.query, eps, x, w_query, d, accumulate, d_w_query, rstd);
  norm_groups_backward(threads, rows, sizes.width, sizes.key, eps, x + key, w_key, d + key, accumulate, d_w_key, rstd);
}

// --- RoPE

// RoFormer's rotation (arXiv 2104.09864) in Hugging Face's rotate-half pairing (i, i + D/2), in place on the first
// `heads` heads (queries, then keys) of each row of `width` elements. Row n uses position n % sequence of the tables
// [S, D/2]. `inverse` rotates back, which is the backward.
template <class T, class Table>
void rope(int threads, std::int64_t rows, std::int64_t sequence, std::int64_t heads, std::int64_t head_dim,
          std::int64_t width, const Table* cos_SD2, const Table* sin_SD2, bool inverse, T* qkv) {
  const std::int64_t half = head_dim / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t i = 0; i < half; ++i) {
        T* p = qkv + n * width + head * head_dim + i;
        const Accum<T> c(cos_SD2[(n % sequence) * half + i]),
            s(inverse ? -sin_SD2[(n % sequence) * half + i] : sin_SD2[(n % sequence) * half + i]);
        const Accum<T> a(p[0]), b(p[half]);
        p[0] = T(a * c - b * s);
        p[half] = T(b * c + a * s);
      }
}

// --- attention

struct AttentionSizes {
  std::int64_t batch, sequence, heads, kv_heads, head_dim;
  std::int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
};

namespace detail {
// One query head against its keys. Row i of q, k, v is `step` elements apart.
template <class T>
struct Head {
  const T *q, *k, *v;
  std::int64_t step, head_dim;
  double scale, slope;
  Accum<T> score(std::int64_t i, std::int64_t j) const {
    Accum<T> sum(0);
    for (std::int64_t c = 0; c < head_dim; ++c) sum += Accum<T>(q[i * step + c]) * Accum<T>(k[j * step + c]);
    return sum * scale + slope * static_cast<double>(j - i);
  }
};
template <class T>
Head<T> head_of(const AttentionSizes& a, const double* slopes, const T* qkv, std::int64_t b, std::int64_t h) {
  const std::int64_t group = a.heads / a.kv_heads, kv = h / group;
  const T* row = qkv + b * a.sequence * a.width();
  return {row + h * a.head_dim,
          row + (a.heads + kv) * a.head_dim,
          row + (a.heads + a.kv_heads + kv) * a.head_dim,
          a.width(),
          a.head_dim,
          1.0 / std::sqrt(static_cast<double>(a.head_dim)),
          slopes ? slopes[h] : 0.0};
}
// sum_c a_c b_c
template <class T>
Accum<T> dot(std::int64_t n, const T* a, const T* b) {
  Accum<T> sum(0);
  for (std::int64_t c = 0; c < n; ++c) sum += Accum<T>(a[c]) * Accum<T>(b[c]);
  return sum;
}
}  // namespace detail

// Causal attention over rows q|k|v of the packed matrix: o_i = sum_{j<=i} softmax_j(q_i k_j / sqrt(D) + slope_h (j -
// i)) v_j, lse_i = log sum exp of the scores. slopes_h null: no ALiBi. Takes threads * (S + D) accumulators of scratch.
template <class T>
void attention_forward(int threads, const AttentionSizes& a, const double* slopes, const T* qkv, T* o_NhD, T* lse_BhS,
                       Scratch& scratch) {
  auto* work = scratch.take<Accum<T>>(threads * (a.sequence + a.head_dim));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t bh = 0; bh < a.batch * a.heads; ++bh) {
    const std::int64_t b = bh / a.heads, h = bh % a.heads;
    const auto head = detail::head_of(a, slopes, qkv, b, h);
    Accum<T>* p = work + thread_index() * (a.sequence + a.head_dim);
    Accum<T>* out = p + a.sequence;
    for (std::int64_t i = 0; i < a.sequence; ++i) {
      double most = -std::numeric_limits<double>::infinity();
      for (std::int64_t j = 0; j <= i; ++j) {
        p[j] = head.score(i, j);
        most = real_of(p[j]) > most ? real_of(p[j]) : most;
      }
      Accum<T> sum(0);
      for (std::int64_t c = 0; c < a.head_dim; ++c) out[c] = Accum<T>(0);
      for (std::int64_t j = 0; j <= i; ++j) {
        const Accum<T> e = std::exp(p[j] - most);
        sum += e;
        for (std::int64_t c = 0; c < a.head_dim; ++c) out[c] += e * Accum<T>(head.v[j * head.step + c]);
      }
      lse_BhS[bh * a.sequence + i] = T(std::log(sum) + most);
      T* o = o_NhD + ((b * a.sequence + i) * a.heads + h) * a.head_dim;
      for (std::int64_t c = 0; c < a.head_dim; ++c) o[c] = T(out[c] / sum);
    }
  }
}

// With p_ij = exp(s_ij - lse_i), D_i = d_o_i o_i and ds_ij = p_ij (d_o_i v_j - D_i) / sqrt(D):
// d_q_i = sum_j ds_ij k_j, d_k_j = sum_i ds_ij q_i, d_v_j = sum_i p_ij d_o_i (sums over the query heads of a KV head).
// Overwrites all of d_qkv. Takes threads * 2 D accumulators of scratch.
template <class T>
void attention_backward(int threads, const AttentionSizes& a, const double* slopes, const T* d_o, const T* qkv,
                        const T* o, const T* lse, T* d_qkv, Scratch& scratch) {
  const std::int64_t S = a.sequence, D = a.head_dim, group = a.heads / a.kv_heads;
  auto* work = scratch.take<Accum<T>>(threads * 2 * D);
  const auto row_of = [&](std::int64_t b, std::int64_t i, std::int64_t h) { return ((b * S + i) * a.heads + h) * D; };
  const auto p_and_ds = [&](const detail::Head<T>& head, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j,
                            Accum<T>& ds) {
    const T* g = d_o + row_of(b, i, h);
    const Accum<T> p = std::exp(head.score(i, j) - Accum<T>(lse[(b * a.heads + h) * S + i]));
    ds = p * (detail::dot(D, g, head.v + j * head.step) - detail::dot(D, g, o + row_of(b, i, h))) * head.scale;
    return p;
  };
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t bh = 0; bh < a.batch * a.heads; ++bh) {
    const std::int64_t b = bh / a.heads, h = bh % a.heads;
    const auto head = detail::head_of(a, slopes, qkv, b, h);
    Accum<T>* d_q = work + thread_index() * 2 * D;
    for (std::int64_t i = 0; i < S; ++i) {
      for (std::int64_t c = 0; c < D; ++c) d_q[c] = Accum<T>(0);
      for (std::int64_t j = 0; j <= i; ++j) {
        Accum<T> ds;
        p_and_ds(head, b, h, i, j, ds);
        for (std::int64_t c = 0; c < D; ++c) d_q[c] += ds * Accum<T>(head.k[j * head.step + c]);
      }
      for (std::int64_t c = 0; c < D; ++c) d_qkv[(b * S + i) * a.width() + h * D + c] = T(d_q[c]);
    }
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t bk = 0; bk < a.batch * a.kv_heads; ++bk) {
    const std::int64_t b = bk / a.kv_heads, kv = bk % a.kv_heads;
    Accum<T>*d_k = work + thread_index() * 2 * D, *d_v = d_k + D;
    for (std::int64_t j = 0; j < S; ++j) {
      for (std::int64_t c = 0; c < D; ++c) d_k[c] = d_v[c] = Accum<T>(0);
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const auto head = detail::head_of(a, slopes, qkv, b, h);
        for (std::int64_t i = j; i < S; ++i) {
          Accum<T> ds;
          const Accum<T> p = p_and_ds(head, b, h, i, j, ds);
          for (std::int64_t c = 0; c < D; ++c) {
            d_k[c] += ds * Accum<T>(head.q[i * head.step + c]);
            d_v[c] += p * Accum<T>(d_o[row_of(b, i, h) + c]);
          }
        }
      }
      T* row = d_qkv + (b * S + j) * a.width() + (a.heads + kv) * D;
      for (std::int64_t c = 0; c < D; ++c) {
        row[c] = T(d_k[c]);
        row[a.kv_heads * D + c] = T(d_v[c]);
      }
    }
  }
}

// --- activations

// SwiGLU (arXiv 2002.05202): a = g sigmoid(g) u for rows gate|up of 2f elements.
template <class T>
void swiglu_forward(int threads, std::int64_t rows, std::int64_t f, const T* up, T* a) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < f; ++c) {
      const Accum<T> g(up[r * 2 * f + c]), u(up[r * 2 * f + f + c]);
      a[r * f + c] = T(g / (Accum<T>(1) + std::exp(-g)) * u);
    }
}
template <class T>
void swiglu_backward(int threads, std::int64_t rows, std::int64_t f, const T* d_a, const T* up, T* d_up) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < f; ++c) {
      const Accum<T> g(up[r * 2 * f + c]), u(up[r * 2 * f + f + c]), d(d_a[r * f + c]);
      const Accum<T> s = Accum<T>(1) / (Accum<T>(1) + std::exp(-g));
      d_up[r * 2 * f + c] = T(d * u * s * (Accum<T>(1) + g * (Accum<T>(1) - s)));
      d_up[r * 2 * f + f + c] = T(d * g * s);
    }
}

inline constexpr double kGeluScale = 0.79788456080286535588;  // sqrt(2/pi)
inline constexpr double kGeluCubic = 0.044715;

// GELU's tanh form (arXiv 1606.08415), "gelu_new": x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class T>
void gelu_tanh_forward(int threads, std::int64_t count, const T* x, T* y) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const Accum<T> v(x[i]);
    y[i] = T(0.5 * v * (Accum<T>(1) + std::tanh(kGeluScale * (v + kGeluCubic * v * v * v))));
  }
}
template <class T>
void gelu_tanh_backward(int threads, std::int64_t count, const T* d_y, const T* x, T* d_x) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) {
    const Accum<T> v(x[i]), t = std::tanh(kGeluScale * (v + kGeluCubic * v * v * v));
    const Accum<T> inner = kGeluScale * (Accum<T>(1) + 3.0 * kGeluCubic * v * v);
    d_x[i] = T(Accum<T>(d_y[i]) * 0.5 * (Accum<T>(1) + t + v * (Accum<T>(1) - t * t) * inner));
  }
}

// --- embedding

// x_n = table[ids_n] (+ positions[n % S]); an id below 0 belongs to another rank's table and adds nothing.
template <class T>
void embedding_forward(int threads, std::int64_t rows, std::int64_t sequence, std::int64_t d, const std::int32_t* ids,
                       const T* table, const T* positions, T* x) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t c = 0; c < d; ++c)
      x[n * d + c] =
          (ids[n] >= 0 ? table[ids[n] * d + c] : T(0)) + (positions ? positions[(n % sequence) * d + c] : T(0));
}
// d_table[ids_n] += d_x_n and d_positions[n % S] += d_x_n, in token order. The caller zeroes them first, unless it
// wants to accumulate.
template <class T>
void embedding_backward(int threads, std::int64_t rows, std::int64_t sequence, std::int64_t d, const std::int32_t* ids,
                        const T* d_x, T* d_table, T* d_positions) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t c = 0; c < d; ++c)
    for (std::int64_t n = 0; n < rows; ++n) {
      if (ids[n] >= 0) d_table[ids[n] * d + c] += d_x[n * d + c];
      if (d_positions) d_positions[(n % sequence) * d + c] += d_x[n * d + c];
    }
}

// --- cross entropy

// losses_r = log sum exp(logits_r) - logits_r[label]; with `gradient`, logits become (softmax - onehot) * grad_scale in
// place. When label < 0, loss and gradient are zero.
template <class T>
void cross_entropy(int threads, std::int64_t rows, std::int64_t vocabulary, const std::int32_t* labels, bool gradient,
                   double grad_scale, T* logits, T* losses) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    T* row = logits + r * vocabulary;
    if (labels[r] < 0) {
      losses[r] = T(0);
      if (gradient)
        for (std::int64_t c = 0; c < vocabulary; ++c) row[c] = T(0);
      continue;
    }
    double most = -std::numeric_limits<double>::infinity();
    for (std::int64_t c = 0; c < vocabulary; ++c) most = real_of(row[c]) > most ? real_of(row[c]) : most;
    Accum<T> sum(0);
    for (std::int64_t c = 0; c < vocabulary; ++c) sum += std::exp(Accum<T>(row[c]) - most);
    losses[r] = T(std::log(sum) + most - Accum<T>(row[labels[r]]));
    if (!gradient) continue;
    for (std::int64_t c = 0; c < vocabulary; ++c)
      row[c] = T((std::exp(Accum<T>(row[c]) - most) / sum - (c == labels[r] ? Accum<T>(1) : Accum<T>(0))) * grad_scale);
  }
}

// For a vocabulary that tensor ranks share. For each row of the rank's logits, sums[2 r] = log sum exp, and sums[2 r +
// 1] = the logit of the label when the label is in [first, first + vocabulary), else 0.
template <class T>
void shared_sums(int threads, std::int64_t rows, std::int64_t vocabulary, std::int64_t first,
                 const std::int32_t* labels, const T* logits, T* sums) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = logits + r * vocabulary;
    double most = -std::numeric_limits<double>::infinity();
    for (std::int64_t c = 0; c < vocabulary; ++c) most = real_of(row[c]) > most ? real_of(row[c]) : most;
    Accum<T> sum(0);
    for (std::int64_t c = 0; c < vocabulary; ++c) sum += std::exp(Accum<T>(row[c]) - most);
    sums[2 * r] = T(std::log(sum) + most);
    const std::int64_t label = labels[r] - first;
    sums[2 * r + 1] = label >= 0 && label < vocabulary ? row[label] : T(0);
  }
}
// Logits become (exp(logit - lse_r) - onehot) * scale_r. Labels are columns of this rank, or -1 when another rank has
// the label.
template <class T>
void shared_gradient(int threads, std::int64_t rows, std::int64_t vocabulary, const std::int32_t* labels, const T* lse,
                     const T* scale, T* logits) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    T* row = logits + r * vocabulary;
    for (std::int64_t c = 0; c < vocabulary; ++c)
      row[c] = T((std::exp(Accum<T>(row[c]) - Accum<T>(lse[r])) - (c == labels[r] ? Accum<T>(1) : Accum<T>(0))) *
                 Accum<T>(scale[r]));
  }
}

}  // namespace molen::math::reference
