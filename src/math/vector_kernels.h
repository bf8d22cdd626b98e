// The fused kernels of the layer parts, in fp32 and over rows in bf16 (all parts but products and attention), one table
// per instruction set. Formulas and meanings are those of math/reference.h; each kernel makes one pass over its
// operands. Plain declarations only: the kernel files are compiled with flags of their own and must not share inline
// code with the rest.
//
// All matrices are row-major and contiguous. Work is split over `threads` by fixed ranges: for a given number of
// threads, results have the same bits in every run. Except for the gradients of norms' weights, they also have the same
// bits for any number of threads.
#pragma once

#include <stdint.h>

#include "math/qk_norm.h"

namespace molen::math {

// Kernels whose rows are stored in bf16 (uint16_t: the upper half of a float) and computed in fp32. Each result is
// rounded once, to the nearest, ties to even. Statistics, losses and gradients of parameters are fp32.
struct NarrowKernels {
  void (*norm_forward)(int threads, int64_t rows, int64_t d, double eps, const uint16_t* x, const uint16_t* w,
                       const uint16_t* b, float* rstd, float* mean, uint16_t* y);
  void (*norm_apply)(int threads, int64_t rows, int64_t d, const uint16_t* x, const float* rstd, const float* mean,
                     const uint16_t* w, const uint16_t* b, uint16_t* y);
  void (*norm_backward)(int threads, int64_t rows, int64_t d, const uint16_t* d_y, const uint16_t* x, const float* rstd,
                        const float* mean, const uint16_t* w, bool add_to_d_x, uint16_t* d_x, bool accumulate,
                        float* d_w, float* d_b, float* partial);
  void (*qk_norm_forward)(int threads, int64_t rows, QkNormSizes sizes, double eps, const uint16_t* x,
                          const uint16_t* w_query, const uint16_t* w_key, uint16_t* y);
  void (*qk_norm_backward)(int threads, int64_t rows, QkNormSizes sizes, double eps, const uint16_t* x,
                           const uint16_t* w_query, const uint16_t* w_key, uint16_t* d, bool accumulate,
                           float* d_w_query, float* d_w_key, float* partial);
  void (*rope)(int threads, int64_t rows, int64_t sequence, int64_t heads, int64_t head_dim, int64_t width,
               const float* cos_SD2, const float* sin_SD2, bool inverse, uint16_t* qkv);
  void (*swiglu_forward)(int threads, int64_t rows, int64_t f, const uint16_t* up, uint16_t* a);
  void (*swiglu_backward)(int threads, int64_t rows, int64_t f, const uint16_t* d_a, const uint16_t* up,
                          uint16_t* d_up);
  void (*gelu_tanh_forward)(int threads, int64_t count, const uint16_t* x, uint16_t* y);
  void (*gelu_tanh_backward)(int threads, int64_t count, const uint16_t* d_y, const uint16_t* x, uint16_t* d_x);
  void (*column_sums)(int threads, int64_t rows, int64_t columns, const uint16_t* d_y, bool accumulate, float* d_bias);
  void (*embedding_backward)(int threads, int64_t rows, int64_t sequence, int64_t d, const int32_t* ids,
                             const uint16_t* d_x, float* d_table, float* d_positions);
  // `space` has threads * vocabulary floats.
  void (*cross_entropy)(int threads, int64_t rows, int64_t vocabulary, const int32_t* labels, bool gradient,
                        double grad_scale, uint16_t* logits, float* losses, float* space);
  void (*widen)(int threads, int64_t count, const uint16_t* values, bool accumulate, float* out);  // out (+)= values
  void (*narrow)(int threads, int64_t count, const float* values, uint16_t* out);
  void (*combine_forward)(int threads, int64_t tokens, int64_t k, int64_t d, const int32_t* place, const float* weight,
                          bool accumulate, const uint16_t* rows, uint16_t* y);
  void (*combine_backward)(int threads, int64_t tokens, int64_t k, int64_t d, const int32_t* place, const float* weight,
                           const uint16_t* d_y, const uint16_t* rows, uint16_t* d_rows, float* d_weight);
};

struct VectorKernels {
  const char* name;  // "avx512", "avx2", "generic"

  // mean is null for RMSNorm, and not null for LayerNorm. w and b may be null.
  void (*norm_forward)(int threads, int64_t rows, int64_t d, double eps, const float* x, const float* w, const float* b,
                       float* rstd, float* mean, float* y);
  void (*norm_apply)(int threads, int64_t rows, int64_t d, const float* x, const float* rstd, const float* mean,
                     const float* w, const float* b, float* y);
  // `partial` has threads * d floats for d_w and as many for d_b, when they are given.
  void (*norm_backward)(int threads, int64_t rows, int64_t d, const float* d_y, const float* x, const float* rstd,
                        const float* mean, const float* w, bool add_to_d_x, float* d_x, bool accumulate, float* d_w,
                        float* d_b, float* partial);
  void (*qk_norm_forward)(int threads, int64_t rows, QkNormSizes sizes, double eps, const float* x,
                          const float* w_query, const float* w_key, float* y);
  // d is the gradient of y, which is replaced by the gradient of x in place. `partial` has `threads` floats for each
  // value of both weights.
  void (*qk_norm_backward)(int threads, int64_t rows, QkNormSizes sizes, double eps, const float* x,
                           const float* w_query, const float* w_key, float* d, bool accumulate, float* d_w_query,
                           float* d_w_key, float* partial);
  void (*rope)(int threads, int64_t rows, int64_t sequence, int64_t heads, int64_t head_dim, int64_t width,
               const float* cos_SD2, const float* sin_SD2, bool inverse, float* qkv);
  void (*swiglu_forward)(int threads, int64_t rows, int64_t f, const float* up, float* a);
  void (*swiglu_backward)(int threads, int64_t rows, int64_t f, const float* d_a, const float* up, float* d_up);
  void (*gelu_tanh_forward)(int threads, int64_t count, const float* x, float* y);
  void (*gelu_tanh_backward)(int threads, int64_t count, const float* d_y, const float* x, float* d_x);
  void (*fill_rows)(int threads, int64_t rows, int64_t columns, const float* source, const float* bias, float* out);
  void (*column_sums)(int threads, int64_t rows, int64_t columns, const float* d_y, bool accumulate, float* d_bias);
  void (*embedding_forward)(int threads, int64_t rows, int64_t sequence, int64_t d, const int32_t* ids,
                            const float* table, const float* positions, float* x);
  // Adds in token order; each thread owns a range of columns.
  void (*embedding_backward)(int threads, int64_t rows, int64_t sequence, int64_t d, const int32_t* ids,
                             const float* d_x, float* d_table, float* d_positions);
  void (*cross_entropy)(int threads, int64_t rows, int64_t vocabulary, const int32_t* labels, bool gradient,
                        double grad_scale, float* logits, float* losses);
  void (*fill_zero)(int threads, int64_t count, float* out);
  // For a vocabulary that tensor ranks share (math/reference.h: shared_sums, shared_gradient).
  void (*shared_sums)(int threads, int64_t rows, int64_t vocabulary, int64_t first, const int32_t* labels,
                      const float* logits, float* sums);
  void (*shared_gradient)(int threads, int64_t rows, int64_t vocabulary, const int32_t* labels, const float* lse,
                          const float* scale, float* logits);
  // The combination of a mixture of experts (math/experts.h).
  void (*combine_forward)(int threads, int64_t tokens, int64_t k, int64_t d, const int32_t* place, const float* weight,
                          bool accumulate, const float* rows, float* y);
  void (*combine_backward)(int threads, int64_t tokens, int64_t k, int64_t d, const int32_t* place, const float* weight,
                           const float* d_y, const float* rows, float* d_rows, float* d_weight);

  NarrowKernels narrow;
};

extern const VectorKernels kVectorGeneric;
#if defined(__x86_64__)
extern const VectorKernels kVectorAvx2;
extern const VectorKernels kVectorAvx512;
#endif

// Returns the best table that this processor can run; the choice is made once.
const VectorKernels& vector_kernels();

}  // namespace molen::math
