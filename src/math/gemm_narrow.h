// Products of rows in bf16 (uint16_t: the upper half of a float), summed in fp32, for two cases in which the library is
// slow. In the first, the terms are along the rows of both operands (the gradient of a weight). In the second, the sums
// are very long. docs/decisions/0007-products.md has the measurements. All matrices are row-major and contiguous.
//
// An element of C is a sum over the terms in order, in blocks of 256. It has the same bits for any number of threads,
// and whichever other elements C has.
#pragma once

#include <cstdint>

namespace molen::math {

// Returns whether these products are used. They are used on processors with dot products of bf16 (AVX512_BF16) and
// without tiles (AMX), with which the library is faster. They are never used when MOLEN_GEMM names a library.
bool own_products();
bool own_products_available();  // ignores MOLEN_GEMM

// C [m, n] (+)= A^T B, A [k, m], B [k, n], into fp32. The library would round the result, which would then have to be
// widened and added in a separate pass.
std::int64_t weight_gradient_scratch(int threads, std::int64_t n, std::int64_t k);

void weight_gradient(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const std::uint16_t* a_km,
                     const std::uint16_t* b_kn, bool accumulate, float* c_mn, void* scratch);

// C [m, n] = A B, A [m, k], B [k, n], summed in fp32 and rounded once. This is faster than the library's product only
// when k is many thousands (the head's gradient of its input: 32000 terms).
inline constexpr std::int64_t kLongProduct = 8192;  // number of terms from which long products are faster
std::int64_t long_product_scratch(int threads, std::int64_t m, std::int64_t n, std::int64_t k);

void long_product(int threads, std::int64_t m, std::int64_t n, std::int64_t k, const std::uint16_t* a_mk,
                  const std::uint16_t* b_kn, std::uint16_t* c_mn, void* scratch);

}  // namespace molen::math
