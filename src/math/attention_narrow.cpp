// Selects the instruction set, and splits the work over threads as in fp32.
#include "math/attention_narrow.h"

#include "math/attention_narrow_kernels.h"
#include "math/attention_split.h"

namespace molen::math {
namespace {

using namespace attention_detail;

i64 half_width(i64 D) {
  return padded_width((D + 1) / 2);
}
i64 forward_words(i64 D) {
  return 416 * half_width(D) + 352 * padded_width(D) + 4896;
}
i64 backward_words(i64 D) {
  return 448 * half_width(D) + 512 * padded_width(D) + 21696;
}
// Returns the size of the sums of dq for the queries of one key/value head. They are needed when one thread computes
// all of these queries.
i64 query_words(const AttentionShape& s) {
  return split_finely(s) ? 0 : s.h / s.k * s.S * padded_width(s.D);
}

}  // namespace

const NarrowAttention& attention_detail::narrow_kernels(AttentionIsa isa) {
#if defined(__x86_64__)
  switch (isa == AttentionIsa::kBest ? narrow_attention_isa() : isa) {
    case AttentionIsa::kAmx:
      return kNarrowAmx;
    case AttentionIsa::kAvx512Bf16:
      return kNarrowAvx512Bf16;
    case AttentionIsa::kAvx512:
      return kNarrowAvx512;
    case AttentionIsa::kAvx2:
      return kNarrowAvx2;
    default:
      break;
  }
#endif
  return kNarrowGeneric;
}

AttentionIsa narrow_attention_isa() {
  for (const AttentionIsa isa :
       {AttentionIsa::kAmx, AttentionIsa::kAvx512Bf16, AttentionIsa::kAvx512, AttentionIsa::kAvx2})
    if (attention_isa_available(isa)) return isa;
  return AttentionIsa::kGeneric;
}

i64 narrow_attention_forward_scratch(const AttentionShape& s) {
  return s.threads * 4 * forward_words(s.D);
}
i64 narrow_attention_backward_scratch(const AttentionShape& s) {
  return s.threads * 4 * backward_words(s.D) + std::min<i64>(s.threads, s.B * s.k) * 4 * query_words(s);
}

void narrow_attention_forward(const AttentionShape& s, const std::uint16_t* qkv, std::uint16_t* o, float* lse,
                              void* scratch) {
  check(s);
  run_forward(narrow_kernels(s.isa), s, qkv, o, lse, scratch);
}

void narrow_attention_backward(const AttentionShape& s, const std::uint16_t* d_o, const std::uint16_t* qkv,
                               const std::uint16_t* o, const float* lse, std::uint16_t* d_qkv, void* scratch) {
  check(s);
  run_backward(narrow_kernels(s.isa), s, d_o, qkv, o, lse, d_qkv, scratch);
}

void attention_detail::run_forward(const NarrowAttention& f, const AttentionShape& s, const std::uint16_t* qkv,
                                   std::uint16_t* o, float* lse, void* scratch) {
  const NarrowForward args{s.B, s.S, s.h, s.k, s.D, s.alibi, qkv, o, lse};
  for_each_forward(s, scratch, forward_words(s.D), [&](i64 b, i64 head, i64 heads, i64 i0, i64 n, float* mine) {
    f.forward_rows(args, b, head, heads, i0, n, mine);
  });
}

void attention_detail::run_backward(const NarrowAttention& f, const AttentionShape& s, const std::uint16_t* d_o,
                                    const std::uint16_t* qkv, const std::uint16_t* o, const float* lse,
                                    std::uint16_t* d_qkv, void* scratch) {
  const NarrowBackward args{s.B, s.S, s.h, s.k, s.D, s.alibi, d_o, qkv, o, lse, d_qkv};
  const i64 words = backward_words(s.D);
  if (split_finely(s)) {
    for_each_fine_backward(
        s, scratch, words,
        [&](i64 b, i64 kv, i64 j0, float* mine) { f.backward_columns(args, b, kv, j0, nullptr, mine); },
        [&](i64 b, i64 head, i64 i0, i64 n, float* mine) { f.backward_rows(args, b, head, i0, n, mine); });
    return;
  }
  AttentionShape fewer = s;  // a thread without a piece needs no sums
  fewer.threads = static_cast<int>(std::max<i64>(1, std::min<i64>(s.threads, s.B * s.k)));
  for_each_piece(fewer, s.B * s.k, scratch, words + query_words(s), [&](i64 index, float* mine) {
    float* dq = mine + words;
    for (i64 j0 = 0; j0 < s.S; j0 += kTileColumns) f.backward_columns(args, index / s.k, index % s.k, j0, dq, mine);
    f.finish_queries(args, index / s.k, index % s.k, dq);
  });
}

}  // namespace molen::math
