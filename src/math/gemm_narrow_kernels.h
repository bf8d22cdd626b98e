// The interface between gemm_narrow.cpp, which splits the work over threads, and the kernels. Plain declarations only,
// as in attention_kernels.h.
#pragma once

#include <cstdint>

namespace molen::math::gemm_detail {

enum Block : std::int64_t {
  kTerms = 256,      // rows of A and B that are summed before C is touched, so that a panel of B fits L1
  kPanel = 64,       // columns of C in one block of registers
  kRows = 96,        // rows of C that a thread sums while they are in L2
  kColumns = 512,    // columns of C for which B is packed at a time
  kMostTerms = 2048  // terms for which B is packed at a time
};

// C [m, n] (+)= A B over the terms [first, first + terms) of k, for columns from `column` on. B is [k, n] and A is [m,
// k] or, with terms_first, [k, m].
struct Sums {
  bool terms_first;
  std::int64_t m, n, k;
  const std::uint16_t *a, *b;
  float* c;
  std::int64_t column, columns, first, terms;
  bool add;
  std::int32_t* packed;  // [blocks of terms][panels][128 pairs][64]
};

struct SumKernels {
  void (*pack)(const Sums&, std::int64_t panel, std::int64_t block);
  // Computes rows i0 to i1 of C. `space` has kTerms / 2 * (kRows + 16) + 6 * kPanel words.
  void (*rows)(const Sums&, std::int64_t i0, std::int64_t i1, float* space);
  void (*narrow)(std::int64_t count, const float* from, std::uint16_t* to);
};

extern const SumKernels kSumsAvx512Bf16;  // x86-64 only

}  // namespace molen::math::gemm_detail
