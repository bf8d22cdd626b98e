// The vector kernels, written once over `Simd` (lanes, F, I, fma) and over the type S that rows are stored in, and
// compiled by vector_<isa>.cpp. Everything is in an unnamed namespace, so that nothing here can be merged with another
// file's copy. Not a self-contained header: include it after `Simd`.
#include <math.h>
#include <omp.h>
#include <string.h>

#include "math/vector_kernels.h"

namespace {

using F = Simd::F;
using I = Simd::I;
using molen::math::NormGroups;
using molen::math::QkNormSizes;
constexpr int64_t kLanes = Simd::kLanes;

#define MOLEN_INLINE inline __attribute__((always_inline))

// A whole vector, or its first `count` lanes (loads set the other lanes to zero, stores leave the memory after them
// unchanged).
struct Whole {};
struct Part {
  int64_t count;
};
MOLEN_INLINE F load(const float* p, Whole) {
  F v;
  memcpy(&v, p, sizeof v);
  return v;
}
MOLEN_INLINE F load(const float* p, Part part) {
  F v = {};
  memcpy(&v, p, static_cast<size_t>(part.count) * sizeof(float));
  return v;
}
MOLEN_INLINE void store(float* p, F v, Whole) {
  memcpy(p, &v, sizeof v);
}
MOLEN_INLINE void store(float* p, F v, Part part) {
  memcpy(p, &v, static_cast<size_t>(part.count) * sizeof(float));
}

// bf16 is the upper half of a float. Widening is exact; narrowing rounds to the nearest, ties to even.
typedef uint16_t Halves __attribute__((vector_size(2 * Simd::kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * Simd::kLanes)));
MOLEN_INLINE F widen(Halves h) {
  const Words bits = __builtin_convertvector(h, Words) << 16;
  F v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
MOLEN_INLINE Halves narrow(F v) {
  Words bits;
  memcpy(&bits, &v, sizeof bits);
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const Words quiet = Words{} + 0x7fc00000u;
  return __builtin_convertvector((v == v ? rounded : quiet) >> 16, Halves);
}
MOLEN_INLINE F load(const uint16_t* p, Whole) {
  Halves h;
  memcpy(&h, p, sizeof h);
  return widen(h);
}
MOLEN_INLINE F load(const uint16_t* p, Part part) {
  Halves h = {};
  memcpy(&h, p, static_cast<size_t>(part.count) * sizeof(uint16_t));
  return widen(h);
}
MOLEN_INLINE void store(uint16_t* p, F v, Whole) {
  const Halves h = narrow(v);
  memcpy(p, &h, sizeof h);
}
MOLEN_INLINE void store(uint16_t* p, F v, Part part) {
  const Halves h = narrow(v);
  memcpy(p, &h, static_cast<size_t>(part.count) * sizeof(uint16_t));
}

// Sets the lanes beyond the part to zero, for sums.
MOLEN_INLINE F only(F v, Whole) {
  return v;
}
MOLEN_INLINE F only(F v, Part part) {
  for (int64_t i = part.count; i < kLanes; ++i) v[i] = 0.0f;
  return v;
}

// Calls body(column, Whole or Part) over `count` columns.
template <class Body>
MOLEN_INLINE void columns(int64_t count, const Body& body) {
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) body(c, Whole{});
  if (c < count) body(c, Part{count - c});
}

MOLEN_INLINE F splat(float x) {
  return F{} + x;
}

// Sums the lanes in double, so that a row is rounded once at its end.
MOLEN_INLINE double total(F v) {
  double sum = 0.0;
  for (int64_t i = 0; i < kLanes; ++i) sum += static_cast<double>(v[i]);
  return sum;
}

// Comparisons with NaN are false, so NaN stays NaN.
MOLEN_INLINE F clamp(F x, float low, float high) {
  x = x < splat(low) ? splat(low) : x;
  return x > splat(high) ? splat(high) : x;
}

// Returns exp(x) for x clamped to [-87, 88]: 2^n e^r with |r| <= ln(2)/2. The truncation error (|r|^7/7!) of the
// polynomial of degree 6 for e^r is below 2^-23.9 relative; the coefficients are those of a minimax fit as in Cephes'
// expf. The error is about 1.5 units in the last place with fused multiply-adds. NaN stays NaN.
MOLEN_INLINE F exponential(F x) {
  x = clamp(x, -87.0f, 88.0f);
  const F shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer, kept in the low bits
  const F shifted = Simd::fma(x, splat(1.44269504088896341f), shift);
  const F n = shifted - shift;
  F r = Simd::fma(n, splat(-0.693359375f), x);
  r = Simd::fma(n, splat(2.12194440e-4f), r);
  F p = splat(1.9875691500e-4f);
  p = Simd::fma(p, r, splat(1.3981999507e-3f));
  p = Simd::fma(p, r, splat(8.3334519073e-3f));
  p = Simd::fma(p, r, splat(4.1665795894e-2f));
  p = Simd::fma(p, r, splat(1.6666665459e-1f));
  p = Simd::fma(p, r, splat(5.0000001201e-1f));
  p = Simd::fma(p * r, r, r) + splat(1.0f);
  I bits, zero_bits;
  memcpy(&bits, &shifted, sizeof bits);
  memcpy(&zero_bits, &shift, sizeof zero_bits);
  bits = (bits - zero_bits + 127) << 23;
  F scale;
  memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

MOLEN_INLINE F sigmoid(F x) {
  return splat(1.0f) / (splat(1.0f) + exponential(-x));
}

// The calling thread's share [first, last) of `total`, cut at multiples of `grain`.
struct Range {
  int64_t first, last;
};
MOLEN_INLINE Range share(int64_t total, int64_t grain = 1) {
  const int64_t threads = omp_get_num_threads(), t = omp_get_thread_num();
  const int64_t blocks = (total + grain - 1) / grain, base = blocks / threads, more = blocks % threads;
  const int64_t first = (base * t + (t < more ? t : more)) * grain;
  const int64_t last = first + (base + (t < more ? 1 : 0)) * grain;
  return {first < total ? first : total, last < total ? last : total};
}
constexpr int64_t kLine = 16;  // floats of a cache line

// --- norms

template <class S>
MOLEN_INLINE void apply_row(int64_t d, const S* x, float rstd, float mean, const S* w, const S* b, S* y) {
  const F s = splat(rstd), m = splat(mean);
  columns(
      d, [&](int64_t c, auto k) __attribute__((always_inline)) {
        F u = (load(x + c, k) - m) * s;
        if (w) u = u * load(w + c, k);
        if (b) u = u + load(b + c, k);
        store(y + c, u, k);
      });
}

template <class S>
MOLEN_INLINE double sum_of_squares(int64_t d, const S* x, float mean) {
  F sum = {};
  const F m = splat(mean);
  columns(
      d, [&](int64_t c, auto k) __attribute__((always_inline)) {
        const F u = only(load(x + c, k) - m, k);
        sum = Simd::fma(u, u, sum);
      });
  return total(sum);
}

template <class S>
void norm_forward(int threads, int64_t rows, int64_t d, double eps, const S* x, const S* w, const S* b, float* rstd,
                  float* mean, S* y) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      const S* row = x + r * d;
      float m = 0.0f;
      if (mean) {
        F sum = {};
        columns(
            d, [&](int64_t c, auto k) __attribute__((always_inline)) { sum += load(row + c, k); });
        mean[r] = m = static_cast<float>(total(sum) / static_cast<double>(d));
      }
      rstd[r] = static_cast<float>(1.0 / sqrt(sum_of_squares(d, row, m) / static_cast<double>(d) + eps));
      apply_row(d, row, rstd[r], m, w, b, y + r * d);
    }
  }
}

template <class S>
void norm_apply(int threads, int64_t rows, int64_t d, const S* x, const float* rstd, const float* mean, const S* w,
                const S* b, S* y) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r)
      apply_row(d, x + r * d, rstd[r], mean ? mean[r] : 0.0f, w, b, y + r * d);
  }
}

template <class S>
struct NormRow {
  const S *d_y, *x, *w;
  float rstd, mean;
  bool centred, add;
  S* d_x;
  float *d_w, *d_b;
};

template <class S>
MOLEN_INLINE void norm_backward_row(int64_t d, const NormRow<S>& n) {
  const F s = splat(n.rstd), m = splat(n.mean);
  F sum_g = {}, sum_gu = {};
  columns(
      d, [&](int64_t c, auto k) __attribute__((always_inline)) {
        F g = load(n.d_y + c, k);
        if (n.w) g = g * load(n.w + c, k);
        sum_g += g;
        sum_gu = Simd::fma(g, (load(n.x + c, k) - m) * s, sum_gu);
      });
  const F mean_gu = splat(static_cast<float>(total(sum_gu) / static_cast<double>(d)));
  const F mean_g = n.centred ? splat(static_cast<float>(total(sum_g) / static_cast<double>(d))) : F{};
  columns(
      d, [&](int64_t c, auto k) __attribute__((always_inline)) {
        const F d_y = load(n.d_y + c, k), u = (load(n.x + c, k) - m) * s;
        const F g = n.w ? d_y * load(n.w + c, k) : d_y;
        const F value = s * (g - mean_g - u * mean_gu);
        store(n.d_x + c, n.add ? load(n.d_x + c, k) + value : value, k);
        if (n.d_w) store(n.d_w + c, Simd::fma(d_y, u, load(n.d_w + c, k)), k);
        if (n.d_b) store(n.d_b + c, load(n.d_b + c, k) + d_y, k);
      });
}

// out (+)= the sum of `count` rows of d floats, in order, over the columns of this thread.
MOLEN_INLINE void add_partials(int64_t count, int64_t d, const float* partial, bool accumulate, float* out) {
  const Range range = share(d, kLine);
  columns(
      range.last - range.first, [&](int64_t i, auto k) __attribute__((always_inline)) {
        const int64_t c = range.first + i;
        F sum = load(partial + c, k);
        for (int64_t t = 1; t < count; ++t) sum += load(partial + t * d + c, k);
        store(out + c, accumulate ? load(out + c, k) + sum : sum, k);
      });
}

template <class S>
void norm_backward(int threads, int64_t rows, int64_t d, const S* d_y, const S* x, const float* rstd, const float* mean,
                   const S* w, bool add_to_d_x, S* d_x, bool accumulate, float* d_w, float* d_b, float* partial) {
  float* partial_w = partial;
  float* partial_b = partial + (d_w ? threads * d : 0);
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num();
    float* own_w = d_w ? partial_w + t * d : nullptr;
    float* own_b = d_b ? partial_b + t * d : nullptr;
    if (own_w) memset(own_w, 0, static_cast<size_t>(d) * sizeof(float));
    if (own_b) memset(own_b, 0, static_cast<size_t>(d) * sizeof(float));
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r)
      norm_backward_row<S>(d, {d_y + r * d, x + r * d, w, rstd[r], mean ? mean[r] : 0.0f, mean != nullptr, add_to_d_x,
                               d_x + r * d, own_w, own_b});
    if (d_w || d_b) {
#pragma omp barrier
      if (d_w) add_partials(omp_get_num_threads(), d, partial_w, accumulate, d_w);
      if (d_b) add_partials(omp_get_num_threads(), d, partial_b, accumulate, d_b);
    }
  }
}

// --- norms of queries and keys

// Returns 1 / sqrt(mean(x^2) + eps) of one group.
template <class S>
MOLEN_INLINE float rms_rstd(int64_t length, double eps, const S* x) {
  return static_cast<float>(1.0 / sqrt(sum_of_squares(length, x, 0.0f) / static_cast<double>(length) + eps));
}

template <class S>
MOLEN_INLINE void qk_norm_groups(NormGroups n, double eps, const S* x, const S* w, S* y) {
  for (int64_t g = 0; g < n.groups; ++g) {
    const S* group = x + g * n.length;
    apply_row<S>(n.length, group, rms_rstd(n.length, eps, group), 0.0f, w, nullptr, y + g * n.length);
  }
}

template <class S>
void qk_norm_forward(int threads, int64_t rows, QkNormSizes sizes, double eps, const S* x, const S* w_query,
                     const S* w_key, S* y) {
  const int64_t key = sizes.query.groups * sizes.query.length, value = key + sizes.key.groups * sizes.key.length;
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      const S* from = x + r * sizes.width;
      S* to = y + r * sizes.width;
      qk_norm_groups(sizes.query, eps, from, w_query, to);
      qk_norm_groups(sizes.key, eps, from + key, w_key, to + key);
      memcpy(to + value, from + value, static_cast<size_t>(sizes.width - value) * sizeof(S));
    }
  }
}

template <class S>
MOLEN_INLINE void qk_norm_groups_backward(NormGroups n, double eps, const S* x, const S* w, S* d, float* d_w) {
  for (int64_t g = 0; g < n.groups; ++g) {
    const S* group = x + g * n.length;
    S* d_group = d + g * n.length;
    norm_backward_row<S>(
        n.length, {d_group, group, w, rms_rstd(n.length, eps, group), 0.0f, false, false, d_group, d_w, nullptr});
  }
}

template <class S>
void qk_norm_backward(int threads, int64_t rows, QkNormSizes sizes, double eps, const S* x, const S* w_query,
                      const S* w_key, S* d, bool accumulate, float* d_w_query, float* d_w_key, float* partial) {
  const int64_t key = sizes.query.groups * sizes.query.length;
  float* partial_key = partial + threads * sizes.query.length;
#pragma omp parallel num_threads(threads)
  {
    const int64_t t = omp_get_thread_num();
    float *own_query = partial + t * sizes.query.length, *own_key = partial_key + t * sizes.key.length;
    memset(own_query, 0, static_cast<size_t>(sizes.query.length) * sizeof(float));
    memset(own_key, 0, static_cast<size_t>(sizes.key.length) * sizeof(float));
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      const S* row = x + r * sizes.width;
      S* d_row = d + r * sizes.width;
      qk_norm_groups_backward(sizes.query, eps, row, w_query, d_row, own_query);
      qk_norm_groups_backward(sizes.key, eps, row + key, w_key, d_row + key, own_key);
    }
#pragma omp barrier
    add_partials(omp_get_num_threads(), sizes.query.length, partial, accumulate, d_w_query);
    add_partials(omp_get_num_threads(), sizes.key.length, partial_key, accumulate, d_w_key);
  }
}

// --- RoPE, activations

template <class S>
void rope(int threads, int64_t rows, int64_t sequence, int64_t heads, int64_t head_dim, int64_t width,
          const float* cos_SD2, const float* sin_SD2, bool inverse, S* qkv) {
  const int64_t half = head_dim / 2;
  const F sign = splat(inverse ? -1.0f : 1.0f);
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t n = range.first; n < range.last; ++n) {
      const float *cosine = cos_SD2 + (n % sequence) * half, *sine = sin_SD2 + (n % sequence) * half;
      for (int64_t head = 0; head < heads; ++head) {
        S* p = qkv + n * width + head * head_dim;
        columns(
            half, [&](int64_t i, auto k) __attribute__((always_inline)) {
              const F c = load(cosine + i, k), s = load(sine + i, k) * sign, a = load(p + i, k),
                      b = load(p + half + i, k);
              store(p + i, a * c - b * s, k);
              store(p + half + i, b * c + a * s, k);
            });
      }
    }
  }
}

template <class S>
void swiglu_forward(int threads, int64_t rows, int64_t f, const S* up, S* a) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      const S *gate = up + r * 2 * f, *linear = gate + f;
      columns(
          f, [&](int64_t c, auto k) __attribute__((always_inline)) {
            const F g = load(gate + c, k);
            store(a + r * f + c, g * sigmoid(g) * load(linear + c, k), k);
          });
    }
  }
}

template <class S>
void swiglu_backward(int threads, int64_t rows, int64_t f, const S* d_a, const S* up, S* d_up) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      const S *gate = up + r * 2 * f, *linear = gate + f;
      S *d_gate = d_up + r * 2 * f, *d_linear = d_gate + f;
      columns(
          f, [&](int64_t c, auto k) __attribute__((always_inline)) {
            const F g = load(gate + c, k), u = load(linear + c, k), d = load(d_a + r * f + c, k), s = sigmoid(g);
            const F silu = g * s;
            store(d_gate + c, d * u * (s + silu * (splat(1.0f) - s)), k);
            store(d_linear + c, d * silu, k);
          });
    }
  }
}

// (1 + tanh(u))/2 = sigmoid(2u), so GELU's tanh form is x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kTwoScale = 1.59576912160573071f, kCubic = 0.044715f;

template <class S>
void gelu_tanh_forward(int threads, int64_t count, const S* x, S* y) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(count, kLine);
    columns(
        range.last - range.first, [&](int64_t i, auto k) __attribute__((always_inline)) {
          const F v = load(x + range.first + i, k);
          const F u = splat(kTwoScale) * v * Simd::fma(v * v, splat(kCubic), splat(1.0f));
          store(y + range.first + i, v * sigmoid(u), k);
        });
  }
}

template <class S>
void gelu_tanh_backward(int threads, int64_t count, const S* d_y, const S* x, S* d_x) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(count, kLine);
    columns(
        range.last - range.first, [&](int64_t i, auto k) __attribute__((always_inline)) {
          const F v = load(x + range.first + i, k), square = v * v;
          const F s = sigmoid(splat(kTwoScale) * v * Simd::fma(square, splat(kCubic), splat(1.0f)));
          const F inner = splat(kTwoScale) * Simd::fma(square, splat(3.0f * kCubic), splat(1.0f));
          // At large |x| the polynomial overflows while s (1 - s) is zero. There d_x is d_y or 0.
          const F slope = s * (splat(1.0f) - s);
          const F bend = slope == F{} ? F{} : v * slope * inner;
          store(d_x + range.first + i, load(d_y + range.first + i, k) * (s + bend), k);
        });
  }
}

// --- rows and columns

void fill_rows(int threads, int64_t rows, int64_t width, const float* source, const float* bias, float* out) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r)
      columns(
          width, [&](int64_t c, auto k) __attribute__((always_inline)) {
            F v = source ? load(source + r * width + c, k) : F{};
            if (bias) v = v + load(bias + c, k);
            store(out + r * width + c, v, k);
          });
  }
}

template <class S>
void column_sums(int threads, int64_t rows, int64_t width, const S* d_y, bool accumulate, float* d_bias) {
  // rows summed in one vector before it is added to the total, because short sums round less
  constexpr int64_t kRun = 64;
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(width, kLine);
    columns(
        range.last - range.first, [&](int64_t i, auto k) __attribute__((always_inline)) {
          const int64_t c = range.first + i;
          F sum = accumulate ? load(d_bias + c, k) : F{};
          for (int64_t first = 0; first < rows; first += kRun) {
            F run = {};
            for (int64_t r = first; r < rows && r < first + kRun; ++r) run += load(d_y + r * width + c, k);
            sum += run;
          }
          store(d_bias + c, sum, k);
        });
  }
}

void embedding_forward(int threads, int64_t rows, int64_t sequence, int64_t d, const int32_t* ids, const float* table,
                       const float* positions, float* x) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t n = range.first; n < range.last; ++n) {
      const float* row = ids[n] >= 0 ? table + static_cast<int64_t>(ids[n]) * d : nullptr;
      const float* position = positions ? positions + (n % sequence) * d : nullptr;
      columns(
          d, [&](int64_t c, auto k) __attribute__((always_inline)) {
            F v = row ? load(row + c, k) : F{};
            if (position) v = v + load(position + c, k);
            store(x + n * d + c, v, k);
          });
    }
  }
}

template <class S>
void embedding_backward(int threads, int64_t rows, int64_t sequence, int64_t d, const int32_t* ids, const S* d_x,
                        float* d_table, float* d_positions) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(d, kLine);
    for (int64_t n = 0; n < rows; ++n) {
      float* row = ids[n] >= 0 ? d_table + static_cast<int64_t>(ids[n]) * d + range.first : nullptr;
      float* position = d_positions ? d_positions + (n % sequence) * d + range.first : nullptr;
      const S* g = d_x + n * d + range.first;
      columns(
          range.last - range.first, [&](int64_t c, auto k) __attribute__((always_inline)) {
            if (row) store(row + c, load(row + c, k) + load(g + c, k), k);
            if (position) store(position + c, load(position + c, k) + load(g + c, k), k);
          });
    }
  }
}

// out (+)= values, in fp32.
void widen_rows(int threads, int64_t count, const uint16_t* values, bool accumulate, float* out) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(count, kLine);
    columns(
        range.last - range.first, [&](int64_t i, auto k) __attribute__((always_inline)) {
          const int64_t at = range.first + i;
          const F v = load(values + at, k);
          store(out + at, accumulate ? load(out + at, k) + v : v, k);
        });
  }
}

void narrow_rows(int threads, int64_t count, const float* values, uint16_t* out) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(count, kLine);
    columns(
        range.last - range.first, [&](int64_t i, auto k) __attribute__((always_inline)) {
          store(out + range.first + i, load(values + range.first + i, k), k);
        });
  }
}

void fill_zero(int threads, int64_t count, float* out) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(count, kLine);
    memset(out + range.first, 0, static_cast<size_t>(range.last - range.first) * sizeof(float));
  }
}

// --- experts

#include "math/vector_experts_inl.h"

// --- cross entropy

constexpr float kNothing = 1e-30f;

MOLEN_INLINE float largest(int64_t count, const float* row) {
  float most = row[0];
  F m[2] = {splat(row[0]), splat(row[0])};
  int64_t c = 0;
  for (; c + 2 * kLanes <= count; c += 2 * kLanes) {
    const F a = load(row + c, Whole{}), b = load(row + c + kLanes, Whole{});
    m[0] = a > m[0] ? a : m[0];
    m[1] = b > m[1] ? b : m[1];
  }
  for (; c < count; ++c) most = row[c] > most ? row[c] : most;
  for (int64_t i = 0; i < kLanes; ++i) {
    most = m[0][i] > most ? m[0][i] : most;
    most = m[1][i] > most ? m[1][i] : most;
  }
  return most;
}

// Returns the sum of exp(row - most), and calls `each` with the terms. Sums of short runs are added in double, so that
// the error does not grow with the vocabulary.
template <class Each>
MOLEN_INLINE double exponential_sum(int64_t count, float most, const float* row, Each each) {
  constexpr int64_t kRun = 32 * kLanes;
  double sum = 0.0;
  for (int64_t first = 0; first < count; first += kRun) {
    F run = {};
    const int64_t n = count - first < kRun ? count - first : kRun;
    columns(
        n, [&](int64_t c, auto k) __attribute__((always_inline)) {
          const F e = only(exponential(load(row + first + c, k) - splat(most)), k);
          each(first + c, e, k);
          run += e;
        });
    sum += total(run);
  }
  return sum;
}

// Sets gradients below kNothing to zero. Products with subnormal numbers run a hundred times slower, and 1e-30 has no
// effect.
MOLEN_INLINE F without_dust(F p) {
  const F nothing = splat(kNothing);
  return (p < nothing) & (p > -nothing) ? F{} : p;
}

// Processes one row. The row is read from memory once and written back once, and the three sweeps in between run in L2.
MOLEN_INLINE float cross_entropy_row(int64_t vocabulary, int32_t label, bool gradient, double grad_scale, float* row) {
  const float most = largest(vocabulary, row);
  const double at_label = static_cast<double>(row[label]) - static_cast<double>(most);
  const double sum = exponential_sum(
      vocabulary, most, row, [&](int64_t c, F e, auto k) __attribute__((always_inline)) {
        if (gradient) store(row + c, e, k);
      });
  if (gradient) {
    const F scale = splat(static_cast<float>(grad_scale / sum));
    columns(
        vocabulary, [&](int64_t c, auto k)
                        __attribute__((always_inline)) { store(row + c, without_dust(load(row + c, k) * scale), k); });
    row[label] -= static_cast<float>(grad_scale);
  }
  return static_cast<float>(log(sum) - at_label);
}

void shared_sums(int threads, int64_t rows, int64_t vocabulary, int64_t first, const int32_t* labels,
                 const float* logits, float* sums) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      const float* row = logits + r * vocabulary;
      const float most = largest(vocabulary, row);
      const double sum = exponential_sum(vocabulary, most, row, [](int64_t, F, auto) {});
      sums[2 * r] = static_cast<float>(log(sum) + static_cast<double>(most));
      const int64_t label = labels[r] - first;
      sums[2 * r + 1] = label >= 0 && label < vocabulary ? row[label] : 0.0f;
    }
  }
}

void shared_gradient(int threads, int64_t rows, int64_t vocabulary, const int32_t* labels, const float* lse,
                     const float* scale, float* logits) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      float* row = logits + r * vocabulary;
      columns(
          vocabulary, [&](int64_t c, auto k) __attribute__((always_inline)) {
            const F e = exponential(load(row + c, k) - splat(lse[r]));
            store(row + c, without_dust(e * splat(scale[r])), k);
          });
      if (labels[r] >= 0) row[labels[r]] -= scale[r];
    }
  }
}

void cross_entropy(int threads, int64_t rows, int64_t vocabulary, const int32_t* labels, bool gradient,
                   double grad_scale, float* logits, float* losses) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      float* row = logits + r * vocabulary;
      if (labels[r] >= 0) {
        losses[r] = cross_entropy_row(vocabulary, labels[r], gradient, grad_scale, row);
      } else {
        losses[r] = 0.0f;
        if (gradient) memset(row, 0, static_cast<size_t>(vocabulary) * sizeof(float));
      }
    }
  }
}

// Processes a row at a time in fp32, in the calling thread's `vocabulary` floats of `space`, which stay in its L2.
void narrow_cross_entropy(int threads, int64_t rows, int64_t vocabulary, const int32_t* labels, bool gradient,
                          double grad_scale, uint16_t* logits, float* losses, float* space) {
#pragma omp parallel num_threads(threads)
  {
    float* wide = space + omp_get_thread_num() * vocabulary;
    const Range range = share(rows);
    for (int64_t r = range.first; r < range.last; ++r) {
      uint16_t* row = logits + r * vocabulary;
      losses[r] = 0.0f;
      if (labels[r] < 0) {
        if (gradient) memset(row, 0, static_cast<size_t>(vocabulary) * sizeof(uint16_t));
        continue;
      }
      columns(
          vocabulary, [&](int64_t c, auto k) __attribute__((always_inline)) { store(wide + c, load(row + c, k), k); });
      losses[r] = cross_entropy_row(vocabulary, labels[r], gradient, grad_scale, wide);
      if (gradient)
        columns(
            vocabulary, [&](int64_t c, auto k)
                            __attribute__((always_inline)) { store(row + c, load(wide + c, k), k); });
    }
  }
}

}  // namespace

namespace molen::math {
extern const VectorKernels MOLEN_VECTOR_TABLE;
const VectorKernels MOLEN_VECTOR_TABLE = {
    MOLEN_VECTOR_NAME,
    norm_forward<float>,
    norm_apply<float>,
    norm_backward<float>,
    qk_norm_forward<float>,
    qk_norm_backward<float>,
    rope<float>,
    swiglu_forward<float>,
    swiglu_backward<float>,
    gelu_tanh_forward<float>,
    gelu_tanh_backward<float>,
    fill_rows,
    column_sums<float>,
    embedding_forward,
    embedding_backward<float>,
    cross_entropy,
    fill_zero,
    shared_sums,
    shared_gradient,
    combine_forward<float>,
    combine_backward<float>,
    {norm_forward<uint16_t>, norm_apply<uint16_t>, norm_backward<uint16_t>, qk_norm_forward<uint16_t>,
     qk_norm_backward<uint16_t>, rope<uint16_t>, swiglu_forward<uint16_t>, swiglu_backward<uint16_t>,
     gelu_tanh_forward<uint16_t>, gelu_tanh_backward<uint16_t>, column_sums<uint16_t>, embedding_backward<uint16_t>,
     narrow_cross_entropy, widen_rows, narrow_rows, combine_forward<uint16_t>, combine_backward<uint16_t>}};
}  // namespace molen::math
