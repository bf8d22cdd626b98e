// Causal multi-head attention on CPU, forward and backward, in fp32, on raw pointers, without allocating.
//
//   o_i   = sum_{j<=i} p_ij v_j         p_ij = exp(s_ij - lse_i)       s_ij = (q_i . k_j) / sqrt(D) + slope * (j - i)
//   dv_j  = sum_i p_ij do_i             delta_i = do_i . o_i            ds_ij = p_ij (do_i . v_j - delta_i)
//   dq_i  = sum_j ds_ij k_j / sqrt(D)   dk_j = sum_i ds_ij q_i / sqrt(D)
//
// The online softmax and the recomputation of p from lse are FlashAttention-2's (Dao, arXiv 2307.08691). Letters: B
// sequences of S tokens, N = B*S rows, h query heads, k key/value heads, D elements a head; query head j reads
// key/value head j/(h/k).
//
//   qkv, d_qkv [N, (h+2k)*D]   row-major: query heads, then key heads, then value heads; RoPE already applied
//   o, d_o     [N, h*D]
//   lse        [B, h, S]       natural logarithm of the softmax's denominator, ALiBi included
//
// Results have the same bits for any number of threads: a tile is computed alike on every thread. They differ between
// instruction sets (AVX-512, AVX2, any). A NaN in a token that a row sees makes the row NaN. A NaN in the five tokens
// after a row may reach it too (0 * NaN in a block of six rows); no other number ever does. A p_ij below 2^-100 of the
// largest p in its row is zero.
//
// Scratch, in bytes, with W = D rounded up to a multiple of 16, plus 16:
//   forward   threads * 4 * (288 * (2 W + 162) + 256 W)
//   backward  threads * 4 * (96 * (2 W + 290) + 646 W)
#pragma once

#include <cstdint>

namespace molen::math {

// kAvx512Bf16 (VDPBF16PS) and kAmx (tiles) are only for rows in bf16; for others they are kAvx512.
enum class AttentionIsa { kBest, kGeneric, kAvx2, kAvx512, kAvx512Bf16, kAmx };

struct AttentionShape {
  std::int64_t B = 0, S = 0, h = 0, k = 0, D = 0;  // h is a multiple of k; 1 <= D <= 256; S is any number
  int threads = 1;
  const float* alibi = nullptr;            // h slopes, or null for none
  AttentionIsa isa = AttentionIsa::kBest;  // kBest is the fastest of this processor; tests force others
};

bool attention_isa_available(AttentionIsa isa);
const char* name_of(AttentionIsa isa);  // "avx512"; for kBest, the name of the selected set

std::int64_t attention_forward_scratch(const AttentionShape& shape);
std::int64_t attention_backward_scratch(const AttentionShape& shape);

// Overwrites o and lse. `scratch`: attention_forward_scratch bytes, aligned to 64 for speed. No two arguments may
// overlap.
void attention_forward(const AttentionShape& shape, const float* qkv, float* o, float* lse, void* scratch);

// Overwrites all of d_qkv. `scratch`: attention_backward_scratch bytes.
void attention_backward(const AttentionShape& shape, const float* d_o, const float* qkv, const float* o,
                        const float* lse, float* d_qkv, void* scratch);

}  // namespace molen::math
