// Products of the attention kernels over rows in bf16, on tiles: registers of up to 16 rows of 64 bytes, as AMX has
// them (Intel, Software Developer's Manual, volume 1, chapter "Programming with Intel AMX"). A tile of A has 16 rows of
// 16 pairs, a tile of B the pairs of 16 depths by 16 columns, and a tile of C 16 by 16 floats. The including file
// defines `Tiles`, with the operations on tiles by their numbers: configure, zero, load, store, dot.
#include "math/attention_narrow_blocks_inl.h"

namespace molen::math::attention_detail {
namespace {

constexpr i64 kBlockRows = 16;      // of C, in one product
constexpr i64 kKeyColumns = kMaxD;  // of C, in one product whose A is interleaved: A is transposed once for all columns
constexpr i64 kTilePairs = 16;      // depth of a tile of A or B
constexpr i64 kTurnedPairs = kBackwardRows / 2;
enum TileNumber { kTileA = 4, kTileB = 5, kLastA = 6, kLastB = 7 };  // 0 to 3 hold C; the last depth may be less

// C += A B in the tiles of C from V to NV - 1.
template <int V, int NV, int kA, int kB>
inline void dot_tiles(const Pair* b, i64 ldb) {
  Tiles::load<kB>(b + V * kTilePairs, ldb);
  Tiles::dot<V, kA, kB>();
  if constexpr (V + 1 < NV) dot_tiles<V + 1, NV, kA, kB>(b, ldb);
}
template <int V, int NV>
inline void begin_tiles(const float* c, i64 ldc, bool add) {
  if (add)
    Tiles::load<V>((const Pair*)c + V * kTilePairs, ldc);
  else
    Tiles::zero<V>();
  if constexpr (V + 1 < NV) begin_tiles<V + 1, NV>(c, ldc, add);
}
template <int V, int NV>
inline void end_tiles(float* c, i64 ldc) {
  Tiles::store<V>((Pair*)c + V * kTilePairs, ldc);
  if constexpr (V + 1 < NV) end_tiles<V + 1, NV>(c, ldc);
}

// C = A B or, with `add`, C += A B, for NV * 16 columns.
template <int NV>
[[gnu::noinline]] void tile_block(const Pair* a, i64 lda, const Pair* b, i64 ldb, i64 depth, float* c, i64 ldc,
                                  bool add) {
  begin_tiles<0, NV>(c, ldc, add);
  i64 p = 0;
  for (; p + kTilePairs <= depth; p += kTilePairs) {
    Tiles::load<kTileA>(a + p, lda);
    dot_tiles<0, NV, kTileA, kTileB>(b + p * ldb, ldb);
  }
  if (p < depth) {
    Tiles::load<kLastA>(a + p, lda);
    dot_tiles<0, NV, kLastA, kLastB>(b + p * ldb, ldb);
  }
  end_tiles<0, NV>(c, ldc);
}

// to [16, kTurnedPairs] = the first `depth` pairs of A, whose pairs are interleaved, row by row.
inline void turn(Pair* to, const Pair* a, i64 lda, i64 depth) {
  for (i64 p = 0; p < depth; p += kL)
    for (i64 r = 0; r < kBlockRows; r += kL) {
      F x[kL];
      for (i64 l = 0; l < kL; ++l) x[l] = p + l < depth ? (F)load_pairs(a + (p + l) * lda + r) : F{};
      transpose_square(x);
      for (i64 l = 0; l < kL; ++l) store_pairs(to + (r + l) * kTurnedPairs + p, (I)x[l]);
    }
}

// As in attention_narrow_products_inl.h, with up to 16 rows. If A is interleaved, 16 of its rows are read.
template <bool kInterleaved>
inline void dot_product(i64 rows, i64 columns, const Pair* a, i64 lda, const Pair* b, i64 ldb, i64 depth, float* c,
                        i64 ldc, const float* scale = nullptr) {
  alignas(64) Pair turned[kInterleaved ? kBlockRows * kTurnedPairs : 1];
  if constexpr (kInterleaved) {
    turn(turned, a, lda, depth);
    a = turned;
    lda = kTurnedPairs;
  }
  if (scale && scale != kOnes)
    for (i64 r = 0; r < rows; ++r)
      for (i64 at = 0; at < columns; at += kL) store(c + r * ldc + at, load(c + r * ldc + at) * Simd::set1(scale[r]));
  Tiles::configure((int)rows, (int)(depth % kTilePairs));
  const bool add = scale != nullptr;
  i64 at = 0;
  for (; at + 64 <= columns; at += 64) tile_block<4>(a, lda, b + at, ldb, depth, c + at, ldc, add);
  if (columns - at == 48) tile_block<3>(a, lda, b + at, ldb, depth, c + at, ldc, add);
  if (columns - at == 32) tile_block<2>(a, lda, b + at, ldb, depth, c + at, ldc, add);
  if (columns - at == 16) tile_block<1>(a, lda, b + at, ldb, depth, c + at, ldc, add);
}

}  // namespace
}  // namespace molen::math::attention_detail
