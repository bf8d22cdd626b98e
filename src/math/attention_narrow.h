// Causal multi-head attention of math/attention.h over rows in bf16 (uint16_t: the upper half of a float), on CPU,
// forward and backward, without allocating. Products multiply bf16 and add in fp32. p and ds are rounded to bf16 before
// the products that take them, as in FlashAttention-2 in 16 bits. o and d_qkv are rounded once, and lse and every sum
// are fp32. Shapes, layouts and the independence of the number of threads are as in math/attention.h. A NaN in a token
// that a row sees makes the row NaN, and a NaN in the 15 tokens after a row may reach it too (0 * NaN in a block of 16
// rows on tiles, of 6 rows elsewhere). Subnormal values may count as zero.
//
// Scratch in 4-byte words, with W = D rounded up to a multiple of 16, plus 16; A = half of D, rounded up likewise:
//   forward   threads * (416 A + 352 W + 4896)
//   backward  threads * (448 A + 512 W + 21696); when the work is split by key/value heads (math/attention_split.h),
//             min(threads, B k) * (h/k) S W more, for the sums of dq
#pragma once

#include <cstdint>

#include "math/attention.h"

namespace molen::math {

// Returns the instruction set that kBest selects for rows in bf16.
AttentionIsa narrow_attention_isa();

std::int64_t narrow_attention_forward_scratch(const AttentionShape& shape);
std::int64_t narrow_attention_backward_scratch(const AttentionShape& shape);

// Overwrites o and lse. `scratch`: as many bytes as given above, aligned to 64 for speed. No two arguments may overlap.
void narrow_attention_forward(const AttentionShape& shape, const std::uint16_t* qkv, std::uint16_t* o, float* lse,
                              void* scratch);

// Overwrites all of d_qkv.
void narrow_attention_backward(const AttentionShape& shape, const std::uint16_t* d_o, const std::uint16_t* qkv,
                               const std::uint16_t* o, const float* lse, std::uint16_t* d_qkv, void* scratch);

namespace attention_detail {

struct NarrowAttention;

// Returns the kernels of an instruction set that this processor has.
const NarrowAttention& narrow_kernels(AttentionIsa isa);

// As the functions above, by the given kernels.
void run_forward(const NarrowAttention& kernels, const AttentionShape& shape, const std::uint16_t* qkv,
                 std::uint16_t* o, float* lse, void* scratch);
void run_backward(const NarrowAttention& kernels, const AttentionShape& shape, const std::uint16_t* d_o,
                  const std::uint16_t* qkv, const std::uint16_t* o, const float* lse, std::uint16_t* d_qkv,
                  void* scratch);

}  // namespace attention_detail
}  // namespace molen::math
