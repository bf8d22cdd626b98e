// Checks shapes, picks the instruction set, and splits the work over threads.
#include "math/context_attention.h"

#include <omp.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/error.h"
#include "math/context_attention_kernels.h"

namespace molen::math {
namespace {

using namespace attention_detail;

const ContextKernels& kernels(AttentionIsa isa) {
#if defined(__x86_64__)
  const bool best = isa == AttentionIsa::kBest;
  const bool wide = isa == AttentionIsa::kAvx512 || isa == AttentionIsa::kAvx512Bf16 || isa == AttentionIsa::kAmx;
  if (wide || (best && attention_isa_available(AttentionIsa::kAvx512))) return kAvx512ContextKernels;
  if (isa == AttentionIsa::kAvx2 || (best && attention_isa_available(AttentionIsa::kAvx2))) return kAvx2ContextKernels;
#endif
  return kGenericContextKernels;
}

void check(const ContextShape& s) {
  constexpr i64 kAll = std::numeric_limits<std::int32_t>::max();
  MOLEN_CHECK(s.B >= 0 && s.h > 0 && s.k > 0 && s.h % s.k == 0, "attention of B={} with {} query heads on {} key heads",
              s.B, s.h, s.k);
  MOLEN_CHECK(s.D > 0 && s.D <= kMaxD, "attention with a head of {} elements; 1 to {} are possible", s.D,
              static_cast<i64>(kMaxD));
  MOLEN_CHECK(s.threads > 0, "attention on {} threads", s.threads);
  MOLEN_CHECK(attention_isa_available(s.isa), "this processor lacks {}", name_of(s.isa));
  MOLEN_CHECK(in_order(s.queries, kAll) && in_order(s.keys, kAll), "attention of positions that do not rise");
  check_starts(s.B, s.queries, s.starts);
}

i64 ceil_div(i64 a, i64 b) {
  return (a + b - 1) / b;
}

std::vector<ContextRun> rows_of_runs(std::span<const PositionRun> runs) {
  std::vector<ContextRun> list;
  i64 row = 0;
  for (const PositionRun& run : runs) {
    list.push_back({run.first, run.last, row});
    row += run.size();
  }
  return list;
}
// Cuts the runs into pieces of at most `n` rows; no piece spans two runs.
std::vector<ContextRows> cut(const std::vector<ContextRun>& runs, i64 n) {
  std::vector<ContextRows> list;
  for (const ContextRun& run : runs)
    for (i64 i = run.first; i < run.last; i += n)
      list.push_back({run.row + i - run.first, i, std::min(n, run.last - i)});
  return list;
}

i64 padded_width(i64 D) {
  return (D + 15) / 16 * 16 + 16;
}
i64 forward_floats(i64 D) {
  return kForwardRows * (2 * padded_width(D) + 162) + 2 * kTileColumns * padded_width(D);
}
i64 backward_floats(i64 D) {
  return kBackwardRows * (2 * padded_width(D) + 290) + (5 * kTileColumns + 6) * padded_width(D);
}

// Chooses between few pieces with five matrix products and many pieces with seven, as in attention_split.h. Both give
// the same bits.
bool split_finely(const ContextShape& s, std::size_t tiles) {
  const i64 pieces = s.B * s.k, rounds = ceil_div(pieces, s.threads);
  return static_cast<double>(pieces) / static_cast<double>(rounds * s.threads) < 5.0 / 7.0 && tiles > 1;
}

// Runs piece(index, scratch of the thread) for all pieces; a thread takes the next piece when it is free.
template <class Piece>
void for_each_piece(const ContextShape& s, i64 pieces, float* scratch, i64 floats_each, Piece piece) {
#pragma omp parallel num_threads(s.threads)
  {
    float* mine = scratch + omp_get_thread_num() * floats_each;
#pragma omp for schedule(dynamic, 1)
    for (i64 index = 0; index < pieces; ++index) piece(index, mine);
  }
}

template <class Args>
void fill(Args& a, const ContextShape& s, const ContextOperands& x, const std::vector<ContextRun>& keys) {
  a.B = s.B, a.h = s.h, a.k = s.k, a.D = s.D;
  a.rows = count_positions(s.queries), a.key_rows = count_positions(s.keys);
  a.keys = keys.data(), a.key_runs = static_cast<int>(keys.size());
  a.alibi = s.alibi, a.starts = s.starts;
  a.q = x.q, a.q_stride = x.q_stride, a.k_rows = x.k, a.v_rows = x.v, a.kv_stride = x.kv_stride;
}

}  // namespace

void check_starts(std::int64_t B, std::span<const PositionRun> queries, const std::int32_t* starts) {
  if (!starts) return;
  for (i64 b = 0; b < B; ++b) {
    i64 before = 0;
    for (const PositionRun& run : queries)
      for (i64 i = run.first; i < run.last; ++i, ++starts) {
        MOLEN_CHECK(*starts >= before && *starts <= i,
                    "the document of position {} begins at {}, that of the query before it at {}", i, *starts, before);
        before = *starts;
      }
  }
}

std::int64_t context_forward_scratch(const ContextShape& s) {
  return s.threads * 4 * forward_floats(s.D);
}
std::int64_t context_backward_scratch(const ContextShape& s) {
  return s.threads * 4 * backward_floats(s.D);
}

void context_forward(const ContextShape& s, const ContextOperands& x, bool first, float* o, float* lse, void* scratch) {
  check(s);
  const std::vector<ContextRun> keys = rows_of_runs(s.keys);
  ContextForward args{};
  fill(args, s, x, keys);
  args.first = first, args.o = o, args.lse = lse;
  const i64 group = s.h / s.k, head_parts = ceil_div(group, kMaxHeadsPerPiece), heads = ceil_div(group, head_parts);
  const std::vector<ContextRows> blocks = cut(rows_of_runs(s.queries), kForwardRows / heads / 12 * 12);
  const i64 count = static_cast<i64>(blocks.size()), columns = s.B * s.k * head_parts;
  for_each_piece(s, count * columns, static_cast<float*>(scratch), forward_floats(s.D), [&](i64 index, float* mine) {
    // The last rows see the most keys, so their pieces, which take longest, come first. Threads then finish together.
    const ContextRows& rows = blocks[static_cast<std::size_t>(count - 1 - index / columns)];
    const i64 part = index % head_parts, kv = index % columns / head_parts % s.k,
              b = index % columns / head_parts / s.k;
    const i64 begin = part * heads, end = std::min(group, begin + heads);
    if (begin < end) kernels(s.isa).forward_rows(args, b, kv * group + begin, end - begin, rows, mine);
  });
}

void context_backward(const ContextShape& s, const float* d_o, const ContextOperands& x, const float* o,
                      const float* lse, const ContextGradients& d, void* scratch) {
  check(s);
  const ContextKernels& f = kernels(s.isa);
  const std::vector<ContextRun> queries = rows_of_runs(s.queries), keys = rows_of_runs(s.keys);
  ContextBackward args{};
  fill(args, s, x, keys);
  args.queries = queries.data(), args.query_runs = static_cast<int>(queries.size());
  args.d_o = d_o, args.o = o, args.lse = lse;
  args.d_q = d.d_q, args.d_q_stride = d.d_q_stride, args.d_k = d.d_k, args.d_v = d.d_v,
  args.d_kv_stride = d.d_kv_stride, args.add_kv = d.add_kv;
  if (!d.add_q)
    for (i64 row = 0; row < s.B * args.rows; ++row) std::fill_n(d.d_q + row * d.d_q_stride, s.h * s.D, 0.0f);
  const i64 floats = backward_floats(s.D);
  float* base = static_cast<float*>(scratch);
  const std::vector<ContextRows> tiles = cut(keys, kTileColumns), blocks = cut(queries, kBackwardRows);
  if (!split_finely(s, tiles.size())) {
    for_each_piece(s, s.B * s.k, base, floats, [&](i64 index, float* mine) {
      for (const ContextRows& tile : tiles) f.backward_keys(args, index / s.k, index % s.k, tile, true, mine);
    });
    return;
  }
  for_each_piece(s, static_cast<i64>(tiles.size()) * s.B * s.k, base, floats, [&](i64 index, float* mine) {
    const i64 pair = index % (s.B * s.k);
    f.backward_keys(args, pair / s.k, pair % s.k, tiles[static_cast<std::size_t>(index / (s.B * s.k))], false, mine);
  });
  for_each_piece(s, static_cast<i64>(blocks.size()) * s.B * s.h, base, floats, [&](i64 index, float* mine) {
    const i64 pair = index % (s.B * s.h);
    f.backward_rows(args, pair / s.h, pair % s.h,
                    blocks[blocks.size() - 1 - static_cast<std::size_t>(index / (s.B * s.h))], mine);
  });
}

}  // namespace molen::math
