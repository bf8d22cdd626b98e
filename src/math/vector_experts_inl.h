// The vector kernels of a mixture of experts: sums over the rows of a token's slots. vector_inl.h includes this file
// inside its unnamed namespace; it is not a self-contained header.

// y_n (+)= sum_j weight_nj rows[place_nj], j in order. When weight is null, all weights are 1. A place below 0 adds
// nothing.
template <class S>
void combine_forward(int threads, int64_t tokens, int64_t k, int64_t d, const int32_t* place, const float* weight,
                     bool accumulate, const S* rows, S* y) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(tokens);
    for (int64_t n = range.first; n < range.last; ++n) {
      const int32_t* at = place + n * k;
      columns(
          d, [&](int64_t c, auto part) __attribute__((always_inline)) {
            F sum = accumulate ? load(y + n * d + c, part) : F{};
            for (int64_t j = 0; j < k; ++j)
              if (at[j] >= 0)
                sum = Simd::fma(splat(weight ? weight[n * k + j] : 1.0f), load(rows + at[j] * d + c, part), sum);
            store(y + n * d + c, sum, part);
          });
    }
  }
}

// d_rows[place_nj] = weight_nj d_y_n. Returns d_y_n rows[place_nj] of one slot. The products of short runs are added in
// double, so that the error does not grow with d.
template <class S>
MOLEN_INLINE double combine_backward_slot(int64_t d, float weight, const S* d_y, const S* row, S* d_row) {
  constexpr int64_t kRun = 32 * kLanes;
  double sum = 0.0;
  for (int64_t first = 0; first < d; first += kRun) {
    F run = {};
    const int64_t n = d - first < kRun ? d - first : kRun;
    columns(
        n, [&](int64_t c, auto part) __attribute__((always_inline)) {
          const F g = load(d_y + first + c, part);
          run = Simd::fma(g, load(row + first + c, part), run);  // lanes beyond the part are zero on both sides
          store(d_row + first + c, g * splat(weight), part);
        });
    sum += total(run);
  }
  return sum;
}

template <class S>
void combine_backward(int threads, int64_t tokens, int64_t k, int64_t d, const int32_t* place, const float* weight,
                      const S* d_y, const S* rows, S* d_rows, float* d_weight) {
#pragma omp parallel num_threads(threads)
  {
    const Range range = share(tokens);
    for (int64_t slot = range.first * k; slot < range.last * k; ++slot) {
      const int64_t at = place[slot];
      d_weight[slot] = at < 0 ? 0.0f
                              : static_cast<float>(combine_backward_slot(d, weight[slot], d_y + slot / k * d,
                                                                         rows + at * d, d_rows + at * d));
    }
  }
}
