#include "math/experts.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "math/allocation.h"
#include "math/gemm.h"
#include "math/gemm_narrow.h"
#include "math/vector_kernels.h"

namespace molen::math {
namespace {

using i64 = std::int64_t;
using u16 = std::uint16_t;

i64 ceil_div(i64 a, i64 b) {
  return (a + b - 1) / b;
}

template <class S>
void copy_rows(int threads, const Slots& s, const S* x, S* rows) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (i64 n = 0; n < s.N; ++n)
    for (i64 j = 0; j < s.k; ++j)
      if (const i64 row = s.place_Nk[n * s.k + j]; row >= 0)
        std::memcpy(rows + row * s.d, x + n * s.d, static_cast<std::size_t>(s.d) * sizeof(S));
}

// Runs task(index) for all indices, each on one thread, so that the library's products use only that thread. On threads
// other than the caller's, the library's allocations come from the block that such a thread keeps (math/allocation.h).
template <class Task>
void side_by_side(i64 tasks, const Task& task) {
#pragma omp parallel num_threads(at::get_num_threads())
  {
    std::optional<AllocationGuard> guard;
    if (omp_get_thread_num() != 0) guard.emplace(nullptr);
#pragma omp for schedule(dynamic, 1)
    for (i64 index = 0; index < tasks; ++index) task(index);
  }
}

struct Tile {
  i64 expert, first, rows;  // first is a row of expert order
};
// Returns the smallest number of tiles that hold an expert's rows; the last tile may have a single row.
i64 tiles_of(const Groups& g, i64 e) {
  return ceil_div(g.rows(e), kGroupRows);
}
i64 count_tiles(const Groups& g) {
  i64 count = 0;
  for (i64 e = 0; e < g.E; ++e) count += tiles_of(g, e);
  return count;
}
Tile tile_of(const Groups& g, i64 index) {
  i64 e = 0;
  for (; index >= tiles_of(g, e); ++e) index -= tiles_of(g, e);
  const i64 tiles = tiles_of(g, e), begin = g.rows(e) * index / tiles, end = g.rows(e) * (index + 1) / tiles;
  return {e, g.first(e) + begin, end - begin};
}

// Returns the memory of `scratch`, which has at least `needed` bytes.
void* checked(std::span<std::byte> scratch, i64 needed) {
  MOLEN_CHECK(static_cast<i64>(scratch.size()) >= needed, "a product of experts has {} bytes of scratch and needs {}",
              scratch.size(), needed);
  return scratch.data();
}

at::Tensor view(const u16* data, i64 rows, i64 columns) {
  return at::from_blob(const_cast<u16*>(data), {rows, columns}, at::TensorOptions().dtype(at::kBFloat16));
}
void narrow_product(const at::Tensor& a, const at::Tensor& b, u16* c) {
  const LibraryCall call;
  at::Tensor out = view(c, a.size(0), b.size(1));
  at::mm_out(out, a, b);
}
void tile_nt(i64 m, i64 n, i64 k, const float* a, const float* b, float* c) {
  matmul_nt(m, n, k, a, b, false, c);
}
void tile_nt(i64 m, i64 n, i64 k, const u16* a, const u16* b, u16* c) {
  const c10::InferenceMode guard;
  narrow_product(view(a, m, k), view(b, n, k).t(), c);
}
void tile_nn(i64 m, i64 n, i64 k, const float* a, const float* b, float* c) {
  matmul_nn(m, n, k, a, b, false, c);
}
void tile_nn(i64 m, i64 n, i64 k, const u16* a, const u16* b, u16* c) {
  const c10::InferenceMode guard;
  narrow_product(view(a, m, k), view(b, k, n), c);
}

template <class S>
void all_nt(const Groups& g, const S* x, const S* w, S* y) {
  side_by_side(count_tiles(g), [&](i64 index) {
    const Tile t = tile_of(g, index);
    tile_nt(t.rows, g.out, g.in, x + t.first * g.in, w + t.expert * g.out * g.in, y + t.first * g.out);
  });
}
template <class S>
void all_nn(const Groups& g, const S* d_y, const S* w, S* d_x) {
  side_by_side(count_tiles(g), [&](i64 index) {
    const Tile t = tile_of(g, index);
    tile_nn(t.rows, g.in, g.out, d_y + t.first * g.out, w + t.expert * g.out * g.in, d_x + t.first * g.in);
  });
}

// Computes outputs [first, last) of one expert's weight gradient. The library cannot read a part of the columns of d_y
// without copying it. The part of some rows at a time is therefore copied to `packed`, and its products are added to
// those of earlier rows.
void gradient_of_outputs(const Groups& g, i64 e, i64 first, i64 last, const float* d_y, const float* x, bool accumulate,
                         float* d_w, float* packed) {
  const i64 width = last - first;
  for (i64 row = 0; row < g.rows(e); row += kGroupTerms) {
    const i64 rows = std::min(kGroupTerms, g.rows(e) - row), from = g.first(e) + row;
    for (i64 r = 0; r < rows; ++r)
      std::memcpy(packed + r * width, d_y + (from + r) * g.out + first, static_cast<std::size_t>(width) * 4);
    matmul_tn(width, g.in, rows, packed, x + from * g.in, accumulate || row > 0, d_w);
  }
}

}  // namespace

void dispatch(int threads, const Slots& s, const float* x, float* rows) {
  copy_rows(threads, s, x, rows);
}
void dispatch(int threads, const Slots& s, const u16* x, u16* rows) {
  copy_rows(threads, s, x, rows);
}
void dispatch_backward(int threads, const Slots& s, const float* d_rows, bool accumulate, float* d_x) {
  combine(threads, s, nullptr, d_rows, accumulate, d_x);
}
void dispatch_backward(int threads, const Slots& s, const u16* d_rows, bool accumulate, u16* d_x) {
  combine(threads, s, nullptr, d_rows, accumulate, d_x);
}
void combine(int threads, const Slots& s, const float* weight, const float* rows, bool accumulate, float* y) {
  vector_kernels().combine_forward(threads, s.N, s.k, s.d, s.place_Nk, weight, accumulate, rows, y);
}
void combine(int threads, const Slots& s, const float* weight, const u16* rows, bool accumulate, u16* y) {
  vector_kernels().narrow.combine_forward(threads, s.N, s.k, s.d, s.place_Nk, weight, accumulate, rows, y);
}
void combine_backward(int threads, const Slots& s, const float* weight, const float* d_y, const float* rows,
                      float* d_rows, float* d_weight) {
  vector_kernels().combine_backward(threads, s.N, s.k, s.d, s.place_Nk, weight, d_y, rows, d_rows, d_weight);
}
void combine_backward(int threads, const Slots& s, const float* weight, const u16* d_y, const u16* rows, u16* d_rows,
                      float* d_weight) {
  vector_kernels().narrow.combine_backward(threads, s.N, s.k, s.d, s.place_Nk, weight, d_y, rows, d_rows, d_weight);
}

void grouped_nt(const Groups& g, const float* x, const float* w, float* y) {
  all_nt(g, x, w, y);
}
void grouped_nt(const Groups& g, const u16* x, const u16* w, u16* y) {
  all_nt(g, x, w, y);
}
void grouped_nn(const Groups& g, const float* d_y, const float* w, float* d_x) {
  all_nn(g, d_y, w, d_x);
}
void grouped_nn(const Groups& g, const u16* d_y, const u16* w, u16* d_x) {
  all_nn(g, d_y, w, d_x);
}

i64 grouped_tn_scratch(int threads, i64 out) {
  return out <= kGroupOutputs ? 0 : threads * kGroupTerms * kGroupOutputs * 4;
}

void grouped_tn(const Groups& g, const float* d_y, const float* x, bool accumulate, float* d_w,
                std::span<std::byte> scratch) {
  auto* space = static_cast<float*>(checked(scratch, grouped_tn_scratch(at::get_num_threads(), g.out)));
  const i64 parts = ceil_div(g.out, kGroupOutputs);
  side_by_side(g.E * parts, [&](i64 index) {
    const i64 e = index / parts, part = index % parts;
    const i64 first = g.out * part / parts, last = g.out * (part + 1) / parts;
    float* block = d_w + (e * g.out + first) * g.in;
    if (g.rows(e) == 0) {
      if (!accumulate) std::fill_n(block, (last - first) * g.in, 0.0f);
    } else if (parts == 1) {
      matmul_tn(g.out, g.in, g.rows(e), d_y + g.first(e) * g.out, x + g.first(e) * g.in, accumulate, block);
    } else {
      float* packed = space + omp_get_thread_num() * kGroupTerms * kGroupOutputs;
      gradient_of_outputs(g, e, first, last, d_y, x, accumulate, block, packed);
    }
  });
}

i64 grouped_tn_narrow_scratch(int threads, i64 M, i64 out, i64 in) {
  return std::max(weight_gradient_scratch(threads, in, M), 2 * out * in);
}

void grouped_tn(const Groups& g, const u16* d_y, const u16* x, bool accumulate, float* d_w,
                std::span<std::byte> scratch) {
  const c10::InferenceMode guard;
  const int threads = at::get_num_threads();
  void* space = checked(scratch, grouped_tn_narrow_scratch(threads, g.first(g.E), g.out, g.in));
  for (i64 e = 0; e < g.E; ++e) {
    const u16 *left = d_y + g.first(e) * g.out, *right = x + g.first(e) * g.in;
    float* block = d_w + e * g.out * g.in;
    if (g.rows(e) == 0) {
      if (!accumulate) vector_kernels().fill_zero(threads, g.out * g.in, block);
    } else if (own_products()) {
      weight_gradient(threads, g.out, g.in, g.rows(e), left, right, accumulate, block, space);
    } else {
      auto* rounded = static_cast<u16*>(space);
      narrow_product(view(left, g.rows(e), g.out).t(), view(right, g.rows(e), g.in), rounded);
      vector_kernels().narrow.widen(threads, g.out * g.in, rounded, accumulate, block);
    }
  }
}

}  // namespace molen::math
