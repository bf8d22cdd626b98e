// The three products of a linear layer in fp32 (y = x W^T, W [out, in]) through ATen's mm_out and addmm_out on views:
// MKL or what the wheel brings, with at::get_num_threads() threads of the calling thread. Row-major, contiguous;
// nothing is allocated by the tensor allocator. `accumulate` adds to C, otherwise C is overwritten (and may hold
// anything, NaN included).
#pragma once

#include <cstdint>

namespace molen::math {

void matmul_nt(std::int64_t m, std::int64_t n, std::int64_t k, const float* a_mk, const float* b_nk, bool accumulate,
               float* c_mn);
void matmul_nn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a_mk, const float* b_kn, bool accumulate,
               float* c_mn);
void matmul_tn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a_km, const float* b_kn, bool accumulate,
               float* c_mn);

}  // namespace molen::math
