// The reference of attention between some queries and some keys; math/context_attention.h explains its letters and
// which keys a query sees. math/reference.h has the reference for whole sequences.
#pragma once

#include <span>

#include "base/position_run.h"
#include "math/reference.h"

namespace molen::math::reference {

struct ContextSizes {
  std::int64_t batch, heads, kv_heads, head_dim;
  std::span<const PositionRun> queries, keys;
  const std::int32_t* starts;  // [B, R] or null
};

template <class T>
struct ContextRows {  // row strides of q, and of k and v; T may be const
  T* q;
  std::int64_t q_stride;
  T *k, *v;
  std::int64_t kv_stride;
};

namespace detail {

// Calls f(row, position) for the rows of a sequence.
template <class F>
void for_each_position(std::span<const PositionRun> runs, const F& f) {
  std::int64_t row = 0;
  for (const PositionRun& run : runs)
    for (std::int64_t p = run.first; p < run.last; ++p) f(row++, p);
}

// One query head of one sequence against its keys.
template <class T>
struct ContextHead {
  const ContextSizes& s;
  const T *q, *k, *v;
  std::int64_t q_stride, kv_stride, head_dim;
  const std::int32_t* starts;
  double scale, slope;

  // Calls f(key row, position) for the keys that the query sees.
  template <class F>
  void for_each_key(std::int64_t row, std::int64_t position, const F& f) const {
    const std::int64_t start = starts ? starts[row] : 0;
    for_each_position(s.keys, [&](std::int64_t key, std::int64_t p) {
      if (p >= start && p <= position) f(key, p);
    });
  }
  Accum<T> score(std::int64_t row, std::int64_t position, std::int64_t key, std::int64_t key_position) const {
    return dot(head_dim, q + row * q_stride, k + key * kv_stride) * scale +
           slope * static_cast<double>(key_position - position);
  }
};
template <class T>
ContextHead<T> context_head(const ContextSizes& s, const double* slopes, const ContextRows<const T>& x, std::int64_t b,
                            std::int64_t h) {
  const std::int64_t rows = count_positions(s.queries), keys = count_positions(s.keys), D = s.head_dim,
                     kv = h / (s.heads / s.kv_heads);
  return {s,
          x.q + b * rows * x.q_stride + h * D,
          x.k + b * keys * x.kv_stride + kv * D,
          x.v + b * keys * x.kv_stride + kv * D,
          x.q_stride,
          x.kv_stride,
          D,
          s.starts ? s.starts + b * rows : nullptr,
          1.0 / std::sqrt(static_cast<double>(D)),
          slopes ? slopes[h] : 0.0};
}
}  // namespace detail

// With `first`, overwrites o [B*R, h*D] and lse [B, h, R], with 0 and -infinity when a query sees no key. Otherwise
// continues from their values. Takes threads * (C + D) accumulators of scratch.
template <class T>
void context_forward(int threads, const ContextSizes& s, const double* slopes, const ContextRows<const T>& x,
                     bool first, T* o, T* lse, Scratch& scratch) {
  const std::int64_t rows = count_positions(s.queries), keys = count_positions(s.keys), D = s.head_dim;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  auto* work = scratch.take<Accum<T>>(threads * (keys + D));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t bh = 0; bh < s.batch * s.heads; ++bh) {
    const std::int64_t b = bh / s.heads, h = bh % s.heads;
    const auto head = detail::context_head<T>(s, slopes, x, b, h);
    Accum<T>*p = work + thread_index() * (keys + D), *out = p + keys;
    detail::for_each_position(s.queries, [&](std::int64_t row, std::int64_t position) {
      T *to = o + ((b * rows + row) * s.heads + h) * D, &l = lse[bh * rows + row];
      if (first) {
        l = T(kNone);
        for (std::int64_t c = 0; c < D; ++c) to[c] = T(0);
      }
      const bool before = real_of(l) != kNone;
      double most = real_of(l);
      bool sees = false;
      head.for_each_key(row, position, [&](std::int64_t key, std::int64_t at) {
        sees = true;
        p[key] = head.score(row, position, key, at);
        most = real_of(p[key]) > most ? real_of(p[key]) : most;
      });
      if (!sees) return;
      // Earlier keys count as one key whose value is the output so far.
      Accum<T> sum = before ? std::exp(Accum<T>(l) - most) : Accum<T>(0);
      for (std::int64_t c = 0; c < D; ++c) out[c] = before ? sum * Accum<T>(to[c]) : Accum<T>(0);
      head.for_each_key(row, position, [&](std::int64_t key, std::int64_t) {
        const Accum<T> e = std::exp(p[key] - most);
        sum += e;
        for (std::int64_t c = 0; c < D; ++c) out[c] += e * Accum<T>(head.v[key * head.kv_stride + c]);
      });
      l = T(std::log(sum) + most);
      for (std::int64_t c = 0; c < D; ++c) to[c] = T(out[c] / sum);
    });
  }
}

// Computes the formulas of `attention_backward` over the given keys; o and lse are the results over all keys. With
// add_q or add_kv, adds to those gradients; otherwise overwrites them. Takes threads * 2 D accumulators of scratch.
template <class T>
void context_backward(int threads, const ContextSizes& s, const double* slopes, const T* d_o,
                      const ContextRows<const T>& x, const T* o, const T* lse, bool add_q, bool add_kv,
                      const ContextRows<T>& d, Scratch& scratch) {
  const std::int64_t rows = count_positions(s.queries), keys = count_positions(s.keys), D = s.head_dim,
                     group = s.heads / s.kv_heads;
  auto* work = scratch.take<Accum<T>>(threads * 2 * D);
  const auto out_row = [&](std::int64_t b, std::int64_t row, std::int64_t h) {
    return ((b * rows + row) * s.heads + h) * D;
  };
  const auto p_and_ds = [&](const detail::ContextHead<T>& head, std::int64_t b, std::int64_t h, std::int64_t row,
                            std::int64_t position, std::int64_t key, std::int64_t at, Accum<T>& ds) {
    const T* g = d_o + out_row(b, row, h);
    const Accum<T> p = std::exp(head.score(row, position, key, at) - Accum<T>(lse[(b * s.heads + h) * rows + row]));
    ds =
        p * (detail::dot(D, g, head.v + key * head.kv_stride) - detail::dot(D, g, o + out_row(b, row, h))) * head.scale;
    return p;
  };
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t bh = 0; bh < s.batch * s.heads; ++bh) {
    const std::int64_t b = bh / s.heads, h = bh % s.heads;
    const auto head = detail::context_head<T>(s, slopes, x, b, h);
    Accum<T>* d_q = work + thread_index() * 2 * D;
    detail::for_each_position(s.queries, [&](std::int64_t row, std::int64_t position) {
      T* to = d.q + (b * rows + row) * d.q_stride + h * D;
      for (std::int64_t c = 0; c < D; ++c) d_q[c] = add_q ? Accum<T>(to[c]) : Accum<T>(0);
      head.for_each_key(row, position, [&](std::int64_t key, std::int64_t at) {
        Accum<T> ds;
        p_and_ds(head, b, h, row, position, key, at, ds);
        for (std::int64_t c = 0; c < D; ++c) d_q[c] += ds * Accum<T>(head.k[key * head.kv_stride + c]);
      });
      for (std::int64_t c = 0; c < D; ++c) to[c] = T(d_q[c]);
    });
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t bk = 0; bk < s.batch * s.kv_heads; ++bk) {
    const std::int64_t b = bk / s.kv_heads, kv = bk % s.kv_heads;
    Accum<T>*d_k = work + thread_index() * 2 * D, *d_v = d_k + D;
    detail::for_each_position(s.keys, [&](std::int64_t key, std::int64_t at) {
      const std::int64_t to = (b * keys + key) * d.kv_stride + kv * D;
      for (std::int64_t c = 0; c < D; ++c) {
        d_k[c] = add_kv ? Accum<T>(d.k[to + c]) : Accum<T>(0);
        d_v[c] = add_kv ? Accum<T>(d.v[to + c]) : Accum<T>(0);
      }
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const auto head = detail::context_head<T>(s, slopes, x, b, h);
        detail::for_each_position(s.queries, [&](std::int64_t row, std::int64_t position) {
          if (at > position || (head.starts && at < head.starts[row])) return;
          Accum<T> ds;
          const Accum<T> p = p_and_ds(head, b, h, row, position, key, at, ds);
          for (std::int64_t c = 0; c < D; ++c) {
            d_k[c] += ds * Accum<T>(head.q[row * head.q_stride + c]);
            d_v[c] += p * Accum<T>(d_o[out_row(b, row, h) + c]);
          }
        });
      }
      for (std::int64_t c = 0; c < D; ++c) {
        d.k[to + c] = T(d_k[c]);
        d.v[to + c] = T(d_v[c]);
      }
    });
  }
}

}  // namespace molen::math::reference
