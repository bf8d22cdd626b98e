// The attention kernels over rows in bf16 on tiles, with the tiles in memory: what the code does with AMX can be tested
// on every processor. attention_narrow_test.cpp computes whole attentions with these kernels.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <limits>

#define MOLEN_SIMD_BITS 128
#define MOLEN_TILES

#include <string.h>

namespace {

struct Tile {
  int rows = 0, words = 0;
  unsigned at[16][16];
};
// Eight tiles of a thread, each with the shape that it has been given. A use that the processor would refuse, or whose
// result would depend on what is left in a tile, ends the program.
struct Tiles {
  static inline thread_local Tile tiles[8];

  static void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "tiles: %s\n", what);
    std::abort();
  }
  static void shape(int tile, int rows, int words) {
    require(rows >= 0 && rows <= 16 && words >= 0 && words <= 16 && (rows == 0) == (words == 0), "an impossible shape");
    tiles[tile].rows = rows, tiles[tile].words = words;
    memset(tiles[tile].at, 0xff, sizeof tiles[tile].at);  // NaN
  }
  static void configure(int rows, int last) {
    for (int tile = 0; tile < 4; ++tile) shape(tile, rows, 16);
    shape(4, rows, 16), shape(5, 16, 16);
    shape(6, last > 0 ? rows : 0, last), shape(7, last, last > 0 ? 16 : 0);
  }
  template <int kTile>
  static void zero() {
    require(tiles[kTile].rows > 0, "zero of a tile that has no shape");
    memset(tiles[kTile].at, 0, sizeof tiles[kTile].at);
  }
  template <int kTile, class Word>
  static void load(const Word* from, long words) {
    Tile& t = tiles[kTile];
    require(t.rows > 0, "load into a tile that has no shape");
    memset(t.at, 0, sizeof t.at);
    for (int r = 0; r < t.rows; ++r) memcpy(t.at[r], from + r * words, 4 * static_cast<std::size_t>(t.words));
  }
  template <int kTile, class Word>
  static void store(Word* to, long words) {
    const Tile& t = tiles[kTile];
    require(t.rows > 0, "store of a tile that has no shape");
    for (int r = 0; r < t.rows; ++r) memcpy(to + r * words, t.at[r], 4 * static_cast<std::size_t>(t.words));
  }
  static float number(unsigned bits) {
    float x = 0;
    memcpy(&x, &bits, sizeof x);
    return x;
  }
  template <int kC, int kA, int kB>
  static void dot() {
    Tile &c = tiles[kC], &a = tiles[kA], &b = tiles[kB];
    require(c.rows > 0 && c.rows == a.rows && a.words == b.rows && b.words == c.words, "a product of other shapes");
    for (int m = 0; m < c.rows; ++m)
      for (int n = 0; n < c.words; ++n) {
        float lower = 0, upper = 0;
        for (int k = 0; k < a.words; ++k) {
          lower += number(a.at[m][k] << 16) * number(b.at[k][n] << 16);
          upper += number(a.at[m][k] & 0xffff0000u) * number(b.at[k][n] & 0xffff0000u);
        }
        const float sum = number(c.at[m][n]) + (lower + upper);
        memcpy(&c.at[m][n], &sum, sizeof sum);
      }
  }
};

}  // namespace

#include "math/attention_narrow_inl.h"

namespace molen::math {
namespace attention_detail {

extern const NarrowAttention kNarrowOnTilesInMemory;
const NarrowAttention kNarrowOnTilesInMemory = {forward_rows, backward_columns, finish_queries, backward_rows};

// Small whole numbers: every order of the terms gives the same sum.
TEST(NarrowTiles, ProductsOfEverySizeAreThoseOfALoop) {
  constexpr i64 kLda = 64, kLdb = 272, kLdc = 262;
  const auto number = [](i64 a, i64 b) { return static_cast<float>((a * 7 + b * 5) % 9 - 4); };
  const auto bf16 = [](float x) {
    unsigned bits = 0;
    memcpy(&bits, &x, sizeof x);
    return bits >> 16;
  };
  const auto pair = [&](float lower, float upper) { return static_cast<Pair>(bf16(lower) | bf16(upper) << 16); };
  std::vector<int> b(48 * kLdb);
  for (i64 p = 0; p < 48; ++p)
    for (i64 n = 0; n < kLdb; ++n) b[p * kLdb + n] = pair(number(2 * p, n + 3), number(2 * p + 1, n + 3));
  for (const bool interleaved : {false, true}) {
    std::vector<int> a(64 * kLda);
    for (i64 r = 0; r < 16; ++r)
      for (i64 p = 0; p < 48; ++p)
        a[interleaved ? p * kLda + r : r * kLda + p] = pair(number(r, 2 * p), number(r, 2 * p + 1));
    for (i64 rows = 1; rows <= 16; ++rows)
      for (const i64 columns : {16, 32, 48, 64, 80, 144, 256})
        for (const i64 depth : {1, 7, 15, 16, 17, 32, 47, 48})
          for (const int kind : {0, 1, 2}) {  // C =, C +=, C = diag(scale) C +
            float scale[16];
            for (int r = 0; r < 16; ++r) scale[r] = static_cast<float>(r - 5);
            const float* factor = kind == 0 ? nullptr : kind == 1 ? kOnes : scale;
            std::vector<float> c(16 * kLdc, 3.0f);
            (interleaved ? dot_product<true> : dot_product<false>)(rows, columns, a.data(), kLda, b.data(), kLdb, depth,
                                                                   c.data(), kLdc, factor);
            for (i64 r = 0; r < 16; ++r)
              for (i64 n = 0; n < kLdc; ++n) {
                float want = 3.0f;
                if (r < rows && n < columns) {
                  want = kind == 0 ? 0.0f : kind == 1 ? 3.0f : 3.0f * scale[r];
                  for (i64 d = 0; d < 2 * depth; ++d) want += number(r, d) * number(d, n + 3);
                }
                ASSERT_EQ(c[r * kLdc + n], want) << rows << " x " << columns << " x " << depth << ", kind " << kind
                                                 << ", interleaved " << interleaved << ", at " << r << ", " << n;
              }
          }
  }
}

}  // namespace attention_detail
}  // namespace molen::math
