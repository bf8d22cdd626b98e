// Kernels that move and multiply the rows of a mixture of experts. They work in fp32, or on rows in bf16 (uint16_t: the
// upper half of a float) with weights, their gradients and all sums in fp32. The formulas are those of
// math/reference_experts.h; letters and places are those of math/expert_order.h. Routing has one version,
// math/reference_routing.h.
//
// All matrices are row-major and contiguous. Rows of expert order beyond the last offset are neither read nor written.
// "accumulate" adds to the result; otherwise the result is overwritten and may hold anything before, including NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "math/expert_order.h"

namespace molen::math {

// --- rows between token order [N, d] and expert order [M, d]; the same bits for any number of threads

void dispatch(int threads, const Slots& s, const float* x_Nd, float* rows_Md);
void dispatch(int threads, const Slots& s, const std::uint16_t* x_Nd, std::uint16_t* rows_Md);

// d_x_n (+)= sum_j d_rows[place_nj], in the order of j, rounded once.
void dispatch_backward(int threads, const Slots& s, const float* d_rows_Md, bool accumulate, float* d_x_Nd);
void dispatch_backward(int threads, const Slots& s, const std::uint16_t* d_rows_Md, bool accumulate,
                       std::uint16_t* d_x_Nd);

// y_n (+)= sum_j weight_nj rows[place_nj], in the order of j, rounded once.
void combine(int threads, const Slots& s, const float* weight_Nk, const float* rows_Md, bool accumulate, float* y_Nd);
void combine(int threads, const Slots& s, const float* weight_Nk, const std::uint16_t* rows_Md, bool accumulate,
             std::uint16_t* y_Nd);

// d_rows[place_nj] = weight_nj d_y_n; d_weight_nj = d_y_n rows[place_nj], which is 0 for a dropped slot. d_rows may be
// the same memory as rows.
void combine_backward(int threads, const Slots& s, const float* weight_Nk, const float* d_y_Nd, const float* rows_Md,
                      float* d_rows_Md, float* d_weight_Nk);
void combine_backward(int threads, const Slots& s, const float* weight_Nk, const std::uint16_t* d_y_Nd,
                      const std::uint16_t* rows_Md, std::uint16_t* d_rows_Md, float* d_weight_Nk);

// --- products of each expert's rows, with at::get_num_threads() threads of the calling thread
//
// Products are cut into tiles of at most kGroupRows rows, or of kGroupOutputs outputs for the gradient of the weights.
// A tile is one product of math/gemm.h (or of ATen, in bf16) on one thread; threads take tiles as they become free.
// This balances the work however tokens are spread over experts. The cuts, and with them the bits, do not depend on the
// number of threads.

inline constexpr std::int64_t kGroupRows = 256, kGroupOutputs = 256, kGroupTerms = 1024;

// y_MO = x_MI W_e^T
void grouped_nt(const Groups& g, const float* x_MI, const float* w_EOI, float* y_MO);
void grouped_nt(const Groups& g, const std::uint16_t* x_MI, const std::uint16_t* w_EOI, std::uint16_t* y_MO);

// d_x_MI = d_y_MO W_e
void grouped_nn(const Groups& g, const float* d_y_MO, const float* w_EOI, float* d_x_MI);
void grouped_nn(const Groups& g, const std::uint16_t* d_y_MO, const std::uint16_t* w_EOI, std::uint16_t* d_x_MI);

// d_W_e (+)= d_y^T x, in fp32. For an expert without rows, d_W_e becomes zero or, when accumulating, stays as it was.
// `scratch` has at least as many bytes as the query returns for the number of threads and the rows M of all experts;
// fewer are an error. In bf16, when math/gemm_narrow.h is used, it computes the products of one expert after another on
// all threads. Otherwise the library computes them, rounded to bf16 before they are added, as in all linear layers. The
// query returns the larger number of bytes of the two.
std::int64_t grouped_tn_scratch(int threads, std::int64_t out);
std::int64_t grouped_tn_narrow_scratch(int threads, std::int64_t M, std::int64_t out, std::int64_t in);

void grouped_tn(const Groups& g, const float* d_y_MO, const float* x_MI, bool accumulate, float* d_w_EOI,
                std::span<std::byte> scratch);
void grouped_tn(const Groups& g, const std::uint16_t* d_y_MO, const std::uint16_t* x_MI, bool accumulate,
                float* d_w_EOI, std::span<std::byte> scratch);

}  // namespace molen::math
