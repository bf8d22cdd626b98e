// The reference of the kernels that move and multiply the rows of a mixture of experts: plain loops, with T as in
// math/reference.h. Letters and places are those of math/expert_order.h. The fast versions are in math/experts.h.
#pragma once

#include "math/expert_order.h"
#include "math/reference.h"

namespace molen::math::reference {

// rows[place_nj] = x_n
template <class T>
void dispatch(int threads, const Slots& s, const T* x_Nd, T* rows_Md) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t slot = 0; slot < s.N * s.k; ++slot)
    if (const std::int64_t row = s.place_Nk[slot]; row >= 0)
      for (std::int64_t c = 0; c < s.d; ++c) rows_Md[row * s.d + c] = x_Nd[slot / s.k * s.d + c];
}

// y_n (+)= sum_j weight_nj rows[place_nj], j in order (Mixtral, arXiv 2401.04088, section 2.1; DeepSeek-V3, arXiv
// 2412.19437, equation 12). Dropped slots add nothing, so a token with only dropped slots has y_n (+)= 0. When
// weight_Nk is null, all weights are 1.
template <class T>
void combine(int threads, const Slots& s, const T* weight_Nk, const T* rows_Md, bool accumulate, T* y_Nd) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t n = 0; n < s.N; ++n)
    for (std::int64_t c = 0; c < s.d; ++c) {
      Accum<T> sum = accumulate ? Accum<T>(y_Nd[n * s.d + c]) : Accum<T>(0);
      for (std::int64_t j = 0; j < s.k; ++j)
        if (const std::int64_t row = s.place_Nk[n * s.k + j]; row >= 0)
          sum += (weight_Nk ? Accum<T>(weight_Nk[n * s.k + j]) : Accum<T>(1)) * Accum<T>(rows_Md[row * s.d + c]);
      y_Nd[n * s.d + c] = T(sum);
    }
}

// The backward of dispatch: d_x_n (+)= sum_j d_rows[place_nj].
template <class T>
void dispatch_backward(int threads, const Slots& s, const T* d_rows_Md, bool accumulate, T* d_x_Nd) {
  combine<T>(threads, s, nullptr, d_rows_Md, accumulate, d_x_Nd);
}

// d_rows[place_nj] = weight_nj d_y_n and d_weight_nj = d_y_n rows[place_nj], which is 0 for a dropped slot.
template <class T>
void combine_backward(int threads, const Slots& s, const T* weight_Nk, const T* d_y_Nd, const T* rows_Md, T* d_rows_Md,
                      T* d_weight_Nk) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t slot = 0; slot < s.N * s.k; ++slot) {
    const std::int64_t row = s.place_Nk[slot];
    const T* d_y = d_y_Nd + slot / s.k * s.d;
    Accum<T> sum(0);
    for (std::int64_t c = 0; row >= 0 && c < s.d; ++c) {
      sum += Accum<T>(d_y[c]) * Accum<T>(rows_Md[row * s.d + c]);
      d_rows_Md[row * s.d + c] = T(Accum<T>(weight_Nk[slot]) * Accum<T>(d_y[c]));
    }
    d_weight_Nk[slot] = T(sum);
  }
}

// y = x W_e^T
template <class T>
void grouped_nt(int threads, const Groups& g, const T* x_MI, const T* w_EOI, T* y_MO) {
  for (std::int64_t e = 0; e < g.E; ++e)
    matmul_nt(threads, g.rows(e), g.out, g.in, x_MI + g.first(e) * g.in, w_EOI + e * g.out * g.in, false,
              y_MO + g.first(e) * g.out);
}
// d_x = d_y W_e
template <class T>
void grouped_nn(int threads, const Groups& g, const T* d_y_MO, const T* w_EOI, T* d_x_MI) {
  for (std::int64_t e = 0; e < g.E; ++e)
    matmul_nn(threads, g.rows(e), g.in, g.out, d_y_MO + g.first(e) * g.out, w_EOI + e * g.out * g.in, false,
              d_x_MI + g.first(e) * g.in);
}
// d_W_e (+)= d_y^T x. For an expert without rows, d_W_e becomes zero or, when accumulating, stays as it was.
template <class T>
void grouped_tn(int threads, const Groups& g, const T* d_y_MO, const T* x_MI, bool accumulate, T* d_w_EOI) {
  for (std::int64_t e = 0; e < g.E; ++e)
    matmul_tn(threads, g.out, g.in, g.rows(e), d_y_MO + g.first(e) * g.out, x_MI + g.first(e) * g.in, accumulate,
              d_w_EOI + e * g.out * g.in);
}

}  // namespace molen::math::reference
