// The three products of a linear layer in fp32 (y = x W^T, W [out, in]), with at::get_num_threads() threads of the
// calling thread. Matrices are row-major and contiguous. The products take no memory of the plan; memory that the
// library takes for itself goes through LibraryCall. `accumulate` adds to C; otherwise C is overwritten and may hold
// anything before, including NaN. A product gives the same bits on every call with the same sizes, number of threads
// and alignment of its operands; MKL adds in another order for another alignment.
#pragma once

#include <cstdint>
#include <string_view>

namespace molen::math {

// The library that multiplies. ATen passes fp32 to MKL, which uses only AVX2 on processors that are not Intel's: half
// the rate that oneDNN, in the same libtorch, reaches there with AVX-512 (docs/decisions/0007-products.md).
enum class GemmLibrary { kAten, kOneDnn };

// Returns the library that the processor alone determines, so that a run and its resumption on the same machine agree
// in every bit. MOLEN_GEMM=aten|onednn in the environment overrides it. Throws UsageError when MOLEN_GEMM names neither
// library, or one that this libtorch lacks.
GemmLibrary gemm_library();
std::string_view name_of(GemmLibrary library);
bool gemm_library_available(GemmLibrary library);

void matmul_nt(std::int64_t m, std::int64_t n, std::int64_t k, const float* a_mk, const float* b_nk, bool accumulate,
               float* c_mn);
void matmul_nn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a_mk, const float* b_kn, bool accumulate,
               float* c_mn);
void matmul_tn(std::int64_t m, std::int64_t n, std::int64_t k, const float* a_km, const float* b_kn, bool accumulate,
               float* c_mn);

// The same products by a given library, for tests and for comparing the libraries' rates.
void matmul_nt(GemmLibrary library, std::int64_t m, std::int64_t n, std::int64_t k, const float* a_mk,
               const float* b_nk, bool accumulate, float* c_mn);
void matmul_nn(GemmLibrary library, std::int64_t m, std::int64_t n, std::int64_t k, const float* a_mk,
               const float* b_kn, bool accumulate, float* c_mn);
void matmul_tn(GemmLibrary library, std::int64_t m, std::int64_t n, std::int64_t k, const float* a_km,
               const float* b_kn, bool accumulate, float* c_mn);

}  // namespace molen::math
