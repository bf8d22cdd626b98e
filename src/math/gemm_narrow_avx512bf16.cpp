// Products of rows in bf16 on AVX-512 with dot products of bf16 (VDPBF16PS), after Goto and van de Geijn (Anatomy of
// high-performance matrix multiplication, 2008): a panel of B in the L1 cache, a block of A and of C in L2, and blocks
// of 6 rows by 4 vectors of C in registers. Terms are along the rows of both operands, so packing needs no
// transposition and only interleaves two neighbouring rows into one row of pairs. Compiled with flags of its own
// (CMakeLists.txt): plain headers only.
#if defined(__x86_64__)
#define MOLEN_SIMD_BITS 512

#include "math/attention_narrow_products_inl.h"
#include "math/gemm_narrow_kernels.h"

namespace molen::math::gemm_detail {
namespace {

using namespace attention_detail;

constexpr i64 kPairs = kTerms / 2, kLdA = kRows + 16, kLdRow = kPairs + 16;  // for A by terms, and by rows

inline i64 panels_of(const Sums& g) {
  return (g.columns + kPanel - 1) / kPanel;
}
inline Pair* panel_at(const Sums& g, i64 panel, i64 block) {
  return g.packed + (block * panels_of(g) + panel) * kPairs * kPanel;
}

void pack(const Sums& g, i64 panel, i64 block) {
  const i64 row = g.first + block * kTerms, column = g.column + panel * kPanel;
  interleave_rows(panel_at(g, panel, block), kPanel, g.b + row * g.n + column, g.n,
                  smaller(kTerms, g.terms - block * kTerms), smaller(kPanel, g.column + g.columns - column));
}

// Adds the products of a block of rows with one panel.
void add_panel(const Sums& g, i64 i0, i64 rows, i64 panel, const Pair* a, const Pair* b, i64 pairs, bool add,
               float* bounce) {
  const i64 column = g.column + panel * kPanel, columns = smaller(kPanel, g.column + g.columns - column);
  for (i64 r = 0; r < rows; r += kRowsPerBlock) {
    const i64 count = smaller(kRowsPerBlock, rows - r);
    float* c = g.c + (i0 + r) * g.n + column;
    for (i64 x = 0; x < count; ++x)
      for (i64 d = 0; d < columns; d += 16) __builtin_prefetch(c + x * g.n + d, 1, 3);
    const bool whole = columns % 16 == 0;
    float* to = whole ? c : bounce;
    const i64 ld = whole ? g.n : kPanel;
    const float* scale = whole && add ? kOnes : nullptr;
    if (g.terms_first)
      dot_product<true>(count, round16(columns), a + r, kLdA, b, kPanel, pairs, to, ld, scale);
    else
      dot_product<false>(count, round16(columns), a + r * kLdRow, kLdRow, b, kPanel, pairs, to, ld, scale);
    if (whole) continue;
    for (i64 x = 0; x < count; ++x)
      for (i64 d = 0; d < columns; ++d)
        c[x * g.n + d] = add ? c[x * g.n + d] + bounce[x * kPanel + d] : bounce[x * kPanel + d];
  }
}

void rows(const Sums& g, i64 i0, i64 i1, float* space) {
  Pair* a = (Pair*)space;
  float* bounce = space + kPairs * kLdA;
  for (i64 i = i0; i < i1; i += kRows) {
    const i64 count = smaller(kRows, i1 - i);
    for (i64 block = 0; block * kTerms < g.terms; ++block) {
      const i64 terms = smaller(kTerms, g.terms - block * kTerms);
      const i64 first = g.first + block * kTerms;
      if (g.terms_first)
        interleave_rows(a, kLdA, g.a + first * g.m + i, g.m, terms, count);
      else
        copy_rows(a, kLdRow, g.a + i * g.k + first, g.k, count, terms);
      for (i64 panel = 0; panel < panels_of(g); ++panel)
        add_panel(g, i, count, panel, a, panel_at(g, panel, block), pairs_of(terms), g.add || block > 0, bounce);
    }
  }
}

void narrow(i64 count, const float* from, std::uint16_t* to) {
  narrow_row(to, from, count, 1.0f);
}

}  // namespace

const SumKernels kSumsAvx512Bf16 = {pack, rows, narrow};

}  // namespace molen::math::gemm_detail
#endif
