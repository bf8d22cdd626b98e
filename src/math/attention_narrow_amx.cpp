// Attention over rows in bf16 on AVX-512 with products on AMX tiles. Compiled with flags of its own (CMakeLists.txt):
// plain headers only.
#if defined(__x86_64__)
#define MOLEN_SIMD_BITS 512
#define MOLEN_TILES

#include <string.h>

namespace {

// What LDTILECFG reads. Tiles as in attention_narrow_tiles_inl.h.
struct TileConfiguration {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short bytes_per_row[16] = {};
  unsigned char rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == 64);

// The instructions are written out, because the compiler's intrinsics take no template parameter as a tile's number.
struct Tiles {
  static inline thread_local int configured = -1;  // what the processor holds; -1: nothing

  // C and A get `rows` rows; the last tiles of A and B get a depth of `last` pairs, or are left out if it is 0.
  static void configure(int rows, int last) {
    if (configured == 16 * rows + last) return;
    TileConfiguration c;
    for (int tile = 0; tile < 6; ++tile) c.bytes_per_row[tile] = 64, c.rows[tile] = (unsigned char)rows;
    c.rows[5] = 16;
    if (last > 0) {
      c.bytes_per_row[6] = (unsigned short)(4 * last), c.rows[6] = (unsigned char)rows;
      c.bytes_per_row[7] = 64, c.rows[7] = (unsigned char)last;
    }
    asm volatile("ldtilecfg %0" ::"m"(c));
    configured = 16 * rows + last;
  }
  static void release() {
    asm volatile("tilerelease");
    configured = -1;
  }
  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile, class Word>
  static void load(const Word* from, long words) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(4 * words), "i"(kTile) : "memory");
  }
  template <int kTile, class Word>
  static void store(Word* to, long words) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(4 * words), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace

#include "math/attention_narrow_inl.h"

namespace molen::math::attention_detail {
namespace {

void forward_on_tiles(const NarrowForward& f, i64 b, i64 head, i64 heads, i64 i0, i64 n, float* scratch) {
  forward_rows(f, b, head, heads, i0, n, scratch);
  Tiles::release();
}
void columns_on_tiles(const NarrowBackward& g, i64 b, i64 kv, i64 j0, float* dq, float* scratch) {
  backward_columns(g, b, kv, j0, dq, scratch);
  Tiles::release();
}
void rows_on_tiles(const NarrowBackward& g, i64 b, i64 head, i64 i0, i64 n, float* scratch) {
  backward_rows(g, b, head, i0, n, scratch);
  Tiles::release();
}

}  // namespace

const NarrowAttention kNarrowAmx = {forward_on_tiles, columns_on_tiles, finish_queries, rows_on_tiles};

}  // namespace molen::math::attention_detail
#endif
